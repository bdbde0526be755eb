"""Generated scenes of which everything is known: textured shapes on textured ground, with a class for every pixel.

Each scene has one main shape, which is clearly the largest, and up to two small ones, light on darker ground in any
colours. Shapes may overlap, but most of each is seen. Which pixels a shape has is decided at pixel centres; the picture
itself is smooth at the borders, because it is averaged from three times as many samples each way, of which the middle
one is the centre.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.images.polygons import inside
from vitrail.tasks.shared.scene import SHAPES, Scene, VisibleShape

# How hard it is, chosen so that a small ViT learns every task within minutes on a CPU, and yet not from colour alone.
MOST_SMALL = 2  # shapes beside the main one
MAIN, SMALL = (0.23, 0.34), (0.13, 0.17)  # radius, as a share of the picture's side
TILT = 0.35  # radians by which a shape leans at most, either way
SEEN = 0.8  # of every shape, at least
FINE = 3  # samples each way for a pixel
DARK, LIGHT, ANY = (20, 130), (110, 235), (20, 235)  # red, green and blue of the ground, of shapes, of lines
_CONTRAST = 110.0  # distance of a shape's mean colour from the ground's, of 441
_UNEVEN = 45.0  # how far a texture strays from its mean colour, at most


def make_scene(number: int, size: int, seed: int, index: int) -> Scene:
    """The scene whose main shape is `number`. The same for the same arguments, on every machine."""
    random = np.random.default_rng([seed, index])
    placed = _placed(random, number, size)
    ground = _colour(random, DARK)
    picture = _texture(random, size, ground)
    picture = _with_lines(random, picture)
    for _, outline in placed:
        share = _coverage(outline, size)
        picture += share * (_texture(random, size, _contrasting(random, ground)) - picture)
    picture += 4 * random.standard_normal(picture.shape, dtype=np.float32)
    pixels = _seen([inside(outline, (size, size)) for _, outline in placed])
    radii = [np.linalg.norm(outline - outline.mean(axis=0), axis=1).max() for _, outline in placed]
    shapes = [
        VisibleShape(kind, float(radius), own) for (kind, _), radius, own in zip(placed, radii, pixels, strict=True)
    ]
    return Scene(np.clip(np.rint(picture), 0, 255).astype(np.uint8), tuple(shapes))


# ---- where the shapes are

Placed = list[tuple[int, NDArray[np.float64]]]  # number of SHAPES, and corners (N, 2) in pixels; later ones on top


def _placed(random: np.random.Generator, number: int, size: int) -> Placed:
    """Drawn anew until enough of every shape is seen."""
    while True:
        kinds = [number, *random.integers(0, len(SHAPES), random.integers(0, MOST_SMALL + 1)).tolist()]
        placed = []
        for kind, bounds in zip(kinds, [MAIN] + [SMALL] * MOST_SMALL, strict=False):
            radius = random.uniform(*bounds) * size
            middle = random.uniform(radius + 1, size - radius - 1, 2)
            placed.append((kind, middle + radius * _outline(kind, random.uniform(-TILT, TILT))))
        whole = [inside(outline, (size, size)) for _, outline in placed]
        if all(part.sum() >= SEEN * own.sum() for part, own in zip(_seen(whole), whole, strict=True)):
            return placed


def _coverage(outline: NDArray[np.float64], size: int) -> NDArray[np.float32]:
    """(S, S, 1): how much of each pixel a shape covers."""
    fine = inside(outline * FINE, (size * FINE, size * FINE))
    covered = np.zeros((size, size, 1), dtype=np.float32)
    for row in range(FINE):
        for column in range(FINE):
            covered[..., 0] += fine[row::FINE, column::FINE]
    return covered / np.float32(FINE**2)


def _seen(whole: list[NDArray[np.bool_]]) -> list[NDArray[np.bool_]]:
    """What later shapes leave of each."""
    above = np.zeros_like(whole[0])
    parts = []
    for own in reversed(whole):
        parts.append(own & ~above)
        above |= own
    return parts[::-1]


def _outline(number: int, turn: float) -> NDArray[np.float64]:
    """The corners of a shape of radius 1 around 0."""
    kind = SHAPES[number]
    if kind == "cross":
        a, b = 0.33, (1 - 0.33**2) ** 0.5
        arm = np.array([(a, a), (b, a), (b, -a)])  # one arm; the others are its quarter turns
        quarter = np.array([(0.0, 1.0), (-1.0, 0.0)])
        points = np.concatenate([arm @ np.linalg.matrix_power(quarter, n).T for n in range(4)])
    else:
        corners = {"circle": 48, "square": 4, "triangle": 3, "star": 10}[kind]
        angles = np.arange(corners) * 2 * np.pi / corners - (np.pi / 4 if kind == "square" else np.pi / 2)
        radii = np.where(np.arange(corners) % 2, 0.42, 1.0) if kind == "star" else np.ones(corners)
        points = np.stack([np.cos(angles), np.sin(angles)], axis=1) * radii[:, None]
    cos, sin = np.cos(turn), np.sin(turn)
    return points @ np.array([(cos, sin), (-sin, cos)])


# ---- what they look like


def _colour(random: np.random.Generator, between: tuple[int, int]) -> NDArray[np.float64]:
    return random.uniform(*between, 3)


def _contrasting(random: np.random.Generator, ground: NDArray[np.float64]) -> NDArray[np.float64]:
    while True:
        colour = _colour(random, LIGHT)
        if np.linalg.norm(colour - ground) >= _CONTRAST:
            return colour


def _texture(random: np.random.Generator, size: int, colour: NDArray[np.float64]) -> NDArray[np.float32]:
    """(S, S, 3): clouds, a gradient, stripes or a chequered pattern around a colour."""
    x, y = _grid(size)
    angle = random.uniform(0, 2 * np.pi)
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    waves, offset = np.float32(2 * np.pi * random.uniform(3, 9) / size), np.float32(random.uniform(0, 2 * np.pi))
    pattern: NDArray[np.float32]
    match int(random.integers(4)):
        case 0:
            coarse = random.uniform(-1, 1, (7, 7)).astype(np.float32)
            pattern = np.asarray(Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC))
        case 1:
            along = cos * x + sin * y
            pattern = 2 * (along - along.min()) / np.ptp(along) - 1
        case 2:
            pattern = np.sin(waves * (cos * x + sin * y) + offset)
        case _:
            pattern = np.sin(waves * (cos * x + sin * y) + offset) * np.sin(waves * (cos * y - sin * x) + offset)
            pattern = np.sign(pattern)
    direction = random.normal(size=3)
    direction *= random.uniform(0.3, 1) * _UNEVEN / 2 / np.linalg.norm(direction)
    return colour.astype(np.float32) + pattern[..., None] * direction.astype(np.float32)


def _with_lines(random: np.random.Generator, picture: NDArray[np.float32]) -> NDArray[np.float32]:
    """A few thin lines, which belong to the ground: not everything with an edge is a shape."""
    x, y = _grid(len(picture))
    for _ in range(int(random.integers(0, 4))):
        angle, (row, column) = random.uniform(0, 2 * np.pi), random.uniform(0, len(picture), 2)
        distance = np.abs(np.float32(np.cos(angle)) * (x - column) + np.float32(np.sin(angle)) * (y - row))
        share = np.clip(random.uniform(0.8, 1.6) - distance, 0, 1)[..., None] * np.float32(0.7)
        picture += share * (_colour(random, ANY).astype(np.float32) - picture)
    return picture


@functools.cache
def _grid(size: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """x and y of every pixel's centre."""
    y, x = np.mgrid[:size, :size].astype(np.float32) + np.float32(0.5)
    return x, y
