"""Heads that find objects: learned query tokens in the encoder itself (YOLOS), or a decoder over the patch tokens.

Boxes are cx, cy, w, h in 0..1 of the input. While they evaluate, both heads give (B, Q, C + 4): class logits, then the
box. The decoder (DETR's descendant, in two stages) is built to learn from few pictures in minutes:
1. The patch tokens go to a grid of twice their fineness, together with details from the pixels.
2. Every cell of it proposes a class and a box. This learns fast, for every object has several cells to teach.
3. The best proposals become queries. Each decoder block lets them see one another, the patches, and the features inside
   of their own box, and then corrects score and box. One of several proposals of an object learns to win.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.attention import attention_weights
from vitrail.model.encoder_config import EncoderConfig, Level
from vitrail.model.heads.dense_head import DenseHead, EncoderFeatures
from vitrail.model.heads.mask_heads import sum_of_maps
from vitrail.model.patches import ResidualConv, channels_last
from vitrail.model.positions import Grid
from vitrail.model.precision import in_float32

if TYPE_CHECKING:  # the encoder has a head
    from vitrail.model.encoder import Capture

PRIOR = 0.01  # the initial score of a cell: else the many empty ones drown the few others (RetinaNet)
COARSEST = 16  # pixels a side that a token may stand for, where an encoder has several levels
SAMPLING_POINTS = 5  # a side: where a query samples the features inside of its box
SAMPLING_REDUCTION = 4  # it samples a fourth of the channels, else sampling would cost more than the encoder
SINE_OCTAVES = 8  # octaves of a coordinate
NOT_A_PEAK = 20.0  # logits that a proposal loses in the choice of queries if it is no peak among its neighbours
CANDIDATES = 4  # times as many proposals as queries are searched for duplicates
SAME_IOU = 0.6  # IoU above which two proposals of a class are duplicates


class DecoderOutputs(NamedTuple):
    """Of a training step: L decoder blocks, Q queries, P cells, G groups of H denoising queries."""

    anchors: Tensor  # (P, 2), the cells' centres
    proposed_logits: Tensor  # (B, P, K)
    proposed_boxes: Tensor  # (B, P, 4)
    logits: Tensor  # (L, B, Q, K)
    boxes: Tensor  # (L, B, Q, 4)
    denoised_logits: Tensor  # (L, B, G, H, K)
    denoised_boxes: Tensor  # (L, B, G, H, 4)


class Perceptron(nn.Module):
    """Linear layers with ReLU between, as YOLOS and DETR end in."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    @property
    def last(self) -> nn.Module:
        """The last linear layer."""
        return self.layers[-1]

    def forward(self, x: Tensor) -> Tensor:
        """(..., widths[0]) -> (..., widths[-1])."""
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.last(x)


