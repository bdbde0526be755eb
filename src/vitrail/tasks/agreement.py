"""How well the answers of two engines agree, counted in the task's own unit: pictures, labels, pixels, objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the record of a choice is read without torch
    from torch import Tensor

PROMISE = 0.999  # the share of answers that must be the same
MOST_PROBABILITY = 0.1  # that a probability or a score may change by: few pictures may agree by chance


@dataclass(frozen=True)
class Agreement:
    """`same` of `compared` answers are the same."""

    same: int
    compared: int
    unit: str  # what is counted: "pictures"
    largest: float  # the largest difference of a number behind the answers
    of: str  # what that number is: "probability"
    allowed: float | None = None  # of `largest`; None: any

    @property
    def share(self) -> float:
        """0 to 1; 0 where nothing could be compared."""
        return self.same / self.compared if self.compared else 0.0

    @property
    def keeps_promise(self) -> bool:
        """Whether at least 99.9 % are the same (of fewer than 1,000, all of them) and no number is far off."""
        return self.share >= PROMISE and (self.allowed is None or self.largest <= self.allowed)

    def in_words(self) -> str:
        """'the same answer for 300 of 300 pictures, largest difference of a probability 0.027'."""
        counts = f"{self.same:,} of {self.compared:,} {self.unit}"
        if 0 < self.same < self.compared:
            counts += f" ({100 * self.share:.2f} %)"
        return f"the same answer for {counts}, largest difference of a {self.of} {self.largest:.2g}"


def same_numbers(reference: Sequence[Tensor], others: Sequence[Tensor], tolerance: Tensor | float) -> tuple[int, int]:
    """How many numbers differ by at most the tolerance, and how many there are."""
    pairs = list(zip(reference, others, strict=True))
    same = sum(int(((one - other).abs() <= tolerance).sum()) for one, other in pairs)
    return same, sum(one.numel() for one, _ in pairs)


def largest_difference(reference: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """Between numbers in the same place."""
    differences = [
        float((one - other).abs().max()) for one, other in zip(reference, others, strict=True) if one.numel()
    ]
    return max(differences, default=0.0)


def embedding_agreement(reference: Sequence[Tensor], others: Sequence[Tensor], least: float = 0.999) -> Agreement:
    """Vectors (D,) of a model without a head: the same are those whose cosine is at least `least`."""
    import torch

    pairs = zip(reference, others, strict=True)
    cosines = [float(torch.cosine_similarity(one.flatten(), other.flatten(), dim=0)) for one, other in pairs]
    same = sum(cosine >= least for cosine in cosines)
    return Agreement(same, len(cosines), "pictures", 1 - min(cosines, default=1.0), "cosine")
