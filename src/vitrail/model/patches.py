"""Image to patch tokens: (B, C, H, W) -> (B, N, D), N = HW / P^2, patches in row-major order."""

from __future__ import annotations

from itertools import accumulate, zip_longest
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.encoder_config import EncoderConfig


def check_images(images: Tensor, channels: int, patch_size: tuple[int, int]) -> None:
    """Refuse what the stem cannot split, naming both numbers. Nothing is cropped silently."""
    if images.dim() != 4:
        raise VitrailError(f"images have shape (batch, channels, height, width), 4 numbers, not {tuple(images.shape)}")
    if images.shape[1] != channels:
        raise VitrailError(f"the images have {images.shape[1]} channels, the model takes {channels}")
    if not images.is_floating_point():
        raise VitrailError(f"images are floating point, scaled by the model's preprocessing, not {images.dtype}")
    for axis, size, patch in zip(("height", "width"), images.shape[2:], patch_size, strict=True):
        if size == 0:
            raise VitrailError(f"the images are empty: {axis} 0, and a patch needs {patch}")
        if size % patch:
            raise VitrailError(
                f"image {axis} {size} is not divisible by the patch size {patch}: "
                f"resize it, or ask for padding with pad=True"
            )


def pad_to_patches(images: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Zeros below and to the right, up to the next whole patch."""
    down = -images.shape[-2] % patch_size[0]
    right = -images.shape[-1] % patch_size[1]
    return F.pad(images, (0, right, 0, down)) if down or right else images


def patchify(images: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """(B, C, H, W) -> (B, N, P^2 C): each patch flattened row by row, its channels last."""
    batch, channels, height, width = images.shape
    down, across = patch_size
    tiles = images.reshape(batch, channels, height // down, down, width // across, across)
    tiles = tiles.permute(0, 2, 4, 3, 5, 1)  # (B, h, w, P, P, C)
    return tiles.flatten(3).flatten(1, 2)  # (B, N, P^2 C)


def unpatchify(patches: Tensor, grid: tuple[int, int], patch_size: tuple[int, int]) -> Tensor:
    """(B, N, P^2 C) -> (B, C, H, W): the way back."""
    batch, down, across = patches.shape[0], *patch_size
    channels = patches.shape[2] // (down * across)
    tiles = patches.reshape(batch, *grid, down, across, channels)
    tiles = tiles.permute(0, 5, 1, 3, 2, 4)  # (B, C, h, P, w, P)
    return tiles.flatten(4).flatten(2, 3)  # (B, C, H, W)


def conv_to_linear(weight: Tensor) -> Tensor:
    """The weight of a strided convolution (D, C, P, P) as that of the same linear map (D, P^2 C)."""
    return weight.permute(0, 2, 3, 1).reshape(weight.shape[0], -1)


def linear_to_conv(weight: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """(D, P^2 C) -> (D, C, P, P)."""
    return weight.reshape(weight.shape[0], *patch_size, -1).permute(0, 3, 1, 2)


def channels_last(images: Tensor) -> Tensor:
    """The memory order that convolutions on a CPU are fast in; every layer after keeps it.

    Grey images are in both orders at once, and are taken for channels first unless the strides say otherwise.
    """
    if images.shape[1] == 1:
        return images.contiguous().squeeze(1).unsqueeze(-1).movedim(-1, 1)
    return images.contiguous(memory_format=torch.channels_last)


class LinearStem(nn.Module):
    """x W_E + b_E: every patch flattened and sent through one shared linear map, no activation."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.patch_size = config.patch_size
        pixels = config.patch_size[0] * config.patch_size[1] * config.channels
        self.projection = nn.Linear(pixels, config.width, bias=config.patch_bias)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, N, D)."""
        patches = patchify(images, self.patch_size)  # (B, N, P^2 C)
        return self.projection(patches)  # (B, N, D)


class ResidualConv(nn.Module):
    """x + GELU(BN(conv(x))), 3 x 3, the shape is kept."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) -> the same shape."""
        return x + F.gelu(self.norm(self.conv(x)))


