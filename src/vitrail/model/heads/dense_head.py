"""Heads that read every patch token, or learned query tokens, instead of one pooled vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.positions import Grid

if TYPE_CHECKING:  # the encoder has a head
    from vitrail.model.encoder import Capture


class EncoderFeatures(NamedTuple):
    """What a dense head works on."""

    images: Tensor  # (B, C, H, W), padded to whole patches
    maps: tuple[Tensor, ...]  # a conv stem's, the finest first, the last over the grid; none of other stems
    grids: tuple[Grid, ...]  # N = h w, of each of `patches`: in a plain ViT all are one
    patches: tuple[Tensor, ...]  # (B, N, D) after each of `out_indices`; the last block's after the final norm
    queries: Tensor  # (B, Q, D): the query tokens at the end, after the final norm
    capture: Capture | None = None  # what a head is asked to keep of its own attention


class DenseHead(nn.Module, ABC):
    """Answers about places. While it evaluates it gives one tensor; in training whatever its task's loss takes."""

    out_indices: tuple[int, ...]  # the blocks whose tokens it reads, in order; the last of them is the last block

    @abstractmethod
    def forward(self, features: EncoderFeatures, denoising_queries: Tensor | None = None) -> Any:
        """denoising_queries: what the task's `denoising_queries` made of the targets; only in training."""

    def initialise(self) -> None:
        """Fresh weights, where they are other than the network's usual ones."""


def build_dense_head(config: EncoderConfig) -> DenseHead:
    """The head that the config names."""
    from vitrail.model.heads.box_heads import BoxDecoder, BoxTokens
    from vitrail.model.heads.mask_heads import LinearMasks, MaskDecoder, MaskQueries

    kinds: dict[str, type[DenseHead]] = {
        "mask_linear": LinearMasks,
        "mask_decoder": MaskDecoder,
        "mask_queries": MaskQueries,
        "box_tokens": BoxTokens,
        "box_decoder": BoxDecoder,
    }
    return kinds[config.head](config)
