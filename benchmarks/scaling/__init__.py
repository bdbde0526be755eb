"""What benchmarks/scale.py measures, a file a subcommand."""
