"""`vitrail predict` from what an earlier start left in the cache: the graph and how it was chosen, without torch."""
