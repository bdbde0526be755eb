"""Token merging: similar patches become one token, so that later blocks have less to do (Bolya et al., ICLR 2023).

A photograph repeats itself. Two patches of the same sky carry nearly the same token, and every block computes both. In
two blocks, after a quarter and after half of the depth, patch tokens are merged into others between attention and MLP:

1. The patches are dealt out like cards: every other one is a source, those between are targets.
2. Each source finds the target that is most like it. Alike means that their attention keys, averaged over the heads,
   point the same way (cosine): keys are what a block itself compares tokens by.
3. The sources with the best match give themselves to their targets. A merged token is the mean of all patches that
   went into it, so each token has a size, the number of patches that it stands for. The others keep their order.
4. From then on attention counts a token of size s as the s equal tokens that it replaces: softmax(Q K^T / sqrt(d) +
   log s). Mean and attention pooling weigh tokens by their size in the same way.

No weight changes and nothing is trained. [CLS] and all other prefix tokens are left alone. How many are merged is the
same for every image, so the shapes are those of any network and a compiler can know them beforehand.

The paper merges r tokens in every block. As many in two blocks, r * depth / 2 in each, cost less and change less:
matching is paid twice and not depth times, and after the first blocks keys still tell places rather than contents
(DeiT-Ti on 300 photos, benchmarks/results/merging.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.precision import without_autocast

NEVER = -2.0  # below every cosine


def merges_in_blocks(config: EncoderConfig, r: int, patches: int | None = None) -> list[int]:
    """How many patches each block merges: r * depth in all, in two blocks, but in none more than half of what is there.
    patches: None: the native number.

    The last block of a network that reads [CLS] alone merges none: its patches are not carried on anyway."""
    left, counts = config.patches if patches is None else patches, [0] * config.depth
    carried = config.depth - int(config.pool == "cls")
    places = sorted({config.depth // 4, config.depth // 2} & set(range(carried)))
    for waiting, block in zip(range(len(places), 0, -1), places, strict=True):
        wanted = r * config.depth - sum(counts)
        counts[block] = min(-(-wanted // waiting), left // 2)
        left -= counts[block]
    return counts


def check_merging(config: EncoderConfig, r: int) -> None:
    """Refuse in one sentence what cannot merge tokens: each needs a token for every place of the grid."""
    if r < 0:
        raise VitrailError(f"merge_tokens is {r}: give 0 or more tokens for each block")
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

    counts: Sequence[int]  # how many patches each block merges
    prefix: int  # tokens before the patches, which are never merged
    sizes: Tensor | None = None  # (B, M, 1), float32: how many patches a token stands for; None: each for one

    def merge(self, x: Tensor, keys: Tensor, r: int) -> tuple[Tensor, TokenMerging]:
        """Tokens (B, M, D) with their keys (B, heads, M, d) -> the tokens that are left, (B, M - r, D), with sizes.

        One product with a matrix of zeros and sizes: runtimes have fast ones, and no fast way to scatter rows."""
        if r == 0:
            return x, self
        with without_autocast(x.device):  # which would round every token to bfloat16
            parts = (places(keys.mean(1), r, self.prefix)[:, None] == numbers(x, x.shape[1] - r)[:, None]).float()
            parts = parts if self.sizes is None else parts * self.sizes.transpose(1, 2)  # (B, M - r, M)
            sizes = parts.sum(dim=-1, keepdim=True)
            left = torch.bmm(parts.to(x.dtype), x) / sizes  # (B, M - r, D)
        return left.to(x.dtype), self._replace(sizes=sizes)


def places(metric: Tensor, r: int, prefix: int) -> Tensor:
    """By what tokens are compared by, (B, M, d): the number that each has among the M - r tokens that are left, (B, M).
    The r sources that are most like a target have their target's."""
    tokens = numbers(metric, metric.shape[1])
    patches = tokens - prefix
    sources, targets = (patches >= 0) & (patches % 2 == 0), (patches >= 0) & (patches % 2 == 1)
    directions = F.normalize(metric.float(), dim=-1)
    likeness = torch.bmm(directions, directions.transpose(1, 2))  # (B, M, M), cosines
    best, target = likeness.masked_fill(~(sources[:, None] & targets), NEVER).max(dim=-1)  # (B, M) each
    merged = (best.topk(r).indices[:, :, None] == tokens).int().sum(dim=1)  # (B, M), 1: it goes into its target
    own = (1 - merged).cumsum(dim=1) - 1
    return torch.where(merged > 0, own.gather(1, target), own)


def numbers(like: Tensor, count: int) -> Tensor:
    """0, 1, ..., count - 1."""
    return torch.arange(count, device=like.device)
