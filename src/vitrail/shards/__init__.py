"""A manifest's shards at work: one output file a shard, on one process, on several, on Slurm or on Ray."""
