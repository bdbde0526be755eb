"""`calibration.zip`: some training pictures at the model's size, beside the model of a run.

A ZIP so that anyone can look at what travels with a model: JPEG for grey and colour, PNG with the channels one above
the other for the rest, and `calibration.json`. The pictures' names do not travel. Written anew it is the same byte for
byte.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.loading.transforms import resize
from vitrail.errors import VitrailError
from vitrail.files import replacing
from vitrail.images.decode import open_image, read_image
from vitrail.inference.image_processor import ModelInput
from vitrail.tasks.letterbox import Letterbox
from vitrail.text import shown
from vitrail.weights.preprocessing import Preprocessing

NAME = "calibration.zip"
MOST = 300  # pictures: what NNCF's authors calibrate on
LEAST = 32  # that a choice stands on, if there are so many; one on fewer is made again when there are more
AT_HAND = "at hand"  # in words: pictures that somebody wants answers for, who named no others
INDEX = "calibration.json"
FORMAT = 1
QUALITY = 95  # of JPEG, without subsampling of colours
LARGEST = 1 << 26  # bytes of an entry that are read
SWELLS = 64_000_000, 200  # values of pixels that all pictures may have, and more for each byte of the file
EPOCH = (1980, 1, 1, 0, 0, 0)  # ZIP's first day, so that no clock is in the file


# RuntimeError: what zipfile says of entries that are encrypted, or of later kinds
_DAMAGED = (OSError, zipfile.BadZipFile, ValueError, KeyError, TypeError, RuntimeError, OverflowError, EOFError)


def calibration_file(model: str | Path) -> Path:
    """Where the pictures of a model lie: beside its file, or in its folder."""
    path = Path(model)
    return (path if path.is_dir() else path.parent) / NAME


def calibration_beside(model: str | Path | None) -> Path | None:
    """The pictures that lie beside a model's file; None: there are none, or the model is no file but a name."""
    if model is None or not Path(model).exists():
        return None
    file = calibration_file(model)
    return file if file.is_file() else None


def write_calibration(path: Path, images: Sequence[ModelInput], training: Mapping[str, Any]) -> None:
    """Write the file whole or not at all. training: the record of the run in its model's file, so that these pictures
    are not taken for another model's."""
    insides = [None if image.letterbox is None else image.letterbox.inside for image in images]
    index = {"format": FORMAT, "run": run_key(training), "insides": insides}
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr(zipfile.ZipInfo(INDEX, EPOCH), json.dumps(index))
        for number, image in enumerate(images, start=1):
            ending, data = _encode(image.pixels)
            archive.writestr(zipfile.ZipInfo(f"{number:03}.{ending}", EPOCH), data)


def read_calibration(path: Path, preprocessing: Preprocessing, training: Mapping[str, Any] | None) -> list[ModelInput]:
    """The pictures at the model's size. VitrailError where the file is damaged, or is that of another model.

    training: the record in the model's file; None: of a model that has none, which takes what lies beside it.
    """
    try:
        index, images = _content(path, preprocessing.channels)
        run, insides = str(index["run"]), list(index["insides"])
        inputs = [_model_input(pixels, inside, preprocessing) for pixels, inside in zip(images, insides, strict=True)]
    except _DAMAGED:
        raise VitrailError(f"{shown(path)} is damaged: copy it again from its run, or take it away") from None
    if training is not None and run != run_key(training):
        raise VitrailError(
            f"{shown(path)} is that of another model: put the one of this model's run beside it, or none"
        )
    return inputs


def count_calibration(path: Path) -> int | None:
    """How many pictures a file holds; None where there is no file, or none that can be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(name != INDEX for name in archive.namelist())
    except _DAMAGED:
        return None


def run_key(training: Mapping[str, Any]) -> str:
    """What ties pictures and model: the seed of the run, and the digests of the sample of its training images."""
    identity = json.dumps([training.get("seed"), training.get("sample")])
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def _content(path: Path, channels: int) -> tuple[dict[str, Any], list[NDArray[np.uint8]]]:
    """The index, and the pixels of every entry as they are stored. Whatever it raises, the file is damaged."""
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name != INDEX)
        if len(names) > MOST:
            raise ValueError(path)
        images, left = [], SWELLS[0] + SWELLS[1] * path.stat().st_size
        for name in names:
            data, stored = _read(archive, name), channels if name.endswith(".jpg") else 1
            with open_image(data, name) as image:  # the size is in the header
                left -= image.width * image.height * stored
                if left < 0 or image.format not in ("JPEG", "PNG"):
                    raise ValueError(name)
            images.append(read_image(data, stored))
        return json.loads(_read(archive, INDEX)), images


def _encode(pixels: NDArray[np.uint8]) -> tuple[str, bytes]:
    """The ending of the name, and the bytes, of uint8 (h, w, C)."""
    height, width, channels = pixels.shape
    buffer = io.BytesIO()
    if channels in (1, 3):
        image = Image.fromarray(pixels if channels == 3 else pixels[..., 0])
        image.save(buffer, "JPEG", quality=QUALITY, subsampling=0)
        return "jpg", buffer.getvalue()
    Image.fromarray(np.moveaxis(pixels, 2, 0).reshape(channels * height, width)).save(buffer, "PNG")
    return "png", buffer.getvalue()


def _model_input(pixels: NDArray[np.uint8], inside: Any, preprocessing: Preprocessing) -> ModelInput:
    """What `ImageProcessor.read` would give for the picture as it stands in the model's input."""
    channels, size = preprocessing.channels, preprocessing.size
    if channels not in (1, 3):  # planes one above the other
        pixels = np.ascontiguousarray(np.moveaxis(pixels.reshape(channels, -1, pixels.shape[1]), 0, 2))
    scale = size[0] / pixels.shape[0], size[1] / pixels.shape[1]  # 1, unless the model was adapted to another size
    pixels = resize(pixels, size, preprocessing.interpolation)
    if inside is None:
        return ModelInput(pixels)
    if preprocessing.resize == "window":
        return ModelInput(pixels, Letterbox.whole(size), pixels)
    top, left, bottom, right = (round(edge * scale[axis % 2]) for axis, edge in enumerate(inside))
    if not (0 <= top <= bottom <= size[0] and 0 <= left <= right <= size[1]):
        raise ValueError(inside)
    own = max(1, bottom - top), max(1, right - left)  # its own pixels would be many more, and say nothing more
    return ModelInput(pixels, Letterbox(own, (top, left, top + own[0], left + own[1]), size))


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
    entry = archive.getinfo(name)
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > LARGEST:  # we store: nothing can swell
        raise ValueError(name)
    return archive.read(entry)
