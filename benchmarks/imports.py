"""How long fedcohort's import and ``fedcohort --help`` take, over ``import numpy, scipy.sparse``.

``import fedcohort`` alone imports next to nothing: names are imported when they are first used. So
the bar is on a program's first lines, a selector and a recipe.

Run ``python benchmarks/imports.py [--json]``: a minute. The bars are ratios of 1.15 and 2.5.
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
LIMIT, HELP_LIMIT = 1.15, 2.5
HELP = "from fedcohort.cli.app import main; main(['--help'])"
STATEMENTS = {
    "nothing": "pass",
    "base": "import numpy, scipy.sparse",
    "alone": "import fedcohort",
    "ours": "from fedcohort import Selector, SimilarityClustered",
    "help": HELP,
}


def seconds(statement: str) -> float:
    """Return the time of a fresh interpreter that runs one statement, from compiled modules."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    command = [sys.executable, "-c", statement]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Measure all in turn, so that a busy machine slows all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    as_json = parser.parse_args().json
    times: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for statement in STATEMENTS.values():
        seconds(statement)  # compiles what is not compiled yet
    for _ in range(ROUNDS):
        for name, statement in STATEMENTS.items():
            times[name].append(seconds(statement))
    median = {name: float(np.median(values)) for name, values in times.items()}
    base = median["base"] - median["nothing"]
    alone, ratio, help_ratio = (
        (median[name] - median["nothing"]) / base for name in ("alone", "ours", "help")
    )
    kept = ratio <= LIMIT and help_ratio <= HELP_LIMIT
    limits = {"limit": LIMIT, "help_limit": HELP_LIMIT, "kept": kept}
    ratios = {"alone_ratio": alone, "ratio": ratio, "help_ratio": help_ratio}
    result = {**median, **ratios, **limits, **machine()}
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        print(f"{STATEMENTS['ours']} / {STATEMENTS['base']}: {ratio:.3f} (limit {LIMIT})")
        print(f"{STATEMENTS['alone']} / the same: {alone:.3f}")
        print(f"fedcohort --help / the same: {help_ratio:.3f} (limit {HELP_LIMIT})")
        print(result)


if __name__ == "__main__":
    main()
