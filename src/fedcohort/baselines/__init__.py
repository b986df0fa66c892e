"""What others do to choose clients: biased, or asking for more; the same contract."""
