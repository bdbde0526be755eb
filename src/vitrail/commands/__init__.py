"""What `vitrail` does: one file a command, with its options, the function for Python and the one for the shell."""
