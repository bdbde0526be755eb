"""Whether learning without labels goes well: what is measured on the way, and what is said when it goes wrong.

The loss of such a method says little: it may fall while everything collapses. The rank of the embedding and the
neighbours of labelled images say more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

KNN, RANK, ENTROPY, PROTOTYPES = "knn", "rank", "entropy", "prototypes"
TITLES = {
    KNN: "k-NN accuracy",
    RANK: "Rank of the embedding",
    ENTROPY: "Entropy of the teacher",
    PROTOTYPES: "Prototypes in use",
}
MEANINGS = {
    KNN: "how many held-out images have the class of their 20 nearest neighbours among the training images",
    RANK: "how many directions the embeddings of held-out images use: the exponential of their spectrum's entropy",
    ENTROPY: "of the teacher's answer about an image, as a share of ln K: 0 is one prototype, 1 is all alike",
    PROTOTYPES: "how many prototypes the answers about all images are spread over",
}
RESTS = 0.02  # of ln K: a loss that near to it has learnt nothing
LOW_RANK = 2.0  # directions: fewer are a collapse whatever they were before
FALLEN = 0.4  # of the highest rank so far
ENDS = (0.005, 0.95)  # of the entropy
STALLED = 0.001  # of the loss: less than that over half of the run is none
EARLY = 0.2  # of the steps, before which nothing is said


class Concern(NamedTuple):
    """Something that goes wrong."""

    kind: str  # for programs
    sentence: str  # with what to change


@dataclass(frozen=True)
class HealthScores:
    """The metrics of evaluations on the way, in the words of people."""

    labelled: bool

    @property
    def main_metric(self) -> str:
        """k-NN where there are classes, else the rank."""
        return KNN if self.labelled else RANK

    def show(self, metric: str, value: float) -> str:
        """A metric's value as people read it."""
        if metric in (KNN, ENTROPY):
            return f"{100 * value:.1f} %"
        return f"{value:.4g}"

    def title_of(self, metric: str) -> str:
        """What a metric is called on a page."""
        return TITLES.get(metric, metric.capitalize())

    def meaning_of(self, metric: str) -> str:
        """What a metric means, in one line."""
        return MEANINGS.get(metric, "")


def effective_rank(embeddings: Tensor) -> float:
    """(M, D) -> exp of the entropy of the singular values, normalised to sum to 1 (RankMe, arXiv:2210.02885)."""
    values = torch.linalg.svdvals(embeddings.double())
    shares = values / values.sum().clamp(min=1e-12)
    return float(torch.special.entr(shares).sum().exp())


def find_concerns(
    history: Sequence[Mapping[str, Any]], steps: int, resting_loss: float | None, method: str
) -> list[Concern]:
    """What goes wrong, from the rows of metrics.jsonl so far.

    steps: of the whole run; resting_loss: where the loss of the method rests when nothing is learnt."""
    validations = [row for row in history if "validation" in row]
    losses = [row for row in history if row.get("loss") is not None]
    if not validations or validations[-1]["step"] < EARLY * steps:
        return []
    found = [
        _resting(losses, resting_loss),
        _collapsed(validations, method),
        _entropy_at_an_end(validations),
        _stalled(losses, steps) if method != "mae" else None,
    ]
    return [concern for concern in found if concern is not None]


def _resting(losses: Sequence[Mapping[str, Any]], resting_loss: float | None) -> Concern | None:
    if resting_loss is None or not losses:
        return None
    recent = [row["loss"] for row in losses[-max(1, len(losses) // 10) :]]
    mean = sum(recent) / len(recent)
    if abs(mean - resting_loss) > RESTS * resting_loss:
        return None
    return Concern(
        "resting",
        f"the loss rests at ln K = {resting_loss:.2f}: the teacher says the same of every image, so nothing is learnt; "
        "start again with --method simdino, or with pretrain.teacher_temperature = 0.02, or for longer",
    )


def _collapsed(validations: Sequence[Mapping[str, Any]], method: str) -> Concern | None:
    ranks = [row["validation"][RANK] for row in validations if row["validation"].get(RANK) is not None]
    if not ranks or (ranks[-1] >= LOW_RANK and ranks[-1] >= FALLEN * max(ranks)):
        return None
    cure = {
        "dino": "--method simdino, or a lower train.lr and a higher pretrain.momentum",
        "simdino": "a higher pretrain.coding_rate, larger batches, or a lower train.lr",
    }.get(method, "a lower train.lr")
    fell = f"fell from {max(ranks):.3g} to {ranks[-1]:.3g}" if ranks[-1] < max(ranks) else f"is {ranks[-1]:.3g}"
    return Concern("collapsed", f"the rank of the embedding {fell}: images are alike to it; start again with {cure}")


def _entropy_at_an_end(validations: Sequence[Mapping[str, Any]]) -> Concern | None:
    last = validations[-1]["validation"]
    if last.get(PROTOTYPES) is not None and last[PROTOTYPES] < LOW_RANK:
        return Concern(
            "one-prototype",
            f"all images fall on {last[PROTOTYPES]:.2g} prototypes: start again with --method simdino, or with "
            "pretrain.centre_momentum = 0.8 and a higher pretrain.teacher_temperature",
        )
    entropy = last.get(ENTROPY)
    if entropy is None or ENDS[0] <= entropy <= ENDS[1]:
        return None
    softer = entropy < ENDS[0]
    return Concern(
        "entropy",
        f"the teacher's entropy is {entropy:.1%} of ln K: {'raise' if softer else 'lower'} "
        f"pretrain.teacher_temperature to {'0.06' if softer else '0.02'}, in a new run",
    )


def _stalled(losses: Sequence[Mapping[str, Any]], steps: int) -> Concern | None:
    """The loss of the second half of what is done is that of the first half."""
    if len(losses) < 20 or losses[-1]["step"] < 0.5 * steps:
        return None
    values = [row["loss"] for row in losses]
    half = len(values) // 2
    earlier, later = sum(values[:half]) / half, sum(values[half:]) / (len(values) - half)
    if abs(later - earlier) > STALLED * max(abs(earlier), 1e-9):
        return None
    return Concern(
        "stalled", f"the loss has stood at {later:.3f} for half of the run: start again with a higher train.lr"
    )
