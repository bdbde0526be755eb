"""Where a picture lies in the model's input: answers about places are given in the picture's own pixels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Letterbox:
    """The whole picture stands in rows top..bottom and columns left..right of the input, counted in its pixels."""

    own: tuple[int, int]  # height, width of the picture itself
    inside: tuple[int, int, int, int]  # top, left, bottom, right
    input: tuple[int, int]  # height, width of the model's input

    @classmethod
    def whole(cls, size: tuple[int, int]) -> Letterbox:
        """A picture that fills the whole input."""
        return cls(size, (0, 0, *size), size)