class ConvStem(nn.Module):
    """Convolutions whose strides multiply to the patch size, then the linear map: trains better on little data.

    One convolution for each prime factor of the patch size (16 = 2 x 2 x 2 x 2), the width doubling up to D, each
    followed by `stem_blocks` residual ones; with wide maps the first step takes two factors, and the width begins at
    D / 2. What stands after each of these stages is a map of the picture, which a head may read for what is finer than
    a patch.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = config.channels
        for stride, _, out in conv_stages(config):
            kernel = [max(3, side | 1) for side in stride]  # odd, and no narrower than the step
            padding = [(k - side + 1) // 2 for k, side in zip(kernel, stride, strict=True)]
            layers.append(nn.Conv2d(channels, out, kernel, stride, padding, bias=False))  # type: ignore[arg-type]
            layers += [nn.BatchNorm2d(out), nn.GELU()]
            layers += [ResidualConv(out) for _ in range(config.stem_blocks)]
            channels = out
        self.stage = 3 + config.stem_blocks  # layers
        self.layers = nn.Sequential(*layers)
        self.projection = nn.Linear(channels, config.width, bias=config.patch_bias)
        self.frozen = False  # whether the statistics of its norms stay still while the rest is trained

    def train(self, mode: bool = True) -> ConvStem:
        """Frozen, it stays in evaluation: its batch norms keep their statistics."""
        return super().train(mode and not self.frozen)

    @property
    def first_convolution(self) -> nn.Conv2d:
        """The one that reads the image's channels."""
        first = self.layers[0]
        assert isinstance(first, nn.Conv2d)
        return first

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, N, D)."""
        return self.tokens(self.layers(channels_last(images)))

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """After each stage, (B, F, H / s, W / s): the last of them, over the patch grid, is what `tokens` takes."""
        x = channels_last(images)
        maps = []
        for i, layer in enumerate(self.layers, start=1):
            x = layer(x)
            if i % self.stage == 0:
                maps.append(x)
        return tuple(maps)

    def tokens(self, features: Tensor) -> Tensor:
        """The last map (B, F, h, w) -> (B, N, D)."""
        return self.projection(features.flatten(2).transpose(1, 2))  # (B, F, h, w) -> (B, N, D)


class FeatureStem(nn.Module):
    """f_i W_F + b_F: each position of a CNN's feature map becomes a token.

    `cnn` is any module (B, C, H, W) -> (B, F, H / P, W / P). Frozen, its weights, statistics and dropout stay still.
    """

    def __init__(self, config: ViTConfig, cnn: nn.Module, freeze: bool = False) -> None:
        super().__init__()
        assert config.feature_channels is not None
        self.patch_size = config.patch_size
        self.feature_channels = config.feature_channels
        self.cnn = cnn
        self.frozen = freeze
        if freeze:
            cnn.requires_grad_(False).eval()
        self.projection = nn.Linear(config.feature_channels, config.width, bias=config.patch_bias)

    def train(self, mode: bool = True) -> FeatureStem:
        """A frozen CNN stays in evaluation."""
        super().train(mode)
        if self.frozen:
            self.cnn.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, N, D); VitrailError where the CNN's map is not what the config says."""
        features = self.cnn(images)  # (B, F, h, w)
        grid = images.shape[2] // self.patch_size[0], images.shape[3] // self.patch_size[1]
        expected = (images.shape[0], self.feature_channels, *grid)
        if tuple(features.shape) != expected:
            raise VitrailError(f"the CNN's feature map has shape {tuple(features.shape)}, the config says {expected}")
        return self.projection(features.flatten(2).transpose(1, 2))  # (B, N, D)


def build_stem(config: ViTConfig, cnn: nn.Module | None, freeze_cnn: bool) -> nn.Module:
    """The stem that the config names; `cnn` goes with stem "features" and only with it. A CNN of timm that the config
    names is built where none is handed in."""
    if cnn is None and config.cnn is not None:
        from vitrail.model.timm_cnn import build_timm_cnn  # timm is an extra

        cnn = build_timm_cnn(config)
    if (cnn is not None) != (config.stem == "features"):
        raise VitrailError(f"a CNN goes with stem 'features' and only with it; the config has stem {config.stem!r}")
    if cnn is not None:
        return FeatureStem(config, cnn, freeze_cnn)
    return ConvStem(config) if config.stem == "conv" else LinearStem(config)


class ConvStage(NamedTuple):
    """One convolution with a stride of the conv stem, and the map that it gives."""

    stride: tuple[int, int]
    cell: tuple[int, int]  # the picture's pixels that a cell of its map stands for
    channels: int


def conv_stages(config: ViTConfig) -> list[ConvStage]:
    """The stages of the conv stem: the cells of the last one's map are the patches.

    Wide maps: a CPU multiplies faster where there are many channels, and large maps take it long. At 128 px and D = 128
    a training step on half of the tokens multiplies 1.6 times as much as with fine maps, in 1.13 times the time.
    """
    down, across = map(_prime_factors, config.patch_size)
    strides = list(zip_longest(down, across, fillvalue=1)) or [(1, 1)]
    wide = config.stem_maps == "wide" and len(strides) > 2
    if wide:
        (down_1, across_1), (down_2, across_2), *rest = strides
        strides = [(down_1 * down_2, across_1 * across_2), *rest]
    cells = accumulate(strides, lambda cell, stride: (cell[0] * stride[0], cell[1] * stride[1]))
    last = len(strides) - 1
    share = [0.5 + 0.5 * i / last if wide else 0.5 ** (last - i) for i in range(last + 1)]
    widths = [max(8, int(part * config.width)) for part in share]
    return [ConvStage(*stage) for stage in zip(strides, cells, widths, strict=True)]


def _prime_factors(number: int) -> list[int]:
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors


def images_from(pixels: Tensor) -> Tensor:
    """(H, W, C) or (B, H, W, C), as pictures are stored -> (B, C, H, W), as the model takes them."""
    batch = pixels.unsqueeze(0) if pixels.dim() == 3 else pixels
    return batch.permute(0, 3, 1, 2).to(torch.get_default_dtype())
