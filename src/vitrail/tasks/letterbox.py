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

    @property
    def visible(self) -> tuple[slice, slice]:
        """The rows and columns of the picture that the input shows: all, unless it goes through sliding windows and is
        larger than the one in its middle. Windows keep the picture's own scale."""
        shown = []
        for side, begin, end, size in zip(self.own, self.inside[:2], self.inside[2:], self.input, strict=True):
            shown.append(slice(max(0, -begin), side - max(0, end - size)))
        return shown[0], shown[1]

    @property
    def of_visible(self) -> Letterbox:
        """Where the visible part lies, as a picture of its own: the input says nothing of what is beyond."""
        rows, columns = self.visible
        top, left, bottom, right = self.inside
        inside = max(0, top), max(0, left), min(bottom, self.input[0]), min(right, self.input[1])
        return Letterbox((rows.stop - rows.start, columns.stop - columns.start), inside, self.input)
