"""Data sets, and how they are divided among clients."""
