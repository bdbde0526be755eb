"""What a walk consists of: steps, each with its formula, its shape, and pictures of the real numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

MOST = (200, 400)  # rows and columns of a matrix that are shown; more would not be told apart on a screen
NUMBERS = 6  # written out


@dataclass(frozen=True)
class Figure:
    """A picture of numbers. kind: 'pixels' is uint8 (H, W, 3); 'signed' and 'share' are matrices to be coloured; 'bars'
    is one number a name."""

    caption: str
    values: NDArray[np.generic]
    kind: str = "signed"
    names: tuple[str, ...] = ()
    left_out: bool = False  # of a large matrix every second, third ... row or column is shown


@dataclass(frozen=True)
class Step:
    title: str
    formula: str
    shape: str
    text: str
    figures: list[Figure] = field(default_factory=list)
    numbers: tuple[str, list[float]] | None = None  # what they are, and the first few


@dataclass(frozen=True)
class Walk:
    """From pixels to the answer. `outputs` is what the steps end in: the model's own answer, to rounding."""

    steps: list[Step]
    block: int
    patch: tuple[int, int]  # the one that is followed
    outputs: NDArray[np.float32]  # (K,)


def matrix(caption: str, values: Tensor, kind: str = "signed") -> Figure:
    """(rows, columns) as a figure, thinned where it is larger than a screen can show."""
    numbers = values.detach().float().cpu().numpy()
    steps = [-(-length // most) for length, most in zip(numbers.shape, MOST, strict=True)]
    shown = numbers[:: steps[0], :: steps[1]]
    return Figure(caption, shown, kind, left_out=max(steps) > 1)


def pixels(caption: str, values: NDArray[np.uint8]) -> Figure:
    return Figure(caption, values, "pixels")


def mosaic(maps: Tensor, gap: int = 1) -> Tensor:
    """(rows, columns, h, w) -> one matrix of small maps with a gap of nan between them."""
    rows, columns, height, width = maps.shape
    board = maps.new_full((rows * (height + gap) - gap, columns * (width + gap) - gap), float("nan"))
    for row in range(rows):
        for column in range(columns):
            top, left = row * (height + gap), column * (width + gap)
            board[top : top + height, left : left + width] = maps[row, column]
    return board


def first(values: Tensor) -> list[float]:
    return [float(value) for value in values.flatten()[:NUMBERS]]


def shape_of(*tensors: Tensor) -> str:
    """'(197, 384)', without the batch of one; several with arrows between."""
    return " → ".join(f"({', '.join(str(side) for side in tensor.shape[1:])})" for tensor in tensors)
