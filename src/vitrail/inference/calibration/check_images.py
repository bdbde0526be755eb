"""Pictures that an engine is checked on, where there are some."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.calibration.calibration_file import calibration_beside
from vitrail.inference.calibration.calibration_images import CalibrationImages, calibration_images
from vitrail.inference.image_processor import ImageProcessor
from vitrail.inference.read_source import Source
from vitrail.weights.checkpoint import Checkpoint

MOST_AT_HAND = 64  # they are read twice: for the check, and to answer
Calibration: TypeAlias = str | Path | Sequence[Source]


def check_images(
    checkpoint: Checkpoint, path: Path | None = None, calibration: Calibration | None = None
) -> CalibrationImages | None:
    """Those of a folder, if calibration names one; else those that travel with the model of this path; else those that
    calibration lists, of which the unreadable are left out. None: there are none.
    """
    if isinstance(calibration, str | Path):
        return calibration_images(checkpoint, folder=calibration)
    if calibration_beside(path) is not None:
        return calibration_images(checkpoint, path)
    processor = ImageProcessor(checkpoint.preprocessing, checkpoint.config.is_dense)
    at_hand = []
    for source in _spread(calibration or ()):
        try:
            at_hand.append(processor.read(source))
        except UnreadableImage:
            continue  # whoever asks about it will be told
    return calibration_images(checkpoint, fallback=at_hand) if at_hand else None


def _spread(sources: Sequence[Source]) -> Sequence[Source]:
    """Some of all, evenly: the first of a folder are often of one kind."""
    return sources[:: -(-len(sources) // MOST_AT_HAND)] if len(sources) > MOST_AT_HAND else sources
