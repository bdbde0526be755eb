"""A class for every pixel, from patch tokens: one linear map, a light decoder, or a query a class.

Each gives logits (B, K, h', w') over the patch grid at a resolution of its own, the same in training and evaluation;
whoever reads them resizes. They cover the whole grid: of an input padded to whole patches, the padding too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.config import ViTConfig
from vitrail.model.encoder_config import EncoderConfig, Level
from vitrail.model.heads.dense_head import DenseHead, EncoderFeatures
from vitrail.model.noise import Dropout
from vitrail.model.patches import channels_last, conv_stages
from vitrail.model.positions import Grid
from vitrail.model.precision import in_float32, without_autocast

OUT_INDICES = 4  # blocks whose tokens the decoder reads: early ones know where, late ones know what
FINEST = 2  # pixels a cell of the decoder's answer: half the resolution, a quarter of the work
NARROWEST = 16  # channels
GAIN = 16.0  # of the decoder's logits: a step of AdamW moves a sum over so few channels far less than one over a token


class LinearMasks(DenseHead):
    """x W + b for every patch: one answer a patch. The honest baseline, and the probe of what the encoder knows."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        last = config.levels[-1]
        self.out_indices = (last.block,)
        self.dropout = Dropout(config.head_dropout, "head")
        self.out = nn.Linear(last.width, config.classes, bias=config.head_bias)

    def forward(self, features: EncoderFeatures, denoising_queries: Tensor | None = None) -> Tensor:
        """-> logits (B, K, h, w), one cell a patch."""
        logits = in_float32(self.out, self.dropout(features.patches[-1]))  # (B, N, K)
        return tokens_to_map(logits, features.grids[-1])  # (B, K, h, w)


class MaskDecoder(DenseHead):
    """Tokens of several blocks say what there is, convolutions of the picture itself say where it ends.

    The tokens are summed at the patch grid, those of merged patches enlarged to it. From there the map doubles its
    resolution step by step, and takes in at each step what convolutions saw in the picture at that resolution, as the
    skips of a U-Net do: those of a conv stem, which are there already, or a few small ones of its own.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        assert config.head_width is not None
        levels = levels_to_read(config, OUT_INDICES)
        self.out_indices = tuple(level.block for level in levels)
        self.norms = nn.ModuleList(nn.LayerNorm(level.width, eps=config.norm_eps) for level in levels)
        self.layers = nn.ModuleList(nn.Linear(level.width, config.head_width) for level in levels)
        strides = finer_strides(config.patch_size)
        widths = widths_of(config.head_width, len(strides))
        stem_maps = stem_maps_at(strides, config)
        self.maps = tuple(stem_maps)
        # so named that its kernels go to Muon (training/parameters.py)
        self.convs = UpsamplingDecoder(config.channels, widths, list(stem_maps.values()))
        self.dropout = Dropout(config.head_dropout, "head", channels=True)
        self.out = nn.Conv2d(widths[-1], config.classes, 1, bias=config.head_bias)

    def forward(self, features: EncoderFeatures, denoising_queries: Tensor | None = None) -> Tensor:
        """-> logits (B, K, H / 2, W / 2)."""
        tokens = [layer(norm(x)) for layer, norm, x in zip(self.layers, self.norms, features.patches, strict=True)]
        x = sum_of_maps(tokens, features.grids)  # (B, head_width, h, w), channels last
        x = self.convs(x, features.images, [features.maps[i] for i in self.maps])  # (B, narrow, H / 2, W / 2)
        return GAIN * in_float32(self.out, self.dropout(x))  # (B, K, H / 2, W / 2)

    def initialise(self) -> None:
        """Its last layer is small, so that the first answers are undecided."""
        init_small(self.out)


class MaskQueries(DenseHead):
    """A query token a class goes through the encoder among the patches; a class's mask is where features agree with it.

    EoMT's idea (Kerssies et al. 2025): no decoder but the encoder itself. Simpler here: a query stands for a class, not
    for any one thing, so that the masks are logits of one softmax, and attention is not masked in training.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        assert config.head_width is not None
        self.out_indices = (config.depth - 1,)
        self.layers = nn.ModuleList(  # of the queries: an MLP, as in MaskFormer
            nn.Linear(config.width if i == 0 else config.head_width, config.head_width) for i in range(3)
        )
        self.project = nn.Linear(config.width, config.head_width)
        steps = max(0, min(config.patch_size).bit_length() - 3)  # to 4 pixels a cell, or a little above
        self.convs = nn.ModuleList(UpBlock(config.head_width, config.head_width) for _ in range(steps))
        self.dropout = Dropout(config.head_dropout, "head", channels=True)
        self.bias = nn.Parameter(torch.zeros(config.classes)) if config.head_bias else None

    def forward(self, features: EncoderFeatures, denoising_queries: Tensor | None = None) -> Tensor:
        """-> logits (B, K, h', w'), on a grid of about 4 pixels a cell."""
        queries = features.queries  # (B, K, D)
        for i, layer in enumerate(self.layers):
            queries = layer(F.gelu(queries) if i else queries)  # (B, K, C)
        x = tokens_to_map(self.project(features.patches[-1]), features.grids[-1])  # (B, C, h, w)
        for finer in self.convs:
            x = finer(x)
        x = self.dropout(x)
        kind = self.project.weight.dtype
        with without_autocast(x.device):
            logits = torch.einsum("bkc,bchw->bkhw", queries.to(kind), x.to(kind)) * x.shape[1] ** -0.5
        return logits if self.bias is None else logits + self.bias[:, None, None]

    def initialise(self) -> None:
        """Xavier's weights for the maps of queries and patches."""
        for layer in self.layers:  # of the usual 0.02 three in a row leave next to nothing of what tells queries apart
            nn.init.xavier_uniform_(layer.weight)  # type: ignore[arg-type]
        nn.init.xavier_uniform_(self.project.weight)


