"""The image formats that a server takes."""

from __future__ import annotations

# What browsers and cameras write, by Pillow's names. NPY is NumPy's .npy, for models of more channels than a picture.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF", "NPY")
OTHER_FORMATS = ("JPEG2000", "PPM", "QOI")  # on request: hardly anybody sends them, and their decoders cost much
