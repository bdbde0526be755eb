"""What a faster version of a model loses: its answers on calibration images against those of float32 torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.loading.transforms import normalise
from vitrail.errors import VitrailError
from vitrail.graphs.graph_file import Forward
from vitrail.inference.backends.torch_backend import TorchBackend
from vitrail.inference.calibration.calibration_images import CalibrationImages
from vitrail.inference.engine import task_of
from vitrail.inference.image_processor import ModelInput
from vitrail.tasks.agreement import Agreement, embedding_agreement
from vitrail.tasks.dense_task import DenseTask
from vitrail.tasks.registry import EMBED
from vitrail.tasks.task import Task
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

ENOUGH = 400  # labelled images to count by: one is then half of the half point that a loss may be
KEPT_BYTES = 1e9  # of float32's outputs; of maps for many classes only so many images are judged


@dataclass(frozen=True)
class AnswerLoss:
    """Against float32, on some images."""

    metric: str  # what the points are of
    points: float  # in per cent; below 0 where it gains
    distance: float  # between the outputs, the mean of `each`
    each: NDArray[np.float64]  # (N,) of each image: of probabilities the total variation, else the relative error
    agreement: Agreement | None  # of the answers; None where the outputs are no numbers


class AnswerJudge:
    """Runs float32 once, then measures as many others as you like.

    Where the truth of the images is known, a loss is one of the task's metric. Where it is not, it is what the
    probabilities of float32 lead to expect, of classes and of masks: an answer that moves from a class with 41 % to one
    with 40 % loses a hundredth of an image or pixel. Of other tasks float32's answers are taken for the truth.

    enough: images from which on known classes are counted, and not expected: of 100 images one would be a whole point.
    """

    def __init__(self, checkpoint: Checkpoint, calibration: CalibrationImages, enough: int = 0) -> None:
        self.task: Task | None = None if _gives_embeddings(checkpoint) else task_of(checkpoint)
        self.images = calibration.images
        self.inputs = NormalisedImages(self.images, checkpoint.preprocessing)
        self.expected = _expected(checkpoint, self.inputs)
        self.answers = self._decoded(self.expected)
        self.own_score = None if self.task is None else self.task.expected_score(self.expected, self.expected)
        too_few = self._counts_images and len(self.expected) < enough
        self.has_truth = self.task is not None and calibration.truths is not None and not too_few
        self.truths: list[Any] = []
        if calibration.truths is not None and self.has_truth:
            self.truths = list(self._visible(calibration.truths))
        elif self.task is not None:
            self.truths = [self.task.pseudo_label(answer) for answer in self.answers]
        self.metric, self.score = self._score(self.answers)  # of float32
        if not self.has_truth:
            expects = self.own_score is not None
            self.metric += f", {'expected by' if expects else 'with'} float32's "
            self.metric += "probabilities" if expects else "answers as truth"

    def __call__(self, forward: Forward) -> AnswerLoss:
        """The loss of a model, (1, C, h, w) -> outputs (1, ...)."""
        outputs = self._outputs(forward, range(len(self.expected)))
        each = np.array([self._distance(*pair) for pair in zip(outputs, self.expected, strict=True)])
        if not np.isfinite(each).all():
            return AnswerLoss(self.metric, 100.0, float("inf"), each, None)
        answers = self._decoded(outputs)
        lost = self._expected_loss(outputs)
        points = 100 * (self.score - self._score(answers)[1] if self.has_truth or lost is None else lost)
        if not np.isfinite(points):
            raise VitrailError(
                f"{len(outputs)} calibration pictures are too few to measure {self.metric} on: give more"
            )
        same_answers = embedding_agreement if self.task is None else self.task.same_answers
        return AnswerLoss(self.metric, points, float(each.mean()), each, same_answers(self.answers, answers))

    def distance(self, forward: Forward, indices: Sequence[int]) -> float:
        """The mean distance of a model's outputs from float32's, on the images with these indices."""
        expected = [self.expected[index] for index in indices]
        pairs = zip(self._outputs(forward, indices), expected, strict=True)
        return float(np.mean([self._distance(*pair) for pair in pairs]))

    @property
    def _counts_images(self) -> bool:
        """Whether the outputs are the probabilities of one class an image."""
        return self.task is not None and self.task.link == "softmax"

    def _expected_loss(self, outputs: Sequence[Tensor]) -> float | None:
        """Of the metric, if float32's probabilities are right; None where they do not tell."""
        score = None if self.task is None else self.task.expected_score(self.expected, outputs)
        return None if score is None or self.own_score is None else self.own_score - score

    def _outputs(self, forward: Forward, indices: Sequence[int]) -> list[Tensor]:
        return [torch.from_numpy(np.array(forward(self.inputs[index]))).float() for index in indices]

    def _score(self, answers: Sequence[Tensor]) -> tuple[str, float]:
        """The task's metric over all images, 1 at best; of embeddings the mean cosine with float32's."""
        if self.task is None:
            cosines = [torch.cosine_similarity(*pair, dim=0) for pair in zip(answers, self.answers, strict=True)]
            return "cosine similarity", float(torch.stack(cosines).mean())
        rows = list(answers)
        if isinstance(self.task, DenseTask):
            rows = [self.task.compare(*pair) for pair in zip(rows, self.truths, strict=True)]
        results = self.task.evaluate(torch.stack(rows), self.task.encode(self.truths), bootstrap=0)
        return self.task.judged_by(results["metrics"])

    def _decoded(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """(1, ...) each -> what the task takes for one image; maps and boxes in the picture's own pixels.

        Of a picture that is looked at through sliding windows, the one in the middle is run, and its pixels are judged.
        """
        if not isinstance(self.task, DenseTask):
            return [output[0] for output in outputs]
        decoded = []
        for output, image in zip(outputs, self.images, strict=False):
            assert image.letterbox is not None
            decoded += self.task.decode(output, [image.letterbox.of_visible])
        return decoded

    def _visible(self, truths: Sequence[Any]) -> Iterator[Any]:
        """What is true of the judged images, where an image is larger than the one window that is run: there."""
        for image, truth in zip(self.images[: len(self.expected)], truths, strict=False):
            box = image.letterbox
            yield truth if box is None or box.of_visible == box else truth[box.visible]

    def _distance(self, outputs: Tensor, expected: Tensor) -> float:
        link = "" if self.task is None else self.task.link
        if link in ("softmax", "sigmoid"):
            probabilities = partial(torch.softmax, dim=-1) if link == "softmax" else torch.sigmoid
            return float((probabilities(outputs) - probabilities(expected)).abs().sum() / 2)
        spread = (expected - expected.mean()).norm().clamp(min=1e-12)
        return float((outputs - expected).norm() / spread)


def _expected(checkpoint: Checkpoint, inputs: NormalisedImages) -> list[Tensor]:
    """The outputs of float32 torch, (1, ...) each, for as many images as can be kept."""
    backend = TorchBackend(checkpoint.model, "float32")
    expected: list[Tensor] = []
    for image in inputs:
        expected.append(backend(torch.from_numpy(image)).cpu())
        if (len(expected) + 1) * expected[0].numel() * expected[0].element_size() > KEPT_BYTES:
            break
    return expected


class NormalisedImages(Sequence[NDArray[np.float32]]):
    """The images one by one as the network takes them, (1, C, h, w), each normalised when it is used."""

    def __init__(self, images: Sequence[ModelInput], preprocessing: Preprocessing) -> None:
        self.images, self.preprocessing = images, preprocessing

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> Any:
        return normalise(torch.from_numpy(self.images[index].pixels[None]), self.preprocessing).numpy()

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        return (self[index] for index in range(len(self)))


def _gives_embeddings(checkpoint: Checkpoint) -> bool:
    return checkpoint.task == EMBED or not checkpoint.config.classes
