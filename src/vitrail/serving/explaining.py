"""Explanations and the walk for one picture: what `vitrail explain` shows, one method at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.explanation.attention import attention_maps
from vitrail.explanation.occlusion import occlusion
from vitrail.explanation.question import ask
from vitrail.explanation.relevance import relevance
from vitrail.explanation.result import METHODS
from vitrail.explanation.rollout import rollout
from vitrail.explanation.walk import walk
from vitrail.explanation.weighted import weighted_attention
from vitrail.report.walk_cards import walk_cards
from vitrail.weights.checkpoint import Checkpoint

ASKING = ("relevance", "weighted_attention", "occlusion")  # these explain one answer, and need one an image
NOT_ALONE = ("random",)  # a yardstick, no explanation


def methods_of(checkpoint: Checkpoint) -> list[str]:
    """The explanations that fit this model, in the order of a page."""
    config = checkpoint.config
    left_out = set(NOT_ALONE)
    if config.is_dense or config.pool == "none":  # there is no one number to explain
        left_out.update(ASKING)
    if not config.cls_token:
        left_out.add("attention")
    return [name for name in METHODS if name not in left_out]


def explained(
    checkpoint: Checkpoint, images: Tensor, method: str, target: int | None
) -> tuple[NDArray[np.float32], int | None]:
    """The map (h, w) of a normalised image (1, C, H, W), and the output that it explains (None: no single one)."""
    model, explains = checkpoint.model, None
    if method == "rollout":
        found = rollout(model, images).patches
    elif method == "attention":
        [maps] = attention_maps(model, images, "cls", blocks=[-1])
        found = maps.patches.mean(1)
    else:
        question = ask(model, images, checkpoint.task, target)
        explains = None if question.targets is None else int(question.targets[0])
        if method == "relevance":
            found = relevance(model, images, question)
        elif method == "weighted_attention":
            found = weighted_attention(model, images, question).patches
        else:
            found = occlusion(model, images, question)
    return found[0].detach().float().cpu().numpy(), explains


def walked(
    checkpoint: Checkpoint, images: Tensor, pixels: NDArray[np.uint8], labels: list[str] | None, block: int
) -> list[dict[str, Any]]:
    """The steps from pixels to the answer, their figures as pictures. The patch that is followed speaks most for it."""
    model, patch = checkpoint.model, (0, 0)
    if "relevance" in methods_of(checkpoint):
        strength = relevance(model, images, ask(model, images, checkpoint.task))[0]
        row, column = divmod(int(torch.argmax(strength)), strength.shape[1])
        patch = row, column
    return walk_cards(walk(model, images, pixels, labels, task=checkpoint.task, block=block, patch=patch))
