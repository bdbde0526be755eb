"""What a command does with a shard: a file a command."""