class BoxTokens(DenseHead):
    """YOLOS: each query token, having gone through the encoder among the patches, says what it found and where.

    The class after the last means "no object".
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        last = config.levels[-1]
        self.out_indices = (last.block,)
        width = last.width
        self.classify = Perceptron([width, width, width, config.classes + 1])
        self.locate = Perceptron([width, width, width, 4])

    def forward(self, features: EncoderFeatures, denoising_queries: Tensor | None = None) -> Tensor:
        """-> (B, Q, K + 1 + 4): logits of the classes and of "no object", then a box in 0..1."""
        logits, boxes = (in_float32(part, features.queries) for part in (self.classify, self.locate))
        return torch.cat([logits, boxes.sigmoid()], dim=-1)


class FineGrid(nn.Module):
    """Patch tokens and pixels -> features (B, C, h', w') on a grid of half the patches' size, or the same where patches
    are small already."""

    def __init__(self, config: EncoderConfig, level: Level, channels: int) -> None:
        super().__init__()
        self.times = 2 if min(level.cell) > 8 else 1
        self.norm = nn.LayerNorm(level.width, eps=config.norm_eps)
        self.up = nn.Linear(level.width, channels * self.times**2)
        halvings = max(1, int(math.log2(max(1, min(level.cell) // self.times))))
        details, before = [], config.channels
        for left in reversed(range(halvings)):
            after = max(16, channels >> (left + 1))
            details += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.GELU()]
            before = after
        self.details = nn.Sequential(*details)
        self.meet = all(2**halvings * self.times == side for side in level.cell)  # details and features
        self.join = nn.Conv2d(before, channels, 1, bias=False)
        self.mix = nn.Sequential(nn.BatchNorm2d(channels), ResidualConv(channels), ResidualConv(channels))

    def forward(self, tokens: Tensor, grid: Grid, images: Tensor) -> Tensor:
        """tokens (B, N, D) over the grid (h, w), images (B, channels, H, W) -> (B, C, h', w')."""
        coarse = self.up(self.norm(tokens)).transpose(1, 2).unflatten(2, grid)  # (B, 4 C, h, w)
        features = F.pixel_shuffle(coarse, self.times)
        details = self.details(channels_last(images))
        if not self.meet or details.shape[2:] != features.shape[2:]:  # patches whose size is no power of two; padding
            details = F.interpolate(details, features.shape[2:], mode="bilinear", align_corners=False)
        return self.mix(features + self.join(details))


class LevelSum(nn.Module):
    """Tokens of an encoder that merges patches: those of one level, to which the coarser ones are added, enlarged."""

    def __init__(self, config: EncoderConfig, level: Level, coarser: list[Level]) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(one.width, eps=config.norm_eps) for one in coarser)
        self.layers = nn.ModuleList(nn.Linear(one.width, level.width) for one in coarser)

    def forward(self, features: EncoderFeatures) -> Tensor:
        """-> (B, N, D) on the first of the features' grids."""
        first, *others = features.patches
        added = [layer(norm(x)) for layer, norm, x in zip(self.layers, self.norms, others, strict=True)]
        return sum_of_maps([first, *added], features.grids).flatten(2).transpose(1, 2)


def levels_from(config: EncoderConfig, coarsest: int) -> list[Level]:
    """The encoder's levels from the one on whose cells are largest, but not larger than `coarsest` pixels, if any."""
    fitting = [i for i, level in enumerate(config.levels) if max(level.cell) <= coarsest]
    return list(config.levels[fitting[-1] if fitting else 0 :])