class UpsamplingDecoder(nn.Module):
    """A map over the patch grid, widths[0] channels, to half the picture's resolution, widths[-1] channels.

    stem_channels: of the conv stem's maps at each step's resolution; empty: it computes maps of the picture itself.
    """

    def __init__(self, channels: int, widths: list[int], stem_channels: list[int]) -> None:
        super().__init__()
        detail_channels = stem_channels or [
            max(NARROWEST, width // 2) for width in widths[1:]
        ]  # own: a third of what a step takes in
        downward = zip([channels, *reversed(detail_channels)], reversed(detail_channels), strict=False)
        self.details = nn.ModuleList(() if stem_channels else [Convolution(*pair, stride=2) for pair in downward])
        self.steps = nn.ModuleList(UpBlock(*step) for step in zip(widths, widths[1:], detail_channels, strict=False))

    def forward(self, x: Tensor, picture: Tensor, stem_maps: list[Tensor]) -> Tensor:
        """x (B, widths[0], h, w), picture (B, C, H, W) -> (B, widths[-1], H / 2, W / 2)."""
        details = stem_maps or self.picture_maps(picture)
        for step, detail in zip(self.steps, details, strict=True):
            x = step(x, detail)
        return x

    def picture_maps(self, picture: Tensor) -> list[Tensor]:
        """What its own convolutions see in the picture (B, C, H, W) at each resolution, the coarsest first."""
        details = [channels_last(picture)]
        for convolution in self.details:
            details.append(convolution(details[-1]))
        return details[:0:-1]


class Convolution(nn.Module):
    """GELU(BN(conv(x))), 3 x 3."""

    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) -> (B, out, H / stride, W / stride)."""
        return F.gelu(self.norm(self.conv(x)))


class UpBlock(nn.Module):
    """A map at twice the resolution, or at that of the detail it takes in."""

    def __init__(self, channels: int, out: int, detail: int = 0) -> None:
        super().__init__()
        # Narrowed before it is enlarged: the same result for a quarter of the work.
        self.narrow = nn.Conv2d(channels, out, 1, bias=False) if out != channels else None
        self.mix = Convolution(out + detail, out)

    def forward(self, x: Tensor, detail: Tensor | None = None) -> Tensor:
        """(B, channels, h, w) -> (B, out, 2 h, 2 w), or of the detail's height and width."""
        if self.narrow is not None:
            x = self.narrow(x)
        size = (2 * x.shape[2], 2 * x.shape[3]) if detail is None else detail.shape[2:]
        x = F.interpolate(x, size=size, mode="bilinear", align_corners=False)
        return self.mix(x if detail is None else torch.cat([x, detail], dim=1))


def tokens_to_map(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, N, C) -> (B, C, h, w), without a copy: tokens are channels last already."""
    return tokens.unflatten(1, grid).permute(0, 3, 1, 2)


def sum_of_maps(tokens: Sequence[Tensor], grids: Sequence[Grid]) -> Tensor:
    """(B, N, C) each -> (B, C, h, w) on the first grid, to which maps of fewer tokens are enlarged."""
    if all(grid == grids[0] for grid in grids):
        return tokens_to_map(torch.stack(list(tokens)).sum(0), grids[0])
    maps = [tokens_to_map(x, grid) for x, grid in zip(tokens, grids, strict=True)]
    coarser = [F.interpolate(x, grids[0], mode="bilinear", align_corners=False) for x in maps[1:]]
    return torch.stack([maps[0], *coarser]).sum(0)


def levels_to_read(config: EncoderConfig, count: int) -> list[Level]:
    """What a decoder reads: every level, or of an encoder with one level `count` of its blocks."""
    if len(config.levels) > 1:
        return list(config.levels)
    [level] = config.levels
    return [level._replace(block=block) for block in spread_indices(level.block + 1, count)]


def spread_indices(depth: int, count: int) -> tuple[int, ...]:
    """`count` blocks evenly over the depth, the last block last; all where there are no more. 12 -> 2, 5, 8, 11."""
    count = min(count, depth)
    return tuple(depth * (i + 1) // count - 1 for i in range(count))


def widths_of(width: int, steps: int) -> list[int]:
    """Channels at the patch grid and after each step: a step to four times as many cells halves them."""
    return [max(NARROWEST, width >> step) for step in range(steps + 1)]


def finer_strides(patch_size: tuple[int, int]) -> list[int]:
    """Powers of two below the patch size, down to FINEST: the resolutions between the grid and the answer."""
    strides = [FINEST]
    while 2 * strides[0] < min(patch_size):
        strides.insert(0, 2 * strides[0])
    return strides if min(patch_size) > FINEST else []


def stem_maps_at(strides: list[int], config: EncoderConfig) -> dict[int, int]:
    """Which of the conv stem's maps have these strides, in this order, and their channels; none unless all are there
    (a patch of 14 = 2 x 7 pixels has no map at 4)."""
    if not isinstance(config, ViTConfig) or config.stem != "conv":
        return {}
    stages = {stage.cell: (i, stage.channels) for i, stage in enumerate(conv_stages(config))}
    cells = [(stride, stride) for stride in strides]
    return dict(stages[cell] for cell in cells) if all(cell in stages for cell in cells) else {}


@torch.no_grad()
def init_small(layer: nn.Conv2d) -> None:
    """Small weights for a decoder's last layer, so that the first answers are undecided."""
    nn.init.trunc_normal_(layer.weight, std=0.02 / GAIN, a=-0.04, b=0.04)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
