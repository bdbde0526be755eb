"""What an explanation of one image consists of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

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


class QueryGroup(NamedTuple):
    """Some tokens and what they attend to, the mean of the heads."""

    queries: NDArray[np.int64]  # (R,), token numbers
    keys: NDArray[np.int64]  # (K,), the tokens that they see
    levels: NDArray[np.uint8]  # (R, K), each row to its own largest, which is 255


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
    heads: list[int] = field(default_factory=list)  # of the block with most of them; others have the first of these
    attention: list[NDArray[np.float32]] | None = None  # of each block (heads, h, w), on the grid of its stage
    prefix: list[NDArray[np.float32]] | None = None  # (heads, prefix), with `attention` 1 for each block and head
    grids: list[tuple[int, int]] = field(default_factory=list)  # of every block of the network
    windows: list[NDArray[np.int64] | None] = field(
        default_factory=list
    )  # likewise (h, w): tokens with the same number
    # attend to one another; None: all to all
    stages: list[NDArray[np.float32]] = field(default_factory=list)  # relevance as each stage begins, on its own grid
    prefix_names: list[str] = field(default_factory=list)
    masks: NDArray[np.bool_] | None = None  # (heads, h, w): 60 % of the mass in the last of the blocks
    foreground: NDArray[np.bool_] | None = None  # (h, w), on the last block's grid
    components: NDArray[np.float32] | None = None  # (h, w, 3), from 0 to 1
    words: str | None = None  # the answer as a line of text
    maps: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    curves: dict[str, Curves] = field(default_factory=dict)
    best: str | None = None  # the method to trust, where `compare` was asked for
    notes: list[str] = field(default_factory=list)
    walk: Walk | None = None
    every_blocks: list[int] = field(default_factory=list)
    every_query: list[list[QueryGroup]] | None = None  # of each of these blocks
