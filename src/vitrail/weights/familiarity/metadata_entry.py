"""Familiarity as a text in the metadata of a model file.

Not as tensors: a file of weights stays one. Earlier versions of Vitrail, and other programs, read it as before.
"""

from __future__ import annotations

import torch

from vitrail.weights.familiarity.kept_vectors import kept_text, read_kept
from vitrail.weights.familiarity.reference_vectors import Familiarity


def to_text(familiarity: Familiarity) -> str:
    """As JSON, the numbers in base64."""
    return kept_text(familiarity.kept)


def from_text(text: str) -> Familiarity | None:
    """What `to_text` wrote, checked; None where a later version wrote it in another way."""
    kept = read_kept(text)
    return None if kept is None else Familiarity(torch.from_numpy(kept.vectors), torch.from_numpy(kept.held_out))
