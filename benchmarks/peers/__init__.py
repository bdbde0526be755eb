"""The competitors of `benchmarks/train.py`. Each is a process of its own: `python -m peers.NAME` from benchmarks/."""
