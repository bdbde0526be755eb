"""Where shards are worked on: in this process, in others on this machine, on a Ray cluster."""
