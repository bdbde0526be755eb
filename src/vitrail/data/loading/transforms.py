"""From an image to the model's input, as the model's file says: resized (`prepare`), then normalised (`normalise`).

Both give what timm's transforms and transformers' image processors give on Pillow, each by its own rule of rounding
(`Preprocessing.crop_offset`); tests compare them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

if TYPE_CHECKING:  # reading and checking images must not wait for torch
    from torch import Tensor

    from vitrail.tasks.letterbox import Letterbox
    from vitrail.weights.preprocessing import Preprocessing

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def prepare(image: NDArray[np.uint8], preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """uint8 (H, W, C) -> uint8 (h, w, C) of the model's size.

    crop: the image covers size / crop_fraction, then the centre is cut out. squash: the same without its aspect.
    pad: the whole image fits inside, and the rest has the mean colour, which is 0 for the network.
    window: what is in the middle, at its own scale, is what one window shows.
    """
    _check(image, preprocessing)
    height, width = preprocessing.size
    if preprocessing.resize == "pad":
        return _letterbox(image, preprocessing)
    if preprocessing.resize == "window":
        return _middle(image, preprocessing)
    goal = before_crop(preprocessing)
    rounded = preprocessing.crop_offset == "round"
    if preprocessing.resize == "crop":
        goal = _covering(image.shape[:2], goal, rounded)
    resized = resize(image, goal, preprocessing.interpolation)
    cut_off = goal[0] - height, goal[1] - width
    top, left = (round(cut / 2) if rounded else cut // 2 for cut in cut_off)  # round: a half goes to the even number
    return resized[top : top + height, left : left + width].copy()


def letterbox_of(image_size: tuple[int, int], preprocessing: Preprocessing) -> Letterbox:
    """Where `prepare` puts a picture of this size, for the rules of dense tasks: pad, squash and window.

    With window, a large picture reaches beyond the input: its top and left are then negative.
    """
    from vitrail.tasks.letterbox import Letterbox

    height, width = preprocessing.size
    if preprocessing.resize not in ("pad", "window"):
        return Letterbox(image_size, (0, 0, height, width), preprocessing.size)
    fitted = image_size if preprocessing.resize == "window" else _fitted(image_size, preprocessing.size)
    top, left = (_offset(side, length) for side, length in zip(preprocessing.size, fitted, strict=True))
    return Letterbox(image_size, (top, left, top + fitted[0], left + fitted[1]), preprocessing.size)


def normalise(batch: Tensor, preprocessing: Preprocessing) -> Tensor:
    """uint8 (B, H, W, C) -> float (B, C, H, W): (pixel / 255 - mean) / std for each channel."""
    import torch

    if batch.device.type == "cpu":  # NumPy takes a third of the time, for it writes each channel where it belongs
        return torch.from_numpy(normalise_array(batch.numpy(), preprocessing))
    scale, shift = (torch.from_numpy(part).to(batch.device).view(1, -1, 1, 1) for part in _scale(preprocessing))
    return torch.addcmul(shift, batch.permute(0, 3, 1, 2).float(), scale).contiguous()


def normalise_array(batch: NDArray[np.uint8], preprocessing: Preprocessing) -> NDArray[np.float32]:
    """`normalise` without torch."""
    count, height, width, channels = batch.shape
    normalised = np.empty((count, channels, height, width), np.float32)
    for channel, (scale, shift) in enumerate(zip(*_scale(preprocessing), strict=True)):
        plane = normalised[:, channel]
        np.multiply(batch[..., channel], scale, out=plane)
        plane += shift
    return normalised


def _scale(preprocessing: Preprocessing) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(C,) each: (x / 255 - mean) / std = x * scale + shift."""
    mean, std = (np.array(values, np.float32) for values in (preprocessing.mean, preprocessing.std))
    return np.float32(1) / (np.float32(255) * std), -mean / std


def before_crop(preprocessing: Preprocessing) -> tuple[int, int]:
    """(height, width) that the centre is cut from; a JPEG must not be decoded below it (`read_image(target=...)`)."""
    return preprocessing.before_crop


