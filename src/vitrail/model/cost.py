"""What a config costs before a weight exists: parameters, tokens, multiply-adds, memory.

Multiply-adds are those of the matrix products and convolutions of a full forward pass, every token through every block,
then pooling and head: the figure that papers print. (`ViT.forward` itself does less with [CLS] pooling: its last block
carries only [CLS] on.) What Swin's encoder costs is counted in `swin/swin_cost.py`. Norms, softmax, activations and
additions are not counted, nor is a user's CNN, unless it is timm's by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vitrail.model.config import ViTConfig
from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.swin import swin_cost
from vitrail.model.swin.swin_config import SwinConfig

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.model.heads.dense_head import DenseHead

FLOAT32 = 4  # bytes


@dataclass(frozen=True)
class Cost:
    """What one forward pass takes, from the config alone."""

    image_size: tuple[int, int]
    batch: int
    grid: tuple[int, int]
    tokens: int  # prefix + N
    parameters: int
    multiply_adds: int  # of the whole batch
    attention_entries: int  # of one head in one block with full attention: tokens^2; of Swin in its first stage
    window_entries: int | None  # of one head in one block with windows; None where there is none
    weight_bytes: int
    activation_bytes: int  # the most that is alive at once in inference, estimated

    @property
    def memory_bytes(self) -> int:
        """Weights and activations together."""
        return self.weight_bytes + self.activation_bytes

    def to_dict(self) -> dict[str, Any]:
        """Every number by name, with lists for tuples, as JSON has it."""
        values = asdict(self) | {"memory_bytes": self.memory_bytes}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def cost(
    config: EncoderConfig,
    image_size: tuple[int, int] | int | None = None,
    batch: int = 1,
    bytes_per_value: int = FLOAT32,
) -> Cost:
    """The cost of one forward pass, at the config's own image size or at another, to which positions are resampled."""
    at_size = config if image_size is None else config.replace(image_size=image_size)
    return Cost(
        image_size=at_size.image_size,
        batch=batch,
        grid=at_size.grid,
        tokens=at_size.tokens,
        parameters=parameters(config),
        multiply_adds=multiply_adds(at_size, batch),
        attention_entries=attention_entries(at_size),
        window_entries=window_entries(at_size),
        weight_bytes=parameters(config) * bytes_per_value,
        activation_bytes=batch * _peak_values(at_size) * bytes_per_value,
    )


# ---- parameters


def parameters(config: EncoderConfig) -> int:
    """The number of learned values of a model with this config."""
    if isinstance(config, SwinConfig):
        encoder, heads = swin_cost.encoder_parameters(config), int(config.classes > 0)
    else:
        assert isinstance(config, ViTConfig)
        encoder, heads = _encoder_parameters(config), _heads(config)
    if config.is_dense:
        return encoder + sum(parameter.numel() for parameter in _dense_head(config).parameters())
    return encoder + heads * _head_parameters(config)


def _encoder_parameters(config: ViTConfig) -> int:
    width = config.width
    norm = 2 * width
    total = _stem_parameters(config)
    total += config.prefix * width + _position_parameters(config) + config.stem_norm * norm
    total += config.depth * _block_parameters(config)
    if config.final_norm != "none":
        total += 2 * (config.pooled_width if config.final_norm == "pooled" else width)
    if config.pool == "attention":
        mlp = _mlp_parameters(config, config.pool_mlp_width or _mlp_width(config))
        total += width + 4 * _linear(width, width) + norm + mlp  # query, q k v and out, norm, MLP
    if config.block_positions:
        total += (config.depth - 1) * (config.prefix + config.patches) * width
    return total


def _linear(inputs: int, outputs: int, bias: bool = True) -> int:
    return (inputs + bias) * outputs


def _stem_parameters(config: ViTConfig) -> int:
    inputs = _stem_inputs(config)
    total = _linear(inputs, config.width, config.patch_bias)
    if config.cnn is not None:
        from vitrail.model.timm_cnn import parameters_of  # timm is an extra

        total += parameters_of(config)
    for step in _conv_steps(config):
        total += step.weights + 2 * step.outputs  # a batch norm's scale and shift follow each convolution
    return total


def _position_parameters(config: ViTConfig) -> int:
    patches = config.patches if config.positions == "learned" else 0
    return (config.prefix_positions + patches) * config.width


def _block_parameters(config: ViTConfig) -> int:
    width = config.width
    attention = _linear(width, 3 * width, config.qkv_bias) + _linear(width, width)
    if config.qk_norm:
        attention += 4 * config.head_dim
    if config.attention_norm:
        attention += 2 * width
    if config.relative_bias:
        attention += (math.prod(2 * side - 1 for side in config.grid) + 3) * config.heads
    scales = 2 * width if config.layer_scale is not None else 0
    return 4 * width + attention + _mlp_parameters(config, _mlp_width(config)) + scales  # 4 width: two norms


