"""The command line: parse, call, print."""

import sys


def main() -> None:
    """Run the command ``fedcohort``."""
    from fedcohort.cli.app import main as run

    sys.exit(run())
