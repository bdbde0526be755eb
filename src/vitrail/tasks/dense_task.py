"""What the tasks share that answer about places: every pixel's class, every object's box.

Their outputs are too large to be kept for a whole data set, and mean something in the picture's own pixels only. So
they are decoded batch by batch, where the picture lies in the model's input being known (`decode`), and of a decoded
image only a row of numbers is kept (`compare`), from which everything is measured in the end (`quick_metrics`,
`evaluate`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitrail.dataset import Item
from vitrail.errors import VitrailError
from vitrail.tasks.letterbox import Letterbox
from vitrail.tasks.targets import DenseTargets
from vitrail.tasks.task import Mix, Task
from vitrail.tasks.task_answers import NotFinite


class DenseTask(Task):
    """Targets are tensors of a batch as the model sees it, after augmentation."""

    dense = True
    every_patch = True
    classifies_images = False
    short_run_batch = 16
    unknown: ClassVar[float] = 0.0  # in targets with a value for every pixel, and of their type: nothing is known here

    def head_fields(self, head: str, candidates: int) -> dict[str, Any]:
        """The fields of ViTConfig for one of `heads`. `candidates`: objects that can be found at most; 0: the usual."""
        return {"head": head}

    def encode(self, targets: Sequence[Any]) -> Tensor:
        """(M, 0): targets are compared image by image in `compare`, so only their number is kept."""
        return torch.zeros(len(targets), 0)

    def fit(self, targets: Sequence[Any]) -> None:
        self.fit_statistics([self.statistics(target) for target in targets])

    def statistics(self, target: Tensor) -> Any:
        """What `fit_statistics` needs of one training target in its own pixels, so that it is read only once."""
        return None

    def fit_statistics(self, statistics: Sequence[Any]) -> None:
        """`fit`, from the statistics of each training target."""

    @abstractmethod
    def targets(self, items: Sequence[Item], shape: tuple[int, int], gigabytes: float, workers: int) -> DenseTargets:
        """The targets of these items. shape: height and width of the cached images; gigabytes: memory for maps."""

    def renumber(self, target: Tensor, numbers: Tensor) -> Tensor:
        """A target in own pixels with each class c replaced by `numbers[c]`, its place among the model's classes."""
        return target

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass

    def output_scale(self) -> tuple[Tensor, Tensor]:
        return torch.ones(()), torch.zeros(())

    def loss(self, outputs: Any, targets: Tensor, *, mix: Mix | None = None, smoothing: float = 0.0) -> Tensor:
        return self.loss_share(outputs, targets, self.loss_counts(targets), mix=mix, smoothing=smoothing)

    @abstractmethod
    def loss_share(
        self, outputs: Any, targets: Tensor, counts: Tensor, *, mix: Mix | None = None, smoothing: float = 0.0
    ) -> Tensor: ...

    @abstractmethod
    def decode(self, outputs: Tensor, frames: Sequence[Letterbox]) -> list[Tensor]:
        """A batch's outputs as answers in each picture's own pixels."""

    @abstractmethod
    def compare(self, decoded: Tensor, truth: Tensor) -> Tensor:
        """(S,) the numbers from which everything is measured later: one decoded image against its truth, in the
        image's own pixels."""

    def pseudo_label(self, output: Tensor) -> Tensor:
        """`output`: decoded."""
        return output

    def meant(self, outputs: Tensor) -> Tensor:
        return outputs

    def check_mix(self, mix: Mix | None) -> None:
        if mix is not None:
            raise VitrailError(f"mixup and cutmix do not go with the task {self.name}: set both to 0")

    def check_finite(self, outputs: Tensor) -> None:
        finite = torch.isfinite(outputs.flatten(1)).all(1)
        if not finite.all():
            raise NotFinite(
                f"the model's outputs are not finite for {int((~finite).sum())} of {len(outputs)} images of a batch: "
                f"train it again with a lower learning rate, or load another model file"
            )

    def check_size(self, decoded: Tensor, truth: Tensor, noun: str) -> None:
        """Answer and truth (H, W) are of the same pixels. noun: what the truth is."""
        if decoded.shape != truth.shape:
            raise VitrailError(
                f"the answer has {decoded.shape[0]} x {decoded.shape[1]} pixels, the {noun} {truth.shape[0]} x "
                f"{truth.shape[1]}: give every image a {noun} of its own size"
            )

    def comparisons(self, rows: Tensor, columns: int, noun: str) -> NDArray[Any]:
        """The rows of `compare`, (M, columns), after the check that they are that. noun: what the truth is."""
        if rows.dim() != 2 or rows.shape[1] != columns:
            raise VitrailError(
                f"the comparisons have shape {tuple(rows.shape)}, {self.outputs} labels need (images, {columns})"
            )
        if not len(rows):
            raise VitrailError(f"there is no image to measure the model on: give it at least one with its {noun}")
        return rows.detach().cpu().numpy()

    # ---- what `vitrail predict --out` writes

    @abstractmethod
    def pictures(self, answer: Mapping[str, Any], image: NDArray[np.uint8]) -> dict[str, Image.Image]:
        """Pictures of an answer by the ending of their names. `image` (H, W, 3): the picture it is about."""

    @abstractmethod
    def record(self, answer: Mapping[str, Any], name: str, size: tuple[int, ...]) -> dict[str, Any]:
        """What `files` needs to know of one image: small, and fit for JSON."""

    @abstractmethod
    def files(self, records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Texts by the names of their files, about all images together."""
