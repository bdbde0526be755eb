"""Models that are cut up among processes (FSDP2)."""
