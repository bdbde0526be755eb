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
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.config import ViTConfig
from vitrail.model.dense import DenseHead, Seen
from vitrail.model.patches import ResidualConv, channels_last
from vitrail.model.positions import Grid

PRIOR = 0.01  # the first guess of a cell's score: else the many empty ones drown the few others (RetinaNet)
POINTS = 5  # a side: where a query looks at its box
SLIM = 4  # it looks at a fourth of the channels there, else looking would cost more than the encoder
WAVES = 8  # octaves of a coordinate
BEHIND = 20.0  # what a proposal that is no peak among its neighbours loses in the choice of queries, in logits
SPARE = 4  # times as many proposals as queries are looked at for such as say the same
SAME = 0.6  # IoU from which on two of a class do


class Guesses(NamedTuple):
    """What the decoder says in training: L decoder blocks, Q queries, P cells, G groups of H hints."""

    places: Tensor  # (P, 2) the cells' centres
    proposed_logits: Tensor  # (B, P, K)
    proposed_boxes: Tensor  # (B, P, 4)
    logits: Tensor  # (L, B, Q, K)
    boxes: Tensor  # (L, B, Q, 4)
    hinted_logits: Tensor  # (L, B, G, H, K)
    hinted_boxes: Tensor  # (L, B, G, H, 4)


class Perceptron(nn.Module):
    """Linear layers with ReLU between, as YOLOS and DETR end in."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    @property
    def last(self) -> nn.Module:
        return self.layers[-1]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.last(x)


class BoxTokens(DenseHead):
    """YOLOS: each query token, having gone through the encoder among the patches, says what it found and where.

    The class after the last means "no object".
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.taps = (config.depth - 1,)
        width = config.width
        self.classify = Perceptron([width, width, width, config.classes + 1])
        self.locate = Perceptron([width, width, width, 4])

    def forward(self, seen: Seen, hints: Tensor | None = None) -> Tensor:
        return torch.cat([self.classify(seen.queries), self.locate(seen.queries).sigmoid()], dim=-1)


