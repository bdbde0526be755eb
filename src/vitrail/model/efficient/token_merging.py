"""Token merging: similar patches become one token, so that later blocks have less to do (Bolya et al., ICLR 2023).

A photograph repeats itself. Two patches of the same sky carry nearly the same token, and every block computes both. In
the middle of each block, between attention and MLP, r of the patch tokens are merged into others:

1. The patches are dealt out like cards: every other one is a source, those between are targets.
2. Each source finds the target that is most like it. Alike means that their attention keys, averaged over the heads,
   point the same way (cosine): keys are what a block itself compares tokens by.
3. The r sources with the best match give themselves to their targets. A merged token is the mean of all patches that
   went into it, so each token has a size, the number of patches that it stands for.
4. From then on attention counts a token of size s as the s equal tokens that it replaces: softmax(Q K^T / sqrt(d) +
   log s). Mean and attention pooling weigh tokens by their size in the same way.

No weight changes and nothing is trained. [CLS] and all other prefix tokens are left alone. r is one number for every
image, so the shapes are those of any network, M, M - r, M - 2r, ..., and a compiler can know them beforehand.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.encoder_config import EncoderConfig


def merges_in_blocks(config: EncoderConfig, r: int, patches: int | None = None) -> list[int]:
    """How many patches each block merges: r, but never more than half of them; patches: None: the native number.

    The last block of a network that reads [CLS] alone merges none: its patches are not carried on anyway."""
    left, counts = config.patches if patches is None else patches, []
    for block in range(config.depth):
        unread = config.pool == "cls" and block == config.depth - 1
        counts.append(0 if unread else min(r, left // 2))
        left -= counts[-1]
    return counts


def check_merging(config: EncoderConfig, r: int) -> None:
    """Refuse in one sentence what cannot merge tokens: each needs a token for every place of the grid."""
    if r < 0:
        raise VitrailError(f"merge_tokens is {r}: give 0 or more tokens a block")
    if not isinstance(config, ViTConfig):
        raise VitrailError(
            f"merge_tokens goes with a plain ViT, and not with {config.in_words()}: windows need all of their tokens"
        )
    obstacles = {
        f"the head {config.head}, which answers about places": config.is_dense,
        "pool 'none', which keeps every patch": config.pool == "none",
        "rotary positions, which turn each key by the place of its patch": config.is_rotary,
        "relative positions between patches": config.relative_bias,
        "attention windows": bool(config.attention_window),
        "positions that are added after every block": config.block_positions,
    }
    for what, stands_in_the_way in obstacles.items():
        if stands_in_the_way:
            raise VitrailError(f"merge_tokens does not go with {what}: a merged token has no place of its own")


def attention_bias(sizes: Tensor | None) -> Tensor | None:
    """Sizes (B, M, 1) -> log size, (B, 1, 1, M), which is added to attention's scores: a token of size s counts s
    times."""
    return None if sizes is None else sizes.log().transpose(1, 2)[:, None]


def mean_by_size(x: Tensor, sizes: Tensor) -> Tensor:
    """(B, M, D), (B, M, 1) -> (B, D): the mean of the patches that the tokens stand for."""
    return ((x * sizes).sum(dim=1) / sizes.sum(dim=1)).to(x.dtype)


class TokenMerging(NamedTuple):
    """What a forward pass knows of merging on its way through the blocks."""

    r: int  # tokens merged in each block
    prefix: int  # tokens before the patches, which are never merged
    sizes: Tensor | None = None  # (B, M, 1), float32: how many patches a token stands for; None: each for one

    def merge(self, x: Tensor, keys: Tensor) -> tuple[Tensor, TokenMerging]:
        """Tokens (B, M, D) with their keys (B, heads, M, d) -> the tokens that are left, (B, M - r, D), with sizes."""
        r = min(self.r, (x.shape[1] - self.prefix) // 2)
        if r == 0:
            return x, self
        sizes = x.new_ones(*x.shape[:2], 1, dtype=torch.float32) if self.sizes is None else self.sizes
        pairs = match(keys.mean(1), r, self.prefix)
        tokens, counts = pairs.split(x), pairs.split(sizes)
        grown = pairs.add(counts.targets, counts.merged)  # (B, T, 1), the targets' new sizes
        means = pairs.add(tokens.targets * counts.targets, tokens.merged * counts.merged) / grown  # (B, T, D)
        left = torch.cat([tokens.prefix, tokens.left, means.to(x.dtype)], dim=1)
        return left, self._replace(sizes=torch.cat([counts.prefix, counts.left, grown], dim=1))


class Parts(NamedTuple):
    """Tokens by what becomes of them, (B, ..., C) each."""

    prefix: Tensor  # kept as they are
    left: Tensor  # (B, S - r, C): sources that are kept as they are
    merged: Tensor  # (B, r, C): sources that go into their targets
    targets: Tensor  # (B, T, C)


class Pairs(NamedTuple):
    """Which r tokens of each image are merged, and into which."""

    prefix: int
    r: int
    order: Tensor  # (B, S): the sources, the best matched first, by their number among the sources
    targets: Tensor  # (B, r): the target of each of the first r, by its number among the targets

    def split(self, x: Tensor) -> Parts:
        """(B, M, C) -> the tokens by what becomes of them."""
        batch, tokens, width = x.shape
        first = torch.arange(batch, device=x.device)[:, None] * tokens + self.prefix  # each image's first patch
        rows = (first + 2 * self.order).flatten()
        sources = x.flatten(0, 1).index_select(0, rows).reshape(batch, -1, width)  # whole rows: faster than `gather`
        return Parts(x[:, : self.prefix], sources[:, self.r :], sources[:, : self.r], x[:, self.prefix + 1 :: 2])

    def add(self, targets: Tensor, merged: Tensor) -> Tensor:
        """(B, T, C) with the merged tokens (B, r, C) added to their targets."""
        return targets.scatter_add(1, self.targets[:, :, None].expand(-1, -1, targets.shape[2]), merged)


def match(metric: Tensor, r: int, prefix: int) -> Pairs:
    """Bipartite matching by what tokens are compared by, (B, M, d): the r sources that are most like a target."""
    metric = F.normalize(metric[:, prefix:].float(), dim=-1)
    likeness = metric[:, 0::2] @ metric[:, 1::2].transpose(1, 2)  # (B, S, T), cosines
    best, target = likeness.max(dim=-1)  # (B, S) each
    order = best.topk(best.shape[1]).indices
    return Pairs(prefix, r, order, target.gather(1, order[:, :r]))
