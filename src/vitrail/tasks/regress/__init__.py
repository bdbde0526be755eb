"""One or several numbers an image."""
