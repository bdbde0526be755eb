"""Generated pictures of which everything is known."""
