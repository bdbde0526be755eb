"""What Swin costs, from its config alone: the parts of `cost.py` that differ from a ViT's.

Attention is counted as it runs: a grid that windows do not divide is padded, and its padding attended to.
"""

from __future__ import annotations

import math

from vitrail.model.swin.swin_config import HIDDEN, SwinConfig


def encoder_parameters(config: SwinConfig) -> int:
    """All learned values but the head's."""
    inputs = config.channels * math.prod(config.patch_size)
    total = (inputs + config.patch_bias) * config.width + 2 * config.width  # stem, and its norm
    total += sum(depth * _block_parameters(config, stage) for stage, depth in enumerate(config.depths))
    for stage in range(config.stages - 1):
        width = config.stage_width(stage)
        total += 8 * width**2 + 2 * (4 * width if config.version == "v1" else 2 * width)  # merging, and its norm
    return total + 2 * config.pooled_width  # final norm


def _block_parameters(config: SwinConfig, stage: int) -> int:
    width, hidden, heads = config.stage_width(stage), config.mlp_width(stage), config.heads[stage]
    mlp = (width + 1) * hidden + (hidden + 1) * width
    out = (width + 1) * width
    if config.version == "v1":
        qkv = (width + config.qkv_bias) * 3 * width
        positions = _offsets(config, stage) * heads
    else:
        qkv = 3 * width**2 + 2 * width * config.qkv_bias  # keys have no bias
        positions = 3 * HIDDEN + HIDDEN * heads + heads  # MLP, and a scale a head
    return 4 * width + qkv + out + positions + mlp  # 4 width: two norms


def encoder_multiply_adds(config: SwinConfig) -> tuple[int, int]:
    """Of one image, and what is computed once for a whole batch: version 2's positions."""
    each = config.patches * config.channels * math.prod(config.patch_size) * config.width
    once = 0
    for stage, depth in enumerate(config.depths):
        width, tokens, window = config.stage_width(stage), _tokens(config, stage), math.prod(config.stage_window(stage))
        projections = tokens * (4 * width**2 + 2 * width * config.mlp_width(stage))  # Q, K, V, out, MLP
        attention = 2 * _padded_tokens(config, stage) * window * width  # scores Q K^T and weighted sum A V
        each += depth * (projections + attention)
        if stage:
            each += tokens * 2 * width**2  # merging: 4 D/2 in, D out
        if config.version == "v2":
            once += depth * _offsets(config, stage) * HIDDEN * (2 + config.heads[stage])
    return each, once


def attention_entries(config: SwinConfig) -> int:
    """Of one head in one block, of the first stage: each token to those of its window."""
    return _padded_tokens(config, 0) * math.prod(config.stage_window(0))


def peak_values(config: SwinConfig) -> int:
    """The most numbers alive at once in one image's forward pass without gradients, weights aside. The first stage has
    the most tokens; there the stem, the cut into windows, attention and the MLP compete."""
    image = config.channels * math.prod(config.image_size)
    stem = 2 * image + config.patches * config.width
    peaks = [stem]
    for stage, depth in enumerate(config.depths):
        tokens, padded = (count * config.stage_width(stage) for count in _counts(config, stage))
        window = math.prod(config.stage_window(stage))
        shifted = depth > 1 and config.stage_window(stage) != config.stage_grid(stage)
        held = image + config.patches * config.width * (stage > 0 or depth > 1)  # the picture, what the stem made of it
        held += tokens * (2 if config.version == "v1" else 1)  # the block's input, its norm
        # queries, keys and values; shifted or padded on the way; and cut into windows
        cut = 3 * tokens + 3 * padded + (3 * padded if shifted or padded != tokens else 0)
        bias = config.heads[stage] * window**2
        bias += bias * _counts(config, stage)[1] // window if shifted else 0
        normed = 0 if config.version == "v1" else 2 * padded  # new copies of Q and K
        attention = 4 * padded + normed + bias  # cut, and the heads' sums
        mlp = tokens + 2 * _counts(config, stage)[0] * config.mlp_width(stage)  # beside the residual
        peaks.append(held + max(cut, attention, mlp))
    return max(peaks)


def _counts(config: SwinConfig, stage: int) -> tuple[int, int]:
    """A stage's tokens, and those of its whole windows."""
    return _tokens(config, stage), _padded_tokens(config, stage)


def _tokens(config: SwinConfig, stage: int) -> int:
    return math.prod(config.stage_grid(stage))


def _padded_tokens(config: SwinConfig, stage: int) -> int:
    """Those of whole windows."""
    sides = zip(config.stage_grid(stage), config.stage_window(stage), strict=True)
    return math.prod(-(-tokens // window) * window for tokens, window in sides)


def _offsets(config: SwinConfig, stage: int) -> int:
    """How far one token of a window can be from another: (2h-1)(2w-1) ways."""
    return math.prod(2 * side - 1 for side in config.stage_window(stage))
