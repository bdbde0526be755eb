"""Numbers as colours, the same in PNG files and on the page."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# Dark to light and even to the eye, as matplotlib's inferno (CC0); and blue, white, red for numbers of both signs.
HEAT = ("#000004", "#320a5e", "#781c6d", "#bc3754", "#ed6925", "#fbb61a", "#fcffa4")
SIGNED = ("#2166ac", "#92c5de", "#f7f7f7", "#f4a582", "#b2182b")
MOST = 0.75  # of the picture is covered by colour where a map is at its largest

Pixels = NDArray[np.uint8]


def coloured(shares: NDArray[np.floating], stops: tuple[str, ...]) -> Pixels:
    """Numbers from 0 to 1, of any shape -> the same shape and 3 channels, straight lines between the stops."""
    colours = np.array([[int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in stops], dtype=np.float64)
    places = np.linspace(0, 1, len(stops))
    shares = np.clip(np.nan_to_num(np.asarray(shares, np.float64)), 0, 1)
    return np.stack([np.interp(shares, places, colours[:, c]) for c in range(3)], axis=-1).round().astype(np.uint8)


def scaled(values: NDArray[np.floating], signed: bool) -> NDArray[np.float64]:
    """To 0..1 for `coloured`: from 0 to the largest; signed: 0 in the middle, the largest of either sign at an end."""
    numbers = np.asarray(values, np.float64)
    if not numbers.size:
        return numbers
    if signed:
        most = np.abs(numbers).max()
        return numbers / most / 2 + 0.5 if most > 0 else np.full_like(numbers, 0.5)
    most = numbers.max()
    return numbers / most if most > 0 else np.zeros_like(numbers)


def as_colours(values: NDArray[np.floating], signed: bool) -> Pixels:
    """(h, w) -> (h, w, 3); what is no number, such as the gap between two maps, is grey."""
    known = np.isfinite(values)
    colours = coloured(scaled(np.where(known, values, 0), signed), SIGNED if signed else HEAT)
    return np.where(known[..., None], colours, np.uint8(150))


def shown_picture(picture: Pixels) -> Pixels:
    """(H, W, C) -> (H, W, 3): one channel as grey, the first three of more, two with black as the third."""
    channels = picture.shape[2]
    if channels == 1:
        return np.repeat(picture, 3, axis=2)
    if channels == 2:
        return np.concatenate([picture, np.zeros_like(picture[..., :1])], axis=2)
    return np.ascontiguousarray(picture[..., :3])


def overlay(picture: Pixels, values: NDArray[np.floating], signed: bool = False) -> Pixels:
    """A map (h, w) over the picture (H, W, C), smooth between patches: the picture in grey, colour where it counts."""
    rgb = shown_picture(picture)
    size = rgb.shape[1], rgb.shape[0]
    smooth = np.asarray(Image.fromarray(np.asarray(values, np.float32)).resize(size, Image.Resampling.BICUBIC))
    shares = scaled(smooth if signed else smooth.clip(min=0), signed)
    strength = MOST * (np.abs(2 * shares - 1) if signed else shares)[..., None]
    grey = rgb.mean(axis=2, keepdims=True) * 0.7 + 40
    return (
        (grey * (1 - strength) + coloured(shares, SIGNED if signed else HEAT) * strength).clip(0, 255).astype(np.uint8)
    )


def cut_out(picture: Pixels, mask: NDArray[np.bool_]) -> Pixels:
    """The picture where the mask (h, w) is, and a pale shade of it elsewhere."""
    rgb = shown_picture(picture)
    (height, width), (rows, columns) = rgb.shape[:2], mask.shape
    pixels = mask.repeat(height // rows, 0).repeat(width // columns, 1)[..., None]
    return np.where(pixels, rgb, (rgb * 0.2 + 190).astype(np.uint8))


def gridded(picture: Pixels, patch: tuple[int, int], chosen: tuple[int, int] | None = None) -> Pixels:
    """The picture with its patches set apart by lines, and one of them framed."""
    rgb = enlarged(shown_picture(picture), 320)
    times = rgb.shape[0] // picture.shape[0]
    down, across = patch[0] * times, patch[1] * times
    rgb[::down] = rgb[:, ::across] = 255
    if chosen is not None:
        top, left = chosen[0] * down, chosen[1] * across
        box = rgb[top : top + down + 1, left : left + across + 1]
        box[:3] = box[-3:] = box[:, :3] = box[:, -3:] = (217, 83, 25)
    return rgb


def on_patches(values: NDArray[Any], grid: tuple[int, int]) -> NDArray[Any]:
    """(h, w, ...) of tokens that may hold several patches -> (rows, columns, ...) of the patches themselves."""
    down, across = (-(-patches // tokens) for patches, tokens in zip(grid, values.shape[:2], strict=True))
    return values.repeat(down, 0).repeat(across, 1)[: grid[0], : grid[1]]


def windowed(picture: Pixels, windows: NDArray[np.integer]) -> Pixels:
    """A white line in the picture wherever two neighbours of (h, w) have different numbers: the edges of windows."""
    rgb, (rows, columns) = picture.copy(), windows.shape
    down, across = rgb.shape[0] // rows, rgb.shape[1] // columns
    width = max(1, min(rgb.shape[:2]) // 300)
    for row, column in np.argwhere(windows[1:] != windows[:-1]):
        place = (row + 1) * down
        rgb[place - width : place + width, column * across : (column + 1) * across] = 255
    for row, column in np.argwhere(windows[:, 1:] != windows[:, :-1]):
        place = (column + 1) * across
        rgb[row * down : (row + 1) * down, place - width : place + width] = 255
    return rgb


def enlarged(pixels: Pixels, side: int) -> Pixels:
    """By a whole factor, pixel by pixel, until the longer side has about so many."""
    times = max(1, side // max(pixels.shape[:2]))
    return pixels.repeat(times, 0).repeat(times, 1)
