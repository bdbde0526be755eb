"""Explanations and the walk for one picture: what `vitrail explain` shows, one method at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.explanation.forward_pass import run_forward_pass
from vitrail.explanation.methods.attention_maps import attention_maps
from vitrail.explanation.methods.occlusion import occlusion
from vitrail.explanation.methods.relevance import relevance
from vitrail.explanation.methods.rollout import rollout
from vitrail.explanation.methods.weighted_attention import weighted_attention
from vitrail.explanation.output.result import METHODS
from vitrail.explanation.target_score import target_score
from vitrail.explanation.token_names import prefix_names
from vitrail.explanation.walk.walk import walk
from vitrail.inference.engine import Engine
from vitrail.report.sections.walk_cards import walk_cards
from vitrail.weights.checkpoint import Checkpoint

WITH_TARGET = ("relevance", "weighted_attention", "occlusion")  # these explain one score an image
# Pictures at a time: images of other requests wait for no more than these. On a CPU eight would double their time; two
# make an explanation a third slower where nobody else is there.
OCCLUDED_BATCH, CPU_OCCLUDED_BATCH = 8, 2
NOT_A_METHOD = ("random",)  # the floor that others are compared with


def available_methods(checkpoint: Checkpoint) -> list[str]:
    """The explanations that fit this model, in the order of a page."""
    config = checkpoint.config
    left_out = set(NOT_A_METHOD)
    if config.pool == "none":  # an answer for every patch: there is no one score to explain
        left_out.update(WITH_TARGET)
    if "[CLS]" not in prefix_names(config):
        left_out.add("attention")
    return [name for name in METHODS if name not in left_out]


def explain_image(
    engine: Engine, images: Tensor, method: str, target: int | None, take_turns: Callable[[], None] = lambda: None
) -> tuple[NDArray[np.float32], int | None]:
    """The map (h, w) of a normalised image (1, C, H, W), and the output that it explains (None: no single one).

    engine: an `explanation_engine`. take_turns: called between forward passes; others may use the model meanwhile.
    """
    model, task, output = engine.checkpoint.model, engine.checkpoint.task, None
    if method == "rollout":
        patches = rollout(model, images).patches
    elif method == "attention":
        [maps] = attention_maps(model, images, "cls", blocks=[-1])
        patches = maps.patches.mean(1)
    else:
        forward_pass = run_forward_pass(model, images, engine.forward)
        score = target_score(model, images, task, target, forward_pass.outputs)
        output = None if score.targets is None else int(score.targets[0])
        take_turns()
        if method == "relevance":
            patches = relevance(model, images, score)
        elif method == "weighted_attention":
            patches = weighted_attention(model, images, score, forward_pass).patches
        else:
            batch = CPU_OCCLUDED_BATCH if engine.backend.device.type == "cpu" else OCCLUDED_BATCH
            patches = occlusion(model, images, score, batch=batch, before_batch=take_turns)
    return patches[0].detach().float().cpu().numpy(), output


def walk_image(
    engine: Engine,
    images: Tensor,
    pixels: NDArray[np.uint8],
    labels: list[str] | None,
    block: int,
    take_turns: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """The steps from pixels to the answer, their figures as pictures. They follow the patch that speaks most for it.

    take_turns: as of `explain_image`."""
    model, task, patch = engine.checkpoint.model, engine.checkpoint.task, (0, 0)
    forward_pass = run_forward_pass(model, images, engine.forward)
    if "relevance" in available_methods(engine.checkpoint):
        score = target_score(model, images, task, outputs=forward_pass.outputs)
        take_turns()
        strength = relevance(model, images, score)[0]  # (h, w)
        row, column = divmod(int(torch.argmax(strength)), strength.shape[1])
        patch = row, column
    take_turns()
    steps = walk(model, images, pixels, labels, task=task, block=block, patch=patch, steps=forward_pass.steps)
    take_turns()
    return walk_cards(steps)