def resized_pixels(height: int, width: int, preprocessing: Preprocessing) -> float:
    """Pixels after the resize. 'crop' enlarges a long, thin image until its short side covers the model's input."""
    target = before_crop(preprocessing)
    if preprocessing.resize != "crop":
        return float(target[0] * target[1])
    return height * width * max(target[0] / height, target[1] / width) ** 2


# ---- parts


def _covering(size: tuple[int, ...], goal: tuple[int, int], rounded: bool) -> tuple[int, int]:
    """The smallest (height, width) with the image's aspect that covers the goal.

    The longer side is rounded down, as torchvision and transformers do. For a goal that is not square timm has a rule
    of its own, which is to round; `rounded` asks for it.
    """
    height, width = size[:2]
    if rounded and goal[0] != goal[1]:
        ratio = min(height / goal[0], width / goal[1])
        return max(goal[0], round(height / ratio)), max(goal[1], round(width / ratio))
    if goal[0] * width >= goal[1] * height:  # the height decides
        return goal[0], max(goal[1], goal[0] * width // height)
    return max(goal[0], goal[1] * height // width), goal[1]


def _letterbox(image: NDArray[np.uint8], preprocessing: Preprocessing) -> NDArray[np.uint8]:
    height, width = preprocessing.size
    fitted = _fitted(image.shape[:2], preprocessing.size)
    canvas = _canvas(preprocessing)
    top, left = (height - fitted[0]) // 2, (width - fitted[1]) // 2
    canvas[top : top + fitted[0], left : left + fitted[1]] = resize(image, fitted, preprocessing.interpolation)
    return canvas


def _middle(image: NDArray[np.uint8], preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """The middle of a large picture, or a small one in the middle."""
    canvas = _canvas(preprocessing)
    shown, target = [], []
    for side, own in zip(preprocessing.size, image.shape[:2], strict=True):
        length = min(side, own)
        target.append(slice((side - length) // 2, (side - length) // 2 + length))
        shown.append(slice((own - length) // 2, (own - length) // 2 + length))
    canvas[tuple(target)] = image[tuple(shown)]
    return canvas


def _offset(side: int, length: int) -> int:
    """Where a centred picture begins along one axis; negative where its middle is cut out."""
    return (side - length) // 2 if length <= side else -((length - side) // 2)


def _canvas(preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """An input of the mean colour."""
    colour = np.rint(np.clip(preprocessing.mean, 0, 1) * np.float64(255)).astype(np.uint8)
    canvas = np.empty((*preprocessing.size, preprocessing.channels), dtype=np.uint8)
    canvas[:] = colour
    return canvas


def _fitted(image_size: tuple[int, ...], size: tuple[int, int]) -> tuple[int, int]:
    """The largest (height, width) of the picture's aspect that fits into the size."""
    scale = min(size[0] / image_size[0], size[1] / image_size[1])
    return min(size[0], max(1, round(image_size[0] * scale))), min(size[1], max(1, round(image_size[1] * scale)))


def resize(image: NDArray[np.uint8], size: tuple[int, int], interpolation: str) -> NDArray[np.uint8]:
    """Pillow's resize, which filters before it shrinks. Channels of any number go one by one; colour goes at once."""
    if image.shape[:2] == size:
        return image
    method, width_height = _FILTERS[interpolation], (size[1], size[0])
    if image.shape[2] == 3:
        return np.array(Image.fromarray(image).resize(width_height, method))
    # a fourth channel is not told apart from infrared here, so RGBA is not weighted by its alpha
    planes = [
        Image.fromarray(np.ascontiguousarray(image[..., c])).resize(width_height, method) for c in range(image.shape[2])
    ]
    return np.stack([np.asarray(plane) for plane in planes], axis=2)


def _check(image: NDArray[np.uint8], preprocessing: Preprocessing) -> None:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != preprocessing.channels:
        expected = f"(height, width, {preprocessing.channels})"
        raise ValueError(f"prepare takes uint8 {expected}, not {image.dtype} {image.shape}")
