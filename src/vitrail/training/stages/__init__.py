"""The stages of a run, one file each, in the order in which training_run.py calls them."""
