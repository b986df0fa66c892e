"""Start a SuperLink and five SuperNodes here, train by two designs, and stop everything.

Run it as ``python examples/flower-mnist/demo.py`` (``--secure`` for TLS and node authentication):
about two minutes on 2 cores.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from local_federation import LocalFederation


def main() -> int:
    """Run the app once for each design, and print who was drawn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--secure", action="store_true", help="TLS and node authentication")
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with LocalFederation(folder / "flower", 5, secure=options.secure) as federation:
            for design in ("size", "similarity"):
                log = folder / f"{design}.jsonl"
                print(f"{design}: {options.rounds} rounds ...", flush=True)
                status = federation.run(
                    design=design, num_server_rounds=options.rounds, log_file=str(log)
                )
                for line in log.read_text().splitlines() if log.exists() else ():
                    found = json.loads(line)
                    print(f"  round {found['round']}: one of each distribution: {found['rows']}")
                print(f"  {status}")
                if status != "finished:completed":
                    print(federation.log_of("superlink")[-2000:], file=sys.stderr)
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
