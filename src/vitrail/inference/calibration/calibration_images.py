"""Real pictures to check an engine on, or to calibrate int8 on: those of the run, of a folder, or those at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrail.data.loading.rng import permutation
from vitrail.errors import VitrailError
from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.calibration.calibration_file import MOST, calibration_file, read_calibration
from vitrail.inference.image_processor import ImageProcessor, ModelInput
from vitrail.inference.sources import images_of
from vitrail.text import counted, shown
from vitrail.threads import in_threads
from vitrail.weights.checkpoint import Checkpoint

WORKERS = 2  # threads that decode a folder


@dataclass(frozen=True)
class CalibrationImages:
    """Pictures as `Engine.run` takes them, never none."""

    images: Sequence[ModelInput]
    source: str  # where they are from, in words


def calibration_images(
    checkpoint: Checkpoint,
    model_path: str | Path | None = None,
    folder: str | Path | None = None,
    fallback: Sequence[ModelInput] = (),
) -> CalibrationImages:
    """Up to 300 pictures: those of the folder if one is given, else those that travel with the model (`calibration.zip`
    beside model_path), else the fallback, which are pictures at hand. VitrailError where there are none.
    """
    if folder is not None:
        return _of_folder(checkpoint, Path(folder))
    file = None if model_path is None else calibration_file(model_path)
    if file is not None and file.is_file():
        training = checkpoint.provenance.get("training")
        images = read_calibration(file, checkpoint.preprocessing, training if isinstance(training, dict) else None)
        if images:
            return CalibrationImages(images, f"{counted(len(images), 'training picture')} of {shown(file)}")
    if fallback:
        return CalibrationImages(list(fallback[:MOST]), f"{counted(len(fallback[:MOST]), 'picture')} at hand")
    raise VitrailError(
        "there are no pictures to calibrate on: no calibration.zip lies beside the model, so give a folder of pictures "
        "like those it will see"
    )


def _of_folder(checkpoint: Checkpoint, folder: Path) -> CalibrationImages:
    """Readable pictures of a folder and of those in it, the same ones every time."""
    if not folder.is_dir():
        raise VitrailError(f"{shown(folder)} is no folder: give a folder of pictures to calibrate on")
    paths = images_of(folder)
    chosen = [paths[index] for index in sorted(permutation(0, 0, len(paths))[:MOST].tolist())]
    processor = ImageProcessor(checkpoint.preprocessing, checkpoint.config.is_dense)

    def read(path: str | Path) -> ModelInput | None:
        try:
            return processor.read(path)
        except UnreadableImage:
            return None

    images = [image for image in in_threads(read, chosen, WORKERS) if image is not None]
    if not images:
        raise VitrailError(f"{shown(folder)} holds no picture that can be read: give another folder to calibrate on")
    return CalibrationImages(images, f"{counted(len(images), 'picture')} of {shown(folder)}")
