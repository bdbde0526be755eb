"""Swin of each library that publishes it: names, config, preprocessing, in and out."""
