"""A class for every pixel."""
