"""From a folder of images to a measured model: what is chosen, the loop, its state, several processes."""
