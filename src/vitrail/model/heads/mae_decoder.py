"""The masked autoencoder's other half (MAE): from the tokens of the patches that were seen to the pixels of the others.

    hidden, keep = ...                                          # numbers of patches, (M,) and (K,), M + K = N
    capture = Capture(all_tokens=True)
    model(hide_patches(images, hidden, P), keep=keep, capture=capture)
    predicted = decoder(capture.normed[:, model.prefix :], keep)  # (B, N, P^2 C)
    mae_loss(predicted, images, hidden, P)

The decoder is light, and no part of the model that is trained with it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitrail.model.block import Block
from vitrail.model.config import ViTConfig
from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.patches import patchify
from vitrail.model.positions import sincos2d
from vitrail.model.precision import in_float32

WIDTH, DEPTH = 64, 1  # the encoder is to learn, not the decoder
HEAD_DIM = 32


class MAEDecoder(nn.Module):
    """Tokens of some patches of an encoder (B, K, D) -> pixels of all of its patches (B, N, P^2 C)."""

    def __init__(self, config: EncoderConfig, width: int = WIDTH, depth: int = DEPTH) -> None:
        super().__init__()
        self.embed = nn.Linear(config.levels[-1].width, width)
        self.mask_token = nn.Parameter(torch.empty(1, width))  # stands for every patch that was not seen
        self.positions: Tensor
        self.register_buffer("positions", sincos2d(config.grid, width), persistent=False)  # (N, width)
        own = ViTConfig(width=width, depth=depth, heads=max(1, width // HEAD_DIM), cls_token=False, pool="mean")
        self.blocks = nn.ModuleList(Block(own, 0.0, 0) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=own.norm_eps)
        down, across = config.patch_size
        self.out = nn.Linear(width, down * across * config.channels)
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Fresh weights, as those of the network."""
        nn.init.normal_(self.mask_token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, keep: Tensor) -> Tensor:
        """tokens (B, K, D) of the patches keep (K,), after the encoder's final norm -> (B, N, P^2 C)."""
        seen = self.embed(tokens)  # (B, K, width)
        x = self.mask_token.to(seen.dtype).expand(len(seen), len(self.positions), -1)
        x = x.index_copy(1, keep, seen) + self.positions.to(seen.dtype)  # (B, N, width)
        for block in self.blocks:
            x = block(x)
        return in_float32(self.out, self.norm(x))


def hide_patches(images: Tensor, hidden: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """(B, C, H, W), normalised, with the patches hidden (M,) in the mean colour. A linear stem would not see them
    anyway, where their tokens are dropped; convolutions see over the edges of a patch."""
    down, across = patch_size
    rows, columns = images.shape[2] // down, images.shape[3] // across
    shown = torch.ones(rows * columns, device=images.device, dtype=images.dtype)
    shown[hidden] = 0
    mask = shown.view(rows, 1, columns, 1).expand(-1, down, -1, across).reshape(rows * down, columns * across)
    return images * mask


def mae_loss(predicted: Tensor, images: Tensor, hidden: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """The mean squared error of the hidden patches (M,), each normalised by its own mean and variance, as in the paper;
    but for patches of one pixel, which would have nothing left. predicted: (B, N, P^2 C); images: (B, C, H, W)."""
    target = patchify(images, patch_size)[:, hidden].float()  # (B, M, P^2 C)
    if patch_size != (1, 1):
        mean, variance = target.mean(-1, keepdim=True), target.var(-1, keepdim=True)
        target = (target - mean) / (variance + 1e-6).sqrt()
    return (predicted[:, hidden].float() - target).square().mean()
