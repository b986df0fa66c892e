"""Run the command line as ``python -m fedcohort``."""

from fedcohort.cli import main

main()