def _mlp_parameters(config: ViTConfig, mlp_width: int) -> int:
    norm = 2 * mlp_width if config.mlp_norm else 0
    return _linear(config.width, _maps_up(config) * mlp_width) + norm + _linear(mlp_width, config.width)


def _head_parameters(config: EncoderConfig) -> int:
    hidden = config.head_width
    if hidden is None:
        return _linear(config.pooled_width, config.classes, config.head_bias)
    return _linear(config.pooled_width, hidden) + _linear(hidden, config.classes, config.head_bias)


# ---- multiply-adds


def multiply_adds(config: EncoderConfig, batch: int = 1) -> int:
    """The multiply-adds of the full forward pass of a batch at the config's image size."""
    if isinstance(config, SwinConfig):
        each, once = swin_cost.encoder_multiply_adds(config)
        answers = int(config.classes > 0)
    else:
        assert isinstance(config, ViTConfig)
        each, once = _encoder_multiply_adds(config)
        answers = _heads(config) * _answers(config)
    each += _dense_head_multiply_adds(config) if config.is_dense else answers * _head_multiply_adds(config)
    return batch * each + once


def merged_multiply_adds(config: EncoderConfig, counts: Sequence[int]) -> int:
    """Of one image, where a plain ViT merges so many tokens in each block (`token_merging.py`): matching included."""
    assert isinstance(config, ViTConfig)
    total, width, tokens = multiply_adds(config), config.width, config.tokens
    left = tokens
    for merged in counts:
        total -= (tokens - left) * 4 * width**2 + 2 * (tokens**2 - left**2) * width  # attention
        total += config.head_dim * left**2 + (left - merged) * left * width if merged else 0  # likeness, and merging
        left -= merged
        total -= (tokens - left) * _mlp_multiply_adds(config, _mlp_width(config))
    return total


def attention_entries(config: EncoderConfig) -> int:
    """How many pairs of tokens one head of one block compares."""
    return swin_cost.attention_entries(config) if isinstance(config, SwinConfig) else config.tokens**2


def _encoder_multiply_adds(config: ViTConfig) -> tuple[int, int]:
    """Of one image, and what is computed once for a whole batch."""
    width, tokens = config.width, config.tokens
    stem = config.patches * _stem_inputs(config) * width
    stem += sum(step.weights * step.positions for step in _conv_steps(config))
    if config.cnn is not None:
        from vitrail.model.timm_cnn import multiply_adds_of

        stem += multiply_adds_of(config)
    projections = 4 * tokens * width**2  # Q, K, V and out
    full = config.block_windows.count(0)
    pairs = full * tokens**2 + (config.depth - full) * (window_entries(config) or 0)
    attention = 2 * pairs * width  # scores Q K^T and weighted sum A V, over all heads, in all blocks
    blocks = config.depth * (projections + tokens * _mlp_multiply_adds(config, _mlp_width(config))) + attention
    if config.pool != "attention" or config.is_dense:
        return stem + blocks, 0
    # one query: K and V of every token, scores and sum, out, MLP; its own projection once for the whole batch
    mlp = _mlp_multiply_adds(config, config.pool_mlp_width or _mlp_width(config))
    pool = 2 * tokens * width**2 + 2 * tokens * width + width**2 + mlp
    return stem + blocks + pool, width**2


def window_entries(config: EncoderConfig) -> int | None:
    """How many pairs of tokens one head of a ViT's block with windows compares; None where there is no such block."""
    if not isinstance(config, ViTConfig) or not any(config.block_windows):
        return None
    from vitrail.model.efficient.window_attention import Windows, compared_pairs  # torch, where windows are asked for

    return compared_pairs(Windows(config.attention_window, config.prefix, config.grid))


def _mlp_multiply_adds(config: ViTConfig, mlp_width: int) -> int:
    """Of one token."""
    return config.width * mlp_width * (_maps_up(config) + 1)


def _head_multiply_adds(config: EncoderConfig) -> int:
    hidden = config.head_width
    if hidden is None:
        return config.pooled_width * config.classes
    return config.pooled_width * hidden + hidden * config.classes


# ---- heads that answer about places: counted, not calculated, for they are of many kinds


def _dense_head(config: EncoderConfig) -> DenseHead:
    import torch  # here, for the arithmetic of all other heads needs none

    from vitrail.model.heads.dense_head import build_dense_head

    with torch.device("meta"):
        return build_dense_head(config)


