"""A function in a process of its own, so that a crash inside of a library takes nothing else down."""
