"""What a finished model's outputs are in words: the half of a task that `vitrail predict` needs.

Nothing here waits for torch, so that a model whose graph is kept answers at once. `Task` is both halves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import VitrailError

UNKNOWN = "unknown"  # the answer to a picture unlike all that a model learnt from


class NotFinite(VitrailError):
    """A model gave something else than numbers."""


class TaskAnswers(ABC):
    """Outputs of whole images (M, outputs), as arrays or tensors, to answers. Made by `registry.task_answers`."""

    name: ClassVar[str]

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = list(labels)
        if not self.labels:
            raise VitrailError(f"the task {self.name} needs at least one label")

    @property
    def outputs(self) -> int:
        """How many numbers the model gives for an image."""
        return len(self.labels)

    @abstractmethod
    def answer(self, outputs: Any, top: int = 5) -> list[dict[str, Any]]:
        """What a finished model says about each image, fit for JSON."""

    def unknown_answer(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """What is said of a picture unlike all that the model learnt from, instead of its answer; `unknown` in it is
        True. Only of tasks whose answer is about a whole image."""
        raise VitrailError(f"the task {self.name} has no answer 'unknown'")

    @abstractmethod
    def words(self, answer: Mapping[str, Any]) -> str:
        """One answer as a line of text."""

    @abstractmethod
    def row(self, answer: Mapping[str, Any]) -> dict[str, str | float]:
        """One answer as a flat row, for a CSV file or a line of text."""

    def columns(self, top: int = 5) -> list[str]:
        """The names of what `row` gives, the same for every answer."""
        return list(self.row(self.answer(np.zeros((1, self.outputs)), top)[0]))

    def _numbers(self, outputs: Any) -> NDArray[np.float64]:
        """Outputs (M, outputs) in float64, after the check that they are numbers."""
        if outputs.ndim != 2 or outputs.shape[1] != self.outputs:
            raise VitrailError(
                f"the model's outputs have shape {tuple(outputs.shape)}, {self.outputs} labels need "
                f"(images, {self.outputs})"
            )
        if not isinstance(outputs, np.ndarray):  # a tensor, of any device and float type
            outputs = outputs.detach().cpu().double().numpy()
        numbers: NDArray[np.float64] = outputs.astype(np.float64, copy=False)
        broken = np.flatnonzero(~np.isfinite(numbers).all(axis=1))
        if broken.size:
            raise NotFinite(
                f"the model's outputs are not finite for {broken.size} of {len(numbers)} images (the first is number "
                f"{broken[0] + 1}): train it again with a lower learning rate, or load another model file"
            )
        return numbers


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each row (M, K)."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: NDArray[np.float64] = raised / raised.sum(axis=1, keepdims=True)
    return probabilities


def sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each number, without overflow."""
    small = np.exp(-np.abs(logits))
    probabilities: NDArray[np.float64] = np.where(logits >= 0, 1.0, small) / (1 + small)
    return probabilities


def guesses(top: Sequence[Mapping[str, Any]]) -> str:
    """'cat 93.1 %, dog 5.0 %'."""
    return ", ".join(f"{guess['label']} {100 * guess['probability']:.1f} %" for guess in top)
