"""Depth: one number for every pixel, how far away what it shows is."""
