"""MAE: most patches of an image are hidden, and a small decoder paints them from the rest (arXiv:2111.06377).

It makes a good start for fine-tuning, not for search: its features are not told apart by their distance. A conv stem
would see hidden patches through its kernels, so they are painted over before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.loading.rng import step_seed
from vitrail.model.block import Block
from vitrail.model.config import ViTConfig
from vitrail.model.positions import Grid, sincos2d
from vitrail.model.vit import ViT
from vitrail.pretraining.methods.method import Method, Moment

DECODER_DEPTH = 2
EPS = 1e-6  # of a patch's variance


class MaskedAutoencoder(Method):
    """An encoder that sees some patches, and a decoder that is to know the others."""

    def __init__(self, student: ViT, mask: float = 0.75, decoder_depth: int = DECODER_DEPTH) -> None:
        super().__init__()
        config = student.config
        self.student, self.mask = student, mask
        width = max(32, config.width // 2 // 32 * 32)
        plain = ViTConfig(width=width, depth=decoder_depth, heads=width // 32, cls_token=False, pool="mean")
        self.to_decoder = nn.Linear(config.width, width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        self.decoder = nn.ModuleList(Block(plain, 0.0) for _ in range(decoder_depth))
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        down, across = config.patch_size
        self.to_pixels = nn.Linear(width, down * across * config.channels)
        nn.init.normal_(self.mask_token, std=0.02)

    @property
    def encoder(self) -> ViT:
        """The student itself."""
        return self.student

    def forward(self, views: Sequence[Tensor], keep: Tensor | None, moment: Moment) -> Tensor:
        """The first view (B, C, h, w) -> the mean squared error of the hidden patches, each normalised by itself."""
        images, grid = self.student.in_patches(views[0], pad=False)
        shown, hidden = draw_mask(grid, self.mask, step_seed(moment.seed, moment.step), images.device)
        painted = self.decode(self.encode(images, shown, grid), shown, hidden, grid)
        return pixel_loss(painted, patches_of(images, self.student.config.patch_size)[:, hidden])

    def encode(self, images: Tensor, shown: Tensor, grid: Grid) -> Tensor:
        """(B, C, h, w) -> (B, prefix + K, D): the tokens of the K patches that are shown, after the final norm."""
        open_patches = torch.zeros(grid[0] * grid[1], device=images.device)
        open_patches[shown] = 1.0
        window = F.interpolate(open_patches.view(1, 1, *grid), size=images.shape[2:], mode="nearest")
        embedding = self.student.embed(images * window)
        embedding, kept = self.student.keep_patches(embedding, shown)
        return self.student.norm_tokens(self.student.encode(embedding, kept=kept))

    def decode(self, tokens: Tensor, shown: Tensor, hidden: Tensor, grid: Grid) -> Tensor:
        """(B, prefix + K, D) -> what the decoder paints for the hidden patches, (B, H, P P C)."""
        patches = self.to_decoder(tokens[:, self.student.prefix :])  # (B, K, W)
        x = self.mask_token.to(patches.dtype).repeat(len(patches), grid[0] * grid[1], 1)
        x = x.index_copy(1, shown, patches)
        x = x + sincos2d(grid, x.shape[2], x.device).to(x.dtype)
        for block in self.decoder:
            x = block(x, grid=grid)
        return self.to_pixels(self.norm(x)[:, hidden]).float()


def draw_mask(grid: Grid, mask: float, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The numbers of the patches that are shown, and of those that are hidden: the same for a whole batch."""
    patches = grid[0] * grid[1]
    count = min(patches - 1, max(1, round((1 - mask) * patches)))
    order = torch.from_numpy(np.random.default_rng(seed).permutation(patches)).to(device)
    return order[:count].sort().values, order[count:].sort().values


def patches_of(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """(B, C, H, W) -> (B, N, P P C), row by row; a pixel's channels stand together."""
    (down, across), (rows, columns) = patch, (images.shape[2] // patch[0], images.shape[3] // patch[1])
    cut = images.reshape(len(images), images.shape[1], rows, down, columns, across)
    return cut.permute(0, 2, 4, 3, 5, 1).flatten(1, 2).flatten(2)


def pixel_loss(painted: Tensor, patches: Tensor) -> Tensor:
    """Both (B, H, P P C): the mean squared error against patches of mean 0 and variance 1."""
    mean, variance = patches.mean(-1, keepdim=True), patches.var(-1, keepdim=True)
    return (painted - (patches - mean) / (variance + EPS).sqrt()).square().mean()
