"""What an explanation of one image consists of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.explanation.methods.faithfulness import Curves
from vitrail.explanation.walk.walk_steps import Walk

METHODS = {  # in the order in which a page shows them
    "relevance": "relevance",
    "weighted_attention": "gradient-weighted attention",
    "rollout": "attention rollout",
    "attention": "[CLS] attention, last block",
    "occlusion": "occlusion",
    "random": "a random order",
}
SIGNED = ("relevance", "occlusion")  # these also tell what speaks against the answer
POOL = "the pooling query"  # of a model that pools by attention


@dataclass
class Explanation:
    """The explanation of one image. `maps`: (h, w) each, by the names of METHODS."""

    name: str
    picture: NDArray[np.uint8]  # (H, W, C), as the model saw it
    answer: dict[str, Any] | None  # as `predict` gives it; None for a model of embeddings
    target: str | None  # the class, label or number that is explained
    value: float  # its probability, or the number
    grid: tuple[int, int]
    query: str | None = None  # whose attention; None where the model has no [CLS] and no other was asked for
    blocks: list[int] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    attention: NDArray[np.float32] | None = None  # (blocks, heads, h, w)
    prefix: NDArray[np.float32] | None = None  # (blocks, heads, prefix), with `attention` 1 for each block and head
    prefix_names: list[str] = field(default_factory=list)
    masks: NDArray[np.bool_] | None = None  # (heads, h, w): 60 % of the mass in the last of the blocks
    foreground: NDArray[np.bool_] | None = None  # (h, w)
    components: NDArray[np.float32] | None = None  # (h, w, 3), from 0 to 1
    words: str | None = None  # the answer as a line of text
    maps: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    curves: dict[str, Curves] = field(default_factory=dict)
    best: str | None = None  # the method to trust, where `compare` was asked for
    notes: list[str] = field(default_factory=list)
    walk: Walk | None = None
    every_blocks: list[int] = field(default_factory=list)
    every_query: NDArray[np.uint8] | None = None  # (every_blocks, M, M), each row to its own largest, which is 255
