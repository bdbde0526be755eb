"""What `benchmarks/train.py` runs: a file a sub-command, and the page of results."""