def _dense_head_multiply_adds(config: EncoderConfig) -> int:
    """Of one image, by torch's counter, on zeros of the right shapes."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from vitrail.model.heads.dense_head import EncoderFeatures

    head = _dense_head(config).to_empty(device="cpu").eval()
    for tensor in (*head.parameters(), *head.buffers()):
        tensor.data.zero_()  # what happens to lie in memory may be no number
    levels = [config.level_of(block) for block in head.out_indices]
    grids = tuple(config.level_grid(level) for level in levels)
    patches = tuple(torch.zeros(1, math.prod(grid), level.width) for level, grid in zip(levels, grids, strict=True))
    images = torch.zeros(1, config.channels, *config.image_size)
    queries = torch.zeros(1, config.query_tokens, levels[-1].width)
    seen = EncoderFeatures(images, _stem_maps(config), grids, patches, queries)
    # plain products, for the counter knows nothing of a CPU's fused attention
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        head(seen)
    return counter.get_total_flops() // 2


def _stem_maps(config: EncoderConfig) -> tuple[Tensor, ...]:
    import torch

    from vitrail.model.patches import conv_stages

    height, width = config.image_size
    stages = conv_stages(config) if isinstance(config, ViTConfig) and config.stem == "conv" else []
    return tuple(torch.zeros(1, s.channels, height // s.cell[0], width // s.cell[1]) for s in stages)


# ---- memory


def _peak_values(config: EncoderConfig) -> int:
    """The most numbers alive at once in one image's forward pass without gradients, weights aside.

    Three moments compete: the stem (image and patches, or feature maps of the conv stem), attention and MLP of a block.
    Fused attention never stores the tokens x tokens map. What the allocator keeps back is not counted.
    """
    if isinstance(config, SwinConfig):
        return swin_cost.peak_values(config)
    assert isinstance(config, ViTConfig)
    width, tokens = config.width, config.tokens
    image = config.channels * math.prod(config.image_size)
    if config.stem == "linear":
        stem = 2 * image + config.patches * width
    else:
        copied = image if config.stem == "conv" else 0  # into the layout that convolutions are fast in
        maps = [copied] + [step.outputs * step.positions for step in _conv_steps(config)]
        stem = image + max(before + 2 * after for before, after in zip(maps, maps[1:] or [image], strict=False))
    turned = 3 * config.is_rotary + 2 * config.qk_norm  # new copies of Q and K
    cut = 3 * any(config.block_windows)  # Q, K and V again, window by window
    biased = tokens**2 * (config.heads + 4) if config.relative_bias else 0  # a number a head and pair, and its place
    normed = 2 * config.attention_norm  # the heads' sums normalised, and mixed
    # the residual, its norm, Q, K, V, and the heads' sums
    attention = biased + tokens * width * (6 + turned + cut + normed)
    # silu(gate) beside gate and value and their product; x beside its sigmoid and their product; x beside gelu(x)
    copies = {"swiglu": 4, "quick_gelu": 3}.get(config.activation, 2)
    wide = max(copies, 2 * config.mlp_norm) * _mlp_width(config)  # the norm comes when the first maps are gone
    mlp = tokens * (3 * width + wide)  # the block's input, the residual, its norm
    return max(stem, image + max(attention, mlp))


# ---- shared


@dataclass(frozen=True)
class _ConvStep:
    weights: int
    outputs: int
    positions: int  # where the kernel is applied in one image


def _conv_steps(config: ViTConfig) -> list[_ConvStep]:
    """The conv stem's convolutions, read off the module itself so that its plan is written down once."""
    if config.stem != "conv":
        return []
    import torch  # here: the cost of any other config is plain arithmetic

    from vitrail.model.patches import ConvStem

    steps = []
    height, width = config.image_size
    with torch.device("meta"):
        stem = ConvStem(config)
    for layer in stem.layers.modules():
        if isinstance(layer, torch.nn.Conv2d):
            height, width = height // layer.stride[0], width // layer.stride[1]
            steps.append(_ConvStep(layer.weight.numel(), layer.out_channels, height * width))
    return steps


def _stem_inputs(config: ViTConfig) -> int:
    """What the stem's linear map reads at each patch."""
    if config.stem == "linear":
        return config.channels * math.prod(config.patch_size)
    if config.feature_channels is not None:
        return config.feature_channels
    return _conv_steps(config)[-1].outputs


def _mlp_width(config: ViTConfig) -> int:
    assert config.mlp_width is not None  # filled in by the config
    return config.mlp_width


def _maps_up(config: ViTConfig) -> int:
    """Of the MLP: SwiGLU has a gate beside the value."""
    return 2 if config.activation == "swiglu" else 1


def _heads(config: ViTConfig) -> int:
    return 0 if config.classes == 0 else 1 + config.distillation


def _answers(config: ViTConfig) -> int:
    """How many vectors the head is applied to."""
    return config.patches if config.pool == "none" else 1
