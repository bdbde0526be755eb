"""What benchmarks/fuzz.py runs: a file for each kind of input, and how JSON is changed."""
