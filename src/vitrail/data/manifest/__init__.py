"""A manifest: what images there are and where each one lies, in shards of a few thousand."""
