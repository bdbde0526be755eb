"""Learning without labels: from a pile of images to an encoder, by one of several methods."""
