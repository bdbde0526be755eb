"""A model as a file for other runtimes: made, checked, and put into its place."""
