"""How long ``import fedcohort`` takes, over ``import numpy, scipy.sparse``.

Run ``python benchmarks/imports.py [--json]``: half a minute. The bar is a ratio of 1.2.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np

from measurement import machine

ROUNDS = 25
LIMIT = 1.2


def seconds(statement: str) -> float:
    """Return the time of a fresh interpreter that runs one statement, from compiled modules."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True, env=environment)
    return time.perf_counter() - start


def main() -> None:
    """Measure both in turn, so that a busy machine slows both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    as_json = parser.parse_args().json
    statements = {
        "nothing": "pass",
        "base": "import numpy, scipy.sparse",
        "ours": "import fedcohort",
    }
    times: dict[str, list[float]] = {name: [] for name in statements}
    seconds("import fedcohort")  # compiles what is not compiled yet
    for _ in range(ROUNDS):
        for name, statement in statements.items():
            times[name].append(seconds(statement))
    median = {name: float(np.median(values)) for name, values in times.items()}
    ratio = (median["ours"] - median["nothing"]) / (median["base"] - median["nothing"])
    result = {**median, "ratio": ratio, "limit": LIMIT, "kept": ratio <= LIMIT, **machine()}
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        print(f"import fedcohort / import numpy, scipy.sparse: {ratio:.3f} (limit {LIMIT})")
        print(result)


if __name__ == "__main__":
    main()
