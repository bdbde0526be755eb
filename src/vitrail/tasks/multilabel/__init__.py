"""Any number of labels an image."""
