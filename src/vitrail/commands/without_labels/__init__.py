"""Commands that need no labels: what a model makes of images, and what that finds."""