class Attention(nn.Module):
    """Multi-head attention from some tokens to others."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """mask (B, 1, queries, keys): True where there is something to see."""
        q, k, v = map(self.split, (self.query(query), self.key(key), self.value(value)))
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))

    def maps(self, query: Tensor, key: Tensor) -> Tensor:
        """(B, heads, queries, keys): what each query attends to, to look at, in float32. Rows sum to 1."""
        return attention_weights(self.split(self.query(query)), self.split(self.key(key)))

    def split(self, x: Tensor) -> Tensor:
        """(B, tokens, D) -> (B, heads, tokens, d)"""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class DecoderBlock(nn.Module):
    """Queries see one another, the patches, and the inside of their own boxes. Pre-norm, as the encoder's blocks."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.among = Attention(width, heads)  # self-attention; the names are those of model files
        self.patches = Attention(width, heads)  # cross-attention
        self.inside = nn.Linear(SAMPLING_POINTS**2 * (width // SAMPLING_REDUCTION), width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(
        self, x: Tensor, place: Tensor, tokens: tuple[Tensor, Tensor], inside: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The queries' content, as it is and normed. x, place (B, Q, D): content and place. tokens: keys
        and values of the patches. inside (B, Q, S D / 4): the features at points of each query's box."""
        y = self.norms[0](x)
        x = x + self.among(y + place, y + place, y, mask)
        x = x + self.inside(inside)
        x = x + self.patches(self.norms[1](x) + place, *tokens)
        x = x + self.down(F.gelu(self.up(self.norms[2](x))))
        return x, self.norms[3](x)


class BoxDecoder(DenseHead):
    """Proposals of every cell, the best of them refined by a few decoder blocks. Scores are sigmoids."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        assert config.head_width is not None
        level, *coarser = levels_from(config, COARSEST)
        self.out_indices = tuple(one.block for one in (level, *coarser))
        self.neck = LevelSum(config, level, coarser) if coarser else None
        self.queries, self.classes = config.queries, config.classes
        width = config.head_width
        self.convs = FineGrid(config, level, width)
        self.propose = nn.Conv2d(width, config.classes + 4, 1)
        self.look = nn.Conv2d(width, width // SAMPLING_REDUCTION, 1)  # what is sampled inside of boxes
        self.token = nn.Linear(level.width, width)
        self.token_place = nn.Linear(2 * 2 * SINE_OCTAVES, width)
        self.place = Perceptron([4 * 2 * SINE_OCTAVES, width, width])
        self.standing = nn.Linear(2 * 2 * SINE_OCTAVES, width)  # of `nms_features`
        heads = max(1, width // 32)
        self.blocks = nn.ModuleList(DecoderBlock(width, heads) for _ in range(config.head_depth))
        self.classify = nn.ModuleList(nn.Linear(width, config.classes) for _ in self.blocks)
        self.refine = nn.ModuleList(Perceptron([width, width, 4]) for _ in self.blocks)

    @property
    def last_cross_attention(self) -> Attention:
        """The queries' attention to the patches, in the last block."""
        last = self.blocks[-1]
        assert isinstance(last, DecoderBlock)
        return last.patches

    def initialise(self) -> None:
        """Objects are rare at first, and every block starts from the proposals as they are."""
        nn.init.normal_(self.propose.weight, std=0.01)
        assert self.propose.bias is not None
        nn.init.zeros_(self.propose.bias)
        nn.init.constant_(self.propose.bias[: self.classes], math.log(PRIOR / (1 - PRIOR)))
        for last in [
            *self.classify,
            *(refine.last for refine in self.refine),
        ]:  # the first block starts from the proposal
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(self, features: EncoderFeatures, denoising_queries: Tensor | None = None) -> Tensor | DecoderOutputs:
        """denoising_queries (B, G, H, 5): class and a box beside an object, made by the task; class -1 is padding."""
        seen = features.patches[0] if self.neck is None else self.neck(features)  # (B, N, D)
        fine = self.convs(seen, features.grids[0], features.images)  # (B, D, h', w')
        anchors, cell_logits, cell_boxes = self.proposals(fine)
        logits, boxes = self.select_queries(cell_logits, cell_boxes, fine)
        mask = None
        if self.training and denoising_queries is not None:
            mask = denoising_mask(boxes.shape[1], denoising_queries)
            noisy_boxes = denoising_queries[..., 1:].flatten(1, 2).to(boxes)  # (B, G H, 4)
            noisy_logits = sample(cell_logits.detach().transpose(1, 2).unflatten(2, fine.shape[2:]), noisy_boxes)
            logits, boxes = torch.cat([logits, noisy_logits], dim=1), torch.cat([boxes, noisy_boxes], dim=1)
        with captured_attention(self.last_cross_attention, features.capture):
            by_block = self.decode(fine, (seen, features.grids[0]), (logits, boxes), mask)
        if not self.training:
            return torch.cat(by_block[-1], dim=-1)
        all_logits, all_boxes = (torch.stack(part) for part in zip(*by_block, strict=True))  # (L, B, Q + G H, K or 4)
        groups = (1, 0) if denoising_queries is None else tuple(denoising_queries.shape[1:3])
        counts = [all_logits.shape[2] - groups[0] * groups[1], groups[0] * groups[1]]
        logits, denoised_logits = all_logits.split(counts, dim=2)
        boxes, denoised_boxes = all_boxes.split(counts, dim=2)
        denoised = denoised_logits.unflatten(2, groups), denoised_boxes.unflatten(2, groups)
        return DecoderOutputs(anchors, cell_logits, cell_boxes, logits, boxes, *denoised)

    def proposals(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Anchors (P, 2), the cells' centres, and each cell's proposal: logits (B, P, K) and boxes (B, P, 4)."""
        height, width = features.shape[2:]
        outputs = in_float32(self.propose, features).float().flatten(2).transpose(1, 2)  # (B, P, K + 4)
        anchors = centres((height, width), outputs)
        cell = outputs.new_tensor([1 / width, 1 / height])
        # the distances of the four edges from the cell's centre, as in FCOS; two cells at first
        logits, distances = outputs.split([self.classes, 4], dim=-1)
        edges = distances.clamp(max=6.0).exp() * 2 * cell.repeat(2)
        first, second = (anchors - edges[..., :2]).clamp(min=0.0), (anchors + edges[..., 2:]).clamp(max=1.0)
        return anchors, logits, torch.cat([(first + second) / 2, second - first], dim=-1)

    def select_queries(self, logits: Tensor, boxes: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, Q, K) and boxes (B, Q, 4) of the best proposals. Peaks come first, and of them those that overlap
        no better one of their class: others are mostly duplicates, and would leave no query for rarer objects."""
        logits, boxes = logits.detach(), boxes.detach()
        score = logits.amax(-1).unflatten(1, features.shape[2:])  # (B, h', w')
        peak = score >= F.max_pool2d(score, 3, 1, 1)
        ranked = torch.where(peak, score, score - NOT_A_PEAK).flatten(1)
        ranked, logits, boxes = top_proposals(CANDIDATES * self.queries, ranked, logits, boxes)
        label = logits.argmax(-1)
        overlap = nms_features(logits, boxes, (label[:, :, None] == label[:, None])[:, None])[..., 1]
        return top_proposals(
            self.queries, torch.where(overlap <= SAME_IOU, ranked, ranked - NOT_A_PEAK), logits, boxes
        )[1:]

    def decode(
        self, fine: Tensor, seen: tuple[Tensor, Grid], start: tuple[Tensor, Tensor], mask: Tensor | None
    ) -> list[tuple[Tensor, Tensor]]:
        """Logits and boxes after each block. Each block starts from those of the one before, detached: gradients do not
        flow from block to block through them. fine: (B, D, h', w'). seen: (B, N, D) and its grid. start: the queries'
        logits and boxes."""
        (patches, grid), (logits, boxes) = seen, start
        tokens = self.token(patches)  # (B, N, D)
        keys = tokens + self.token_place(sine_embedding(centres(grid, boxes)).to(tokens.dtype))
        x = sample(fine, boxes)  # (B, Q, D)
        reduced = self.look(fine)  # (B, D / 4, h', w')
        by_block = []
        for block, classify, refine in zip(self.blocks, self.classify, self.refine, strict=True):
            place = self.place(sine_embedding(boxes).to(tokens.dtype))
            inside = sample(reduced, box_points(boxes)).unflatten(1, (boxes.shape[1], -1)).flatten(2)
            rank = self.standing(sine_embedding(nms_features(logits, boxes, mask)).to(tokens.dtype))  # (B, Q, D)
            x, y = block(x + rank, place, (keys, tokens), inside, mask)
            logits = logits + in_float32(classify, y).float()
            boxes = refine_boxes(boxes, in_float32(refine, y).float())
            by_block.append((logits, boxes))
            logits, boxes = logits.detach(), boxes.detach()
        return by_block


@contextmanager
def captured_attention(attention: Attention, capture: Capture | None) -> Iterator[None]:
    """Inside, the weights of the queries' attention are kept, if the capture asks for them."""
    if capture is None or not capture.query_attention:
        yield
        return

    def keep(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        capture.decoder_attention = attention.maps(*arguments[:2])

    hook = attention.register_forward_pre_hook(keep)
    try:
        yield
    finally:
        hook.remove()


def top_proposals(most: int, ranked: Tensor, logits: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of ranks (B, P), logits (B, P, K) and boxes (B, P, 4) those of the highest rank, at most so many."""
    ranked, chosen = ranked.topk(min(most, ranked.shape[1]), dim=1)
    logits, boxes = (x.gather(1, chosen[..., None].expand(-1, -1, x.shape[2])) for x in (logits, boxes))
    return ranked, logits, boxes


def centres(grid: Grid, like: Tensor) -> Tensor:
    """(h w, 2): x and y of the cells' centres, row by row."""
    height, width = grid
    y = (torch.arange(height, device=like.device, dtype=torch.float32) + 0.5) / height
    x = (torch.arange(width, device=like.device, dtype=torch.float32) + 0.5) / width
    return torch.stack([x.expand(height, -1), y[:, None].expand(-1, width)], dim=-1).flatten(0, 1)


def sine_embedding(coordinates: Tensor) -> Tensor:
    """(..., n) in 0..1 -> (..., 2 n SINE_OCTAVES): sines and cosines, each octave twice as fine as the one before."""
    rates = math.pi * 2.0 ** torch.arange(SINE_OCTAVES, device=coordinates.device, dtype=torch.float32)
    angles = coordinates.float()[..., None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def box_points(boxes: Tensor) -> Tensor:
    """(B, Q, 4) -> (B, Q S, 2): a square of points in each box, the outermost a little outside, to see its edges."""
    steps = torch.linspace(-0.55, 0.55, SAMPLING_POINTS, device=boxes.device)
    offsets = torch.stack(
        [steps.expand(SAMPLING_POINTS, -1), steps[:, None].expand(-1, SAMPLING_POINTS)], dim=-1
    ).flatten(0, 1)  # (S, 2)
    return (boxes[..., None, :2] + offsets * boxes[..., None, 2:]).flatten(1, 2)


def sample(features: Tensor, places: Tensor) -> Tensor:
    """(B, D, h, w) at (B, n, 2 or 4), x and y first -> (B, n, D), linear between the cells."""
    grid = (2 * places[..., :2] - 1)[:, :, None].float()  # (B, n, 1, 2); half precision would miss the place
    values = F.grid_sample(features.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return values[..., 0].transpose(1, 2).to(features.dtype)


def nms_features(logits: Tensor, boxes: Tensor, mask: Tensor | None) -> Tensor:
    """(B, Q, 2): a query's own best score, and the largest IoU of its box with that of a query of a higher one.

    This is what non-maximum suppression decides by. With it as an input, queries learn in a few steps which duplicate
    is to win, which attention alone takes long to find out."""
    score = logits.amax(-1)  # (B, Q)
    first, second = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    sides = torch.minimum(second[:, :, None], second[:, None]) - torch.maximum(first[:, :, None], first[:, None])
    shared = sides.clamp(min=0.0).prod(-1)  # (B, Q, Q)
    area = boxes[..., 2] * boxes[..., 3]
    overlap = shared / (area[:, :, None] + area[:, None] - shared).clamp(min=1e-9)
    better = score[:, None] > score[:, :, None]
    if mask is not None:
        better = better & mask[:, 0]
    return torch.stack([score.sigmoid(), torch.where(better, overlap, 0.0).amax(-1)], dim=-1)


def refine_boxes(boxes: Tensor, deltas: Tensor) -> Tensor:
    """Boxes moved by shares of their own size, and scaled."""
    centre = (boxes[..., :2] + deltas[..., :2] * boxes[..., 2:]).clamp(0.0, 1.0)  # ONNX cannot mix whole numbers in
    size = (boxes[..., 2:] * deltas[..., 2:].clamp(-3.0, 3.0).exp()).clamp(1e-4, 1.0)
    return torch.cat([centre, size], dim=-1)


def denoising_mask(queries: int, denoising_queries: Tensor) -> Tensor:
    """(B, 1, Q + G H, Q + G H): True where attention may look. Queries see queries only, for there are no
    denoising queries in inference; a denoising query sees its own group (DN-DETR)."""
    batch, groups, each = denoising_queries.shape[:3]
    group = torch.arange(groups, device=denoising_queries.device).repeat_interleave(each)
    group = torch.cat([group.new_full((queries,), -1), group])
    same = (group[:, None] == group)[None]  # (1, Q + G H, Q + G H)
    real = torch.cat(
        [denoising_queries.new_ones(batch, queries), (denoising_queries[..., 0] >= 0).flatten(1)], dim=1
    ).bool()
    itself = torch.eye(len(group), dtype=torch.bool, device=denoising_queries.device)  # so that padding sees something
    return ((same & real[:, None]) | itself)[:, None]
