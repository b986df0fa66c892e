"""The version, which releases change and nothing else."""

__version__ = "0.2.0"
