"""What this process decodes: images of so many pixels at most, in these formats.

One setting for the whole process, as Pillow's own `MAX_IMAGE_PIXELS`: images are read in many places and threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from PIL import Image

MAX_PIXELS = 178_956_970  # where Pillow too stops, since a small file can claim to be enormous; 0.5 GB as RGB


@dataclass(frozen=True)
class DecodeLimits:
    """formats: Pillow's names, and NPY; None: all that vitrail knows."""

    pixels: int = MAX_PIXELS
    formats: frozenset[str] | None = None

    def allows(self, form: str) -> bool:
        """Whether images of this format are decoded."""
        return self.formats is None or form in self.formats


_current = DecodeLimits()


def decode_limits() -> DecodeLimits:
    """The limits of this process."""
    return _current


@contextlib.contextmanager
def limit_decoding(pixels: int | None = None, formats: Collection[str] | None = None) -> Iterator[None]:
    """Other limits inside; None leaves one as it is. For all threads: do not nest it in two of them."""
    global _current
    before, pillow = _current, Image.MAX_IMAGE_PIXELS
    if pixels is not None:
        _current = replace(_current, pixels=pixels)
        Image.MAX_IMAGE_PIXELS = -(-pixels // 2)  # it raises an error at twice that
    if formats is not None:
        _current = replace(_current, formats=frozenset(formats))
    try:
        yield
    finally:
        _current, Image.MAX_IMAGE_PIXELS = before, pillow
