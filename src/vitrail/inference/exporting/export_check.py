"""An exported file against the model that it was made of: the same images, the same answers?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.errors import VitrailError
from vitrail.graphs.answer_pass import AnswerPass
from vitrail.graphs.graph_file import Run
from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.image_processor import ImageProcessor, Pixels
from vitrail.inference.sources import images_of
from vitrail.text import counted

PICTURES, NOISES = 16, 8  # images that a file is checked on: given ones at most, or noise
SEED = 0
# Of an output's largest value. In int8 the file is compared with its own network, which was judged by its task's metric
# on more pictures than here: values near the middle between two of 256 levels go either way.
TOLERANCE = {"fp32": 1e-3, "bf16": 0.1, "int8": 0.05}
FOUND = {"fp32": 0.5, "bf16": 0.0, "int8": 0.5}  # share of the objects that a file finds too: scores do not tell where
SAME_BOX = 0.01  # of the input: how far an edge may be off
BEST_BOXES = 10  # of an image that are compared where none counts as found
ORDERED = ("boxes", "labels")  # which two almost equal scores may swap

Outputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Check:
    """What a comparison with the model showed; stored in the file."""

    images: int
    of: str  # "pictures" or "noise"
    differences: dict[str, float]  # the largest of each output of real numbers; of boxes, that of their scores
    agreement: float | None  # share of same answers (top label, all labels, pixels, objects); None: numbers have none

    @property
    def difference(self) -> float:
        """The largest of all."""
        return max(self.differences.values(), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """As the file keeps it."""
        return {**asdict(self), "difference": self.difference}

    def in_words(self) -> str:
        """One line about it."""
        images = counted(self.images, "picture") if self.of == "pictures" else f"{self.images} images of noise"
        same = "" if self.agreement is None else f", {100 * self.agreement:.4g} % of the answers agree"
        where = max(self.differences, key=self.differences.__getitem__, default="")
        return f"checked against the model on {images}: largest difference {self.difference:.1e} ({where}){same}"


def check_images(processor: ImageProcessor, source: str | Path | None) -> tuple[list[Pixels], str]:
    """uint8 (h, w, C) each: the first readable pictures of a file or folder, or seeded noise; and which of them."""
    if source is None:
        generator = np.random.default_rng(SEED)
        preprocessing = processor.preprocessing
        shape = (*preprocessing.size, preprocessing.channels)
        return [generator.integers(0, 256, shape, dtype=np.uint8) for _ in range(NOISES)], "noise"
    if not Path(source).exists():
        raise VitrailError(f"there is no {source}: give a picture or a folder of pictures to check the file on")
    pixels: list[Pixels] = []
    for path in images_of(source):
        try:
            pixels.append(processor.read(path).pixels)
        except UnreadableImage:
            continue
        if len(pixels) == PICTURES:
            break
    if not pixels:
        raise VitrailError(f"{source} has no image that can be read: give a picture or a folder of pictures")
    return pixels, "pictures"


def batches(images: NDArray[Any], size: int | None) -> Iterator[tuple[NDArray[Any], int]]:
    """Images (n, ...) as batches, each with how many of it count. None: any size goes, so one first, then threes."""
    if size is None:
        yield images[:1], 1
        for begin in range(1, len(images), 3):
            yield images[begin : begin + 3], len(images[begin : begin + 3])
        return
    for begin in range(0, len(images), size):
        part = images[begin : begin + size]
        repeated = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)])
        yield repeated, len(part)


def run_in_batches(run: Run, images: NDArray[Any], size: int | None) -> Outputs:
    """All outputs (n, ...) by name."""
    parts = [{name: value[:count] for name, value in run(batch).items()} for batch, count in batches(images, size)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def torch_run(answers: AnswerPass) -> Run:
    """The model itself, as torch runs it."""

    def run(images: NDArray[Any]) -> dict[str, NDArray[Any]]:
        with torch.no_grad():
            return {name: value.numpy() for name, value in answers(torch.from_numpy(images)).items()}

    return run


def compare(expected: Outputs, given: Outputs, of: str, several_labels: bool, threshold: float | None) -> Check:
    """The model's outputs and the file's, for the same images."""
    if set(expected) != set(given):
        raise VitrailError(f"the file gives {', '.join(given)}, the model {', '.join(expected)}")
    differences = {}
    for name, values in expected.items():
        if values.shape != given[name].shape or not np.isfinite(given[name]).all():
            raise VitrailError(f"the file's {name} has shape {given[name].shape} or is not finite, not {values.shape}")
        if name not in ORDERED and values.dtype.kind == "f":
            differences[name] = float(np.abs(values - given[name]).max(initial=0.0))
    agreement = answers_agree(expected, given, several_labels, threshold)
    return Check(len(next(iter(expected.values()))), of, differences, agreement)


def answers_agree(expected: Outputs, given: Outputs, several_labels: bool, threshold: float | None) -> float | None:
    """The share of answers that are the same; None where an answer is a number."""
    if "probabilities" in expected:
        one, other = expected["probabilities"], given["probabilities"]
        same = ((one > 0.5) == (other > 0.5)).all(1) if several_labels else one.argmax(1) == other.argmax(1)
        return float(same.mean())
    if "mask" in expected:
        return float((expected["mask"] == given["mask"]).mean())
    if "boxes" in expected:
        return _objects_agree(expected, given, threshold or 0.0)
    return None


def _objects_agree(expected: Outputs, given: Outputs, threshold: float) -> float:
    """The share of the model's objects that the file has too: same label, edges within SAME_BOX."""
    found: list[bool] = []
    for image, scores in enumerate(expected["scores"]):
        count = int((scores >= threshold).sum()) or min(BEST_BOXES, int((scores > 0).sum()))
        here = given["scores"][image] > 0
        boxes, labels = given["boxes"][image][here], given["labels"][image][here]
        for box, label in zip(expected["boxes"][image][:count], expected["labels"][image][:count], strict=True):
            near = (np.abs(boxes - box).max(-1, initial=0.0) <= SAME_BOX) & (labels == label)
            found.append(bool(near.any()))
    return float(np.mean(found)) if found else 1.0


def refuse_if_off(check: Check, expected: Outputs, precision: str) -> None:
    """VitrailError where a file differs from its model, or in int8 from its network, by more than rounding explains."""
    other = "its int8 network" if precision == "int8" else "the model"
    for name, difference in check.differences.items():
        limit = TOLERANCE[precision] * max(float(np.abs(expected[name]).max(initial=0.0)), 1e-3)
        if difference > limit:
            raise VitrailError(
                f"the exported file differs from {other} by {difference:.2g} in {name}, where {limit:.2g} "
                "is allowed, so no file was written: choose another format, or fp32"
            )
    if "boxes" in expected and check.agreement is not None and check.agreement < FOUND[precision]:
        raise VitrailError(
            f"the exported file differs from {other} by where its boxes are: {100 * check.agreement:.0f} % of them "
            "agree, so no file was written: choose another format, or fp32"
        )
