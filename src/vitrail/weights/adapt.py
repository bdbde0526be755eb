"""A loaded model made to fit: another number of classes, of channels, another image size. Each change is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.encoder_config import DENSE, QUERIES_AMONG_TOKENS, EncoderConfig
from vitrail.model.patches import conv_to_linear, linear_to_conv
from vitrail.model.presets import build_network
from vitrail.tasks.registry import DEFAULT_TASK, EMBED, task_of_outputs
from vitrail.weights.checkpoint import Checkpoint, filled_model
from vitrail.weights.preprocessing import Preprocessing

BLOCK_TABLE = "block_positions.table"
PATCHES, PATCH_BIAS = "stem.projection.weight", "stem.projection.bias"
# Convolutions that read the picture, and the running mean of the norm after each: of the stem, of the two decoders.
CONVOLUTIONS = {
    "stem.layers.0.weight": "stem.layers.1.running_mean",
    "head.convs.details.0.conv.weight": "head.convs.details.0.norm.running_mean",
    "head.convs.details.0.weight": "head.convs.details.1.running_mean",
}


def adapt(
    checkpoint: Checkpoint,
    *,
    classes: int | None = None,
    labels: Sequence[str] | None = None,
    channels: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    window_size: int | tuple[int, int] | None = None,
    head: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """A checkpoint with these changed; `.notes` says what that meant for the weights. `window_size`: of a Swin.
    `head`: the fields of the config that describe another kind of head."""
    names = None if labels is None else list(labels)
    if names is not None and classes is not None and len(names) != classes:
        raise VitrailError(f"there are {len(names)} labels for {classes} classes")
    checkpoint = replace(checkpoint, provenance={**checkpoint.provenance, "notes": list(checkpoint.notes)})
    if channels is not None and channels != checkpoint.config.channels:
        checkpoint = _with_channels(checkpoint, channels)
    if image_size is not None:
        checkpoint = _with_image_size(checkpoint, image_size)
    if window_size is not None:
        checkpoint = _with_windows(checkpoint, window_size)
    if names is not None or classes is not None:
        checkpoint = _with_classes(checkpoint, len(names) if names is not None else classes or 0, names, head or {})
    return checkpoint


def without_head(checkpoint: Checkpoint, pool: str | None = None) -> Checkpoint:
    """The same network, weights shared, without its head: its outputs are the pooled vector, (B, D).

    pool: of a ViT, another pooling; "none" gives every patch, (B, N, D).
    """
    config = checkpoint.config
    changes: dict[str, Any] = {"classes": 0, "head_bias": True}
    if config.head not in QUERIES_AMONG_TOKENS:  # queries that go through the encoder are part of what it computes
        changes["head"] = "linear"
    dropped = ["head.", "distillation_head."]
    if pool is not None and pool != config.pool:
        changes["pool"] = pool
        if config.pool == "attention":
            changes["pool_heads"] = None
            dropped.append("pool.")
    changed = config.replace(**changes)
    if not changed.query_tokens:
        dropped.append("queries")
    state = {n: t for n, t in checkpoint.model.state_dict().items() if not n.startswith(tuple(dropped))}
    model = filled_model(changed, state, checkpoint.model.feature_cnn)
    model.merge_tokens = checkpoint.model.merge_tokens
    return replace(checkpoint, model=model, task=EMBED, labels=None, familiarity=None)


def _with_channels(checkpoint: Checkpoint, channels: int) -> Checkpoint:
    config = checkpoint.config
    if checkpoint.model.feature_cnn is not None:
        raise VitrailError(f"channels {channels}: the input channels of stem 'features' are those of its CNN")
    before, after = checkpoint.preprocessing, checkpoint.preprocessing.for_channels(channels)
    changed = config.replace(channels=channels)
    state = checkpoint.model.state_dict()
    if checkpoint.model.first_convolution() is None:  # patches go through one linear map
        weight, shift = adapted_channels(linear_to_conv(state[PATCHES], config.patch_size), before, after)
        state[PATCHES] = conv_to_linear(weight)
        if config.patch_bias or shift.any():  # CLIP's stem has no bias, and now needs one
            changed = changed.replace(patch_bias=True)
            state[PATCH_BIAS] = state.get(PATCH_BIAS, 0) + shift
    for name, norm_mean in CONVOLUTIONS.items():
        if name in state:
            state[name], shift = adapted_channels(state[name], before, after)
            state[norm_mean] = state[norm_mean] - shift
    change = "summed" if channels == 1 else f"repeated and rescaled by {config.channels}/{channels}"
    note = f"the stem's weights for {config.channels} channels were {change} for {channels}"
    adapted = _rebuilt(checkpoint, changed, state, note)
    adapted.preprocessing = after
    return adapted


def adapted_channels(weight: Tensor, before: Preprocessing, after: Preprocessing) -> tuple[Tensor, Tensor]:
    """(D, C, P, P) -> (D, channels, P, P), and what it adds to the outputs, (D,).

    To one channel: a grey picture gives what the same picture gives as RGB. Each channel had a mean and a std of its
    own, so its weights take in the ratio of the stds, and the shift the difference of the means. (A convolution that
    pads with zeros, the mean, meets another one there: at the border it differs by the weights that lie outside.)
    To more channels: they are repeated and rescaled, which keeps the answer to a grey picture if each is repeated
    equally often.
    """
    if after.channels > 1:
        repeats = -(-after.channels // weight.shape[1])
        repeated = weight.repeat(1, repeats, 1, 1)[:, : after.channels]
        return repeated * (weight.shape[1] / after.channels), weight.new_zeros(len(weight))
    mean, std = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (before.mean, before.std))
    exact = weight.double()
    summed = (exact * (after.std[0] / std)).sum(dim=1, keepdim=True)
    shift = (exact * ((after.mean[0] - mean) / std)).sum(dim=(1, 2, 3))
    return summed.to(weight.dtype), shift.to(weight.dtype)


def _with_image_size(checkpoint: Checkpoint, image_size: int | tuple[int, int]) -> Checkpoint:
    config = checkpoint.config
    changed = config.replace(image_size=image_size)
    if changed.image_size == config.image_size and checkpoint.preprocessing.size == config.image_size:
        return checkpoint
    state, resampled = checkpoint.model.state_for(changed)
    note = f"the image size went from {config.image_size} to {changed.image_size}{resampled}"
    adapted = _rebuilt(checkpoint, changed, state, note)
    adapted.preprocessing = checkpoint.preprocessing.replace(size=changed.image_size)
    return adapted


def _with_windows(checkpoint: Checkpoint, window_size: int | tuple[int, int]) -> Checkpoint:
    changed = checkpoint.config.replace(window_size=window_size)
    if changed == checkpoint.config:
        return checkpoint
    state, resampled = checkpoint.model.state_for(changed)
    return _rebuilt(checkpoint, changed, state, f"its windows are of {window_size} now{resampled}")


def _with_classes(
    checkpoint: Checkpoint, classes: int, labels: list[str] | None, head: Mapping[str, Any]
) -> Checkpoint:
    config = checkpoint.config
    same_kind = head.get("head", config.head) == config.head or not {head["head"], config.head} & set(DENSE)
    if same_kind and classes == config.classes and (labels is None or checkpoint.labels in (None, labels)):
        return replace(checkpoint, labels=labels or checkpoint.labels)
    kept = {} if same_kind else dict(head)
    if classes and same_kind and config.head == "mask_queries":
        kept["queries"] = classes
    changed = config.replace(**{**kept, "classes": classes, "head_bias": True})
    dropped = ("head.", "distillation_head.", *(() if changed.queries == config.queries else ("queries",)))
    state = {n: t for n, t in checkpoint.model.state_dict().items() if not n.startswith(dropped)}
    if BLOCK_TABLE in state and changed.prefix != config.prefix:  # other queries, which have no positions there yet
        specials = config.prefix - config.query_tokens  # [CLS], distillation, registers
        table = state[BLOCK_TABLE]
        fresh = table.new_zeros(len(table), changed.prefix - specials, config.width)
        state[BLOCK_TABLE] = torch.cat([table[:, :specials], fresh, table[:, config.prefix :]], dim=1)
    note = f"the backbone was kept, the head for {config.classes} outputs was dropped"
    if classes:
        note = f"the backbone was kept, the head is new: {config.classes} outputs before, {classes} now, untrained"
    adapted = _rebuilt(checkpoint, changed, state, note)
    adapted.labels = labels
    if checkpoint.task in (DEFAULT_TASK, EMBED):
        adapted.task = task_of_outputs(classes)
    return adapted


def _rebuilt(checkpoint: Checkpoint, config: EncoderConfig, state: dict[str, Tensor], note: str) -> Checkpoint:
    """A new model of the changed config with these weights; what `state` lacks is freshly initialised."""
    model = build_network(config, checkpoint.model.feature_cnn)
    model.load_state_dict({**model.state_dict(), **state})
    model.merge_tokens = checkpoint.model.merge_tokens
    parameter = next(iter(checkpoint.model.parameters()))
    checkpoint.notes.append(note)
    if checkpoint.familiarity is not None:
        checkpoint = replace(checkpoint, familiarity=None)  # another network gives other vectors
        checkpoint.notes.append("what it kept of its training pictures, to tell unfamiliar ones, was dropped")
    return replace(checkpoint, model=model.to(parameter.device, parameter.dtype).train(checkpoint.model.training))