class FineGrid(nn.Module):
    """Patch tokens and pixels -> features (B, C, h', w') on a grid of half the patches' size, or the same where patches
    are small already."""

    def __init__(self, config: ViTConfig, channels: int) -> None:
        super().__init__()
        self.times = 2 if min(config.patch_size) > 8 else 1
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.up = nn.Linear(config.width, channels * self.times**2)
        halvings = max(1, int(math.log2(max(1, min(config.patch_size) // self.times))))
        details, before = [], config.channels
        for left in reversed(range(halvings)):
            after = max(16, channels >> (left + 1))
            details += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.GELU()]
            before = after
        self.details = nn.Sequential(*details)
        self.meet = all(2**halvings * self.times == side for side in config.patch_size)  # details and features
        self.join = nn.Conv2d(before, channels, 1, bias=False)
        self.mix = nn.Sequential(nn.BatchNorm2d(channels), ResidualConv(channels), ResidualConv(channels))

    def forward(self, tokens: Tensor, grid: Grid, images: Tensor) -> Tensor:
        coarse = self.up(self.norm(tokens)).transpose(1, 2).unflatten(2, grid)  # (B, 4 C, h, w)
        features = F.pixel_shuffle(coarse, self.times)
        details = self.details(channels_last(images))
        if not self.meet:  # patches whose size is no power of two
            details = F.interpolate(details, features.shape[2:], mode="bilinear", align_corners=False)
        return self.mix(features + self.join(details))


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
        """(B, heads, queries, keys): what each query attends to, to look at. Rows sum to 1."""
        q, k = self.split(self.query(query)).float(), self.split(self.key(key)).float()
        return (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])).softmax(-1)

    def split(self, x: Tensor) -> Tensor:
        """(B, tokens, D) -> (B, heads, tokens, d)"""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class DecoderBlock(nn.Module):
    """Queries see one another, the patches, and the inside of their own boxes. Pre-norm, as the encoder's blocks."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.among = Attention(width, heads)
        self.patches = Attention(width, heads)
        self.inside = nn.Linear(POINTS**2 * (width // SLIM), width)
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

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        assert config.head_width is not None
        self.taps = (config.depth - 1,)
        self.queries, self.classes = config.queries, config.classes
        width = config.head_width
        self.convs = FineGrid(config, width)
        self.propose = nn.Conv2d(width, config.classes + 4, 1)
        self.look = nn.Conv2d(width, width // SLIM, 1)
        self.token = nn.Linear(config.width, width)
        self.token_place = nn.Linear(2 * 2 * WAVES, width)
        self.place = Perceptron([4 * 2 * WAVES, width, width])
        self.standing = nn.Linear(2 * 2 * WAVES, width)
        heads = max(1, width // 32)
        self.blocks = nn.ModuleList(DecoderBlock(width, heads) for _ in range(config.head_depth))
        self.classify = nn.ModuleList(nn.Linear(width, config.classes) for _ in self.blocks)
        self.refine = nn.ModuleList(Perceptron([width, width, 4]) for _ in self.blocks)

    @property
    def last_look(self) -> Attention:
        """The queries' attention to the patches, in the last block."""
        last = self.blocks[-1]
        assert isinstance(last, DecoderBlock)
        return last.patches

    def initialise(self) -> None:
        nn.init.normal_(self.propose.weight, std=0.01)
        assert self.propose.bias is not None
        nn.init.zeros_(self.propose.bias)
        nn.init.constant_(self.propose.bias[: self.classes], math.log(PRIOR / (1 - PRIOR)))
        for last in [*self.classify, *(refine.last for refine in self.refine)]:  # the proposal is the first guess
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(self, seen: Seen, hints: Tensor | None = None) -> Tensor | Guesses:
        """hints (B, G, H, 5): boxes beside the objects, as the task's `hints` makes them; class -1: padding."""
        features = self.convs(seen.patches[-1], seen.grid, seen.images)  # (B, D, h', w')
        places, logits, boxes = self.proposals(features)
        chosen, asked = self.choose(logits, boxes, features)
        mask = None
        if self.training and hints is not None:
            mask = visible(asked.shape[1], hints)
            beside = hints[..., 1:].flatten(1, 2).to(asked)
            hinted = sample(logits.detach().transpose(1, 2).unflatten(2, features.shape[2:]), beside)
            asked, chosen = torch.cat([asked, beside], dim=1), torch.cat([chosen, hinted], dim=1)
        told = self.decode(features, seen, chosen, asked, mask)
        if not self.training:
            return torch.cat(told[-1], dim=-1)
        answers = [torch.stack(part) for part in zip(*told, strict=True)]  # (L, B, Q + G H, K or 4)
        groups = (0, 0) if hints is None else tuple(hints.shape[1:3])
        queries = answers[0].shape[2] - groups[0] * groups[1]
        own, given = zip(*(part.split([queries, groups[0] * groups[1]], dim=2) for part in answers), strict=True)
        hinted_answers = [part.unflatten(2, groups) if hints is not None else part[:, :, None] for part in given]
        return Guesses(places, logits, boxes, own[0], own[1], hinted_answers[0], hinted_answers[1])

    def proposals(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Centres (P, 2) of the cells, and what each of them says: logits (B, P, K) and boxes (B, P, 4)."""
        height, width = features.shape[2:]
        said = self.propose(features).float().flatten(2).transpose(1, 2)  # (B, P, K + 4)
        places = centres((height, width), said)
        cell = said.new_tensor([1 / width, 1 / height])
        # how far the four edges are from the cell's centre; two cells at first
        away = said[..., self.classes :].clamp(max=6).exp() * 2 * cell.repeat(2)
        first, second = (places - away[..., :2]).clamp(min=0), (places + away[..., 2:]).clamp(max=1)
        return places, said[..., : self.classes], torch.cat([(first + second) / 2, second - first], dim=-1)

    def choose(self, logits: Tensor, boxes: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, Q, K) and boxes (B, Q, 4) of the best proposals. Peaks come first, and of them those that overlap
        no better one of their class: others mostly say the same again, and would leave no query for rarer objects."""
        logits, boxes = logits.detach(), boxes.detach()
        score = logits.amax(-1).unflatten(1, features.shape[2:])  # (B, h', w')
        peak = score >= F.max_pool2d(score, 3, 1, 1)
        ranked = torch.where(peak, score, score - BEHIND).flatten(1)
        ranked, logits, boxes = best(SPARE * self.queries, ranked, logits, boxes)
        label = logits.argmax(-1)
        overlap = rivals(logits, boxes, (label[:, :, None] == label[:, None])[:, None])[..., 1]
        return best(self.queries, torch.where(overlap <= SAME, ranked, ranked - BEHIND), logits, boxes)[1:]

    def decode(
        self, features: Tensor, seen: Seen, logits: Tensor, boxes: Tensor, mask: Tensor | None
    ) -> list[tuple[Tensor, Tensor]]:
        """Scores and boxes after each block. Each starts from those of the one before, without sending it its errors
        through them: they are taught on their own."""
        tokens = self.token(seen.patches[-1])  # (B, N, D)
        keys = tokens + self.token_place(waves(centres(seen.grid, boxes)).to(tokens.dtype))
        x = sample(features, boxes)  # (B, Q, D)
        slim = self.look(features)  # (B, D / 4, h', w')
        told = []
        for block, classify, refine in zip(self.blocks, self.classify, self.refine, strict=True):
            place = self.place(waves(boxes).to(tokens.dtype))
            inside = sample(slim, points(boxes)).unflatten(1, (boxes.shape[1], -1)).flatten(2)
            standing = self.standing(waves(rivals(logits, boxes, mask)).to(tokens.dtype))
            x, y = block(x + standing, place, (keys, tokens), inside, mask)
            logits = logits + classify(y).float()
            boxes = moved(boxes, refine(y).float())
            told.append((logits, boxes))
            logits, boxes = logits.detach(), boxes.detach()
        return told


def best(most: int, ranked: Tensor, logits: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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


def waves(coordinates: Tensor) -> Tensor:
    """(..., n) in 0..1 -> (..., 2 n WAVES): sines and cosines, each octave twice as fine as the one before."""
    rates = math.pi * 2.0 ** torch.arange(WAVES, device=coordinates.device, dtype=torch.float32)
    angles = coordinates.float()[..., None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def points(boxes: Tensor) -> Tensor:
    """(B, Q, 4) -> (B, Q S, 2): a square of points in each box, the outermost a little outside, to see its edges."""
    steps = torch.linspace(-0.55, 0.55, POINTS, device=boxes.device)
    offsets = torch.stack([steps.expand(POINTS, -1), steps[:, None].expand(-1, POINTS)], dim=-1).flatten(0, 1)  # (S, 2)
    return (boxes[..., None, :2] + offsets * boxes[..., None, 2:]).flatten(1, 2)


def sample(features: Tensor, places: Tensor) -> Tensor:
    """(B, D, h, w) at (B, n, 2 or 4), x and y first -> (B, n, D), linear between the cells."""
    grid = (2 * places[..., :2] - 1)[:, :, None].float()  # (B, n, 1, 2); half precision would miss the place
    found = F.grid_sample(features.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return found[..., 0].transpose(1, 2).to(features.dtype)


def rivals(logits: Tensor, boxes: Tensor, mask: Tensor | None) -> Tensor:
    """(B, Q, 2): a query's own best score, and the largest IoU of its box with that of a query of a higher one.

    This is what non-maximum suppression looks at. Told so, queries learn in a few steps which of them is to win, which
    attention alone takes long to find out."""
    score = logits.amax(-1)  # (B, Q)
    first, second = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    sides = torch.minimum(second[:, :, None], second[:, None]) - torch.maximum(first[:, :, None], first[:, None])
    shared = sides.clamp(min=0).prod(-1)  # (B, Q, Q)
    area = boxes[..., 2] * boxes[..., 3]
    overlap = shared / (area[:, :, None] + area[:, None] - shared).clamp(min=1e-9)
    better = score[:, None] > score[:, :, None]
    if mask is not None:
        better = better & mask[:, 0]
    return torch.stack([score.sigmoid(), torch.where(better, overlap, 0.0).amax(-1)], dim=-1)


def moved(boxes: Tensor, by: Tensor) -> Tensor:
    """Boxes moved by shares of their own size, and scaled."""
    centre = (boxes[..., :2] + by[..., :2] * boxes[..., 2:]).clamp(0, 1)
    size = (boxes[..., 2:] * by[..., 2:].clamp(-3, 3).exp()).clamp(1e-4, 1)
    return torch.cat([centre, size], dim=-1)


def visible(queries: int, hints: Tensor) -> Tensor:
    """(B, 1, Q + G H, Q + G H): queries see queries only, for there are no hints later; a hint sees its own group."""
    batch, groups, each = hints.shape[:3]
    group = torch.arange(groups, device=hints.device).repeat_interleave(each)
    group = torch.cat([group.new_full((queries,), -1), group])
    same = (group[:, None] == group)[None]  # (1, Q + G H, Q + G H)
    real = torch.cat([hints.new_ones(batch, queries), (hints[..., 0] >= 0).flatten(1)], dim=1).bool()
    itself = torch.eye(len(group), dtype=torch.bool, device=hints.device)  # so that padding sees something
    return ((same & real[:, None]) | itself)[:, None]
