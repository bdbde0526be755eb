"""What to label next: images that the model is unsure of, and no two that tell the same.

Greedy facility location: every image of the pile wants a labelled image near it, the more so the less sure the model is
of it. The next image to label is the one that helps most, given all that are labelled or chosen already. So dense
regions in which the model is unsure come first, copies are worth nothing after the first, and a lone oddity, near which
nothing else lies, is worth little.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.search.nearest_neighbours import Vectors
from vitrail.search.pile.image_pile import Pile
from vitrail.search.pile.uncertainty import Uncertainty
from vitrail.text import counted

CANDIDATES = 4_000  # images that may be chosen, of large piles
DEMAND = 2_000  # images that want one near them, of large piles
REACH = 0.15  # how fast help falls with the cosine distance d: exp(-d / reach); chosen by benchmarks/suggest.py
FLOOR = 0.02  # what an image of which the model is sure still asks for: it may be wrong


@dataclass(frozen=True)
class Suggestion:
    """Places in the pile, the most helpful first."""

    pile: Pile
    places: list[int]
    uncertainty: NDArray[np.float64] | None  # (N,) from 0 to 1, of the whole pile; None: the model does not say
    answers: dict[int, str] = field(default_factory=dict)  # what the model takes the suggested images for
    unreadable: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def rows(self) -> list[dict[str, Any]]:
        """One for each suggested image, in order."""
        return [
            {
                "image": str(self.pile.paths[place]),
                "uncertainty": "" if self.uncertainty is None else round(float(self.uncertainty[place]), 4),
                "answer": self.answers.get(place, ""),
            }
            for place in self.places
        ]

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {
            "pile": len(self.pile.paths),
            "suggested": self.rows(),
            "unreadable": self.unreadable,
            "notes": self.notes,
        }


def suggest_images(
    vectors: Vectors, pile: Pile, number: int, unsure: Uncertainty | None, labelled: Vectors | None, seed: int = 0
) -> Suggestion:
    """The images of a pile to label next, by the vectors (N, D) of its images and what the model says of them."""
    places = choose_images(vectors, number, None if unsure is None else unsure.values, labelled, seed)
    notes = []
    if unsure is None:
        notes.append("the model does not say how sure it is: these images are diverse, not uncertain")
    if len(places) < number:
        notes.append(f"the pile has only {counted(len(places), 'image')}")
    if unsure is None:
        return Suggestion(pile, places, None, notes=notes)
    answers = {place: unsure.answers[place] for place in places if unsure.answers[place]}
    return Suggestion(pile, places, unsure.values, answers, notes=notes)


def choose_images(
    vectors: Vectors,
    number: int,
    uncertainty: NDArray[np.float64] | None = None,
    labelled: Vectors | None = None,
    seed: int = 0,
) -> list[int]:
    """Places of the images to label next, the most helpful first, among vectors (N, D).

    uncertainty: (N,) of each, from 0 to 1; None: all alike. labelled: vectors (L, D) of images that have a label.
    """
    unit = F.normalize(torch.as_tensor(np.asarray(vectors, np.float32)), dim=1)
    weight = np.ones(len(unit)) if uncertainty is None else np.maximum(uncertainty, FLOOR)
    rng = np.random.default_rng(seed)
    wanting, candidates = (_drawn(weight, most, rng) for most in (DEMAND, max(CANDIDATES, 4 * number)))
    demand = torch.ones(len(wanting)) if len(wanting) < len(unit) else torch.from_numpy(weight).float()
    help_ = _help(unit[candidates], unit[wanting])  # (C, W)
    helped = torch.zeros(len(wanting))
    if labelled is not None and len(labelled):
        known = F.normalize(torch.as_tensor(np.asarray(labelled, np.float32)), dim=1)
        for some in known.split(1024):
            helped = torch.maximum(helped, _help(some, unit[wanting]).amax(0))
    return [int(candidates[place]) for place in _greedy(help_, demand, helped, number)]


def _help(those: Tensor, wanting: Tensor) -> Tensor:
    return torch.exp((those @ wanting.T - 1) / REACH)


def _drawn(weight: NDArray[np.float64], most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """All places, or so many, drawn by their weight."""
    if len(weight) <= most:
        return np.arange(len(weight))
    return np.sort(rng.choice(len(weight), most, replace=False, p=weight / weight.sum()))


def _greedy(help_: Tensor, demand: Tensor, helped: Tensor, number: int) -> list[int]:
    """Rows of help (C, W) that add most, one after another."""
    chosen: list[int] = []
    for _ in range(min(number, len(help_))):
        gain = (help_ - helped).clamp(min=0) @ demand
        gain[chosen] = -1.0
        chosen.append(int(gain.argmax()))
        helped = torch.maximum(helped, help_[chosen[-1]])
    return chosen
