"""What makes attention cheaper: windows in which it stays, and tokens that are merged."""
