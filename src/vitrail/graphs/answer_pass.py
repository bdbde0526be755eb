"""What a file for other runtimes computes: from an image to the answer, with what was asked for besides, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vitrail.errors import VitrailError
from vitrail.model.encoder import Capture, Encoder

EMBEDDING, PATCHES, ATTENTION = "embedding", "patches", "attention"
EXTRAS: Mapping[str, str] = {
    EMBEDDING: "(B, D) the vector that the head reads; of a head that reads every patch, the patches' mean",
    PATCHES: "(B, N, D) the patch tokens after the last norm, row by row",
    ATTENTION: "(B, heads, h, w) what [CLS] attends to in the last block; what it lacks to 1 the prefix tokens have",
}
SMALL = 1024  # numbers of a tensor that bfloat16 would not make a file smaller by

Decode = Callable[[Tensor], dict[str, Tensor]]  # a network's outputs (B, ...) -> the answer by name


class Normalisation(NamedTuple):
    """(pixel / 255 - mean) / std for each channel."""

    mean: Sequence[float]
    std: Sequence[float]


class Normalise(nn.Module):
    """uint8 pixels (B, h, w, C) -> normalised images (B, C, h, w)."""

    scale: Tensor  # (1, C, 1, 1)
    shift: Tensor

    def __init__(self, normalisation: Normalisation) -> None:
        super().__init__()
        mean, std = (torch.tensor(values, dtype=torch.float32).view(1, -1, 1, 1) for values in normalisation)
        self.register_buffer("scale", 1 / (255 * std))
        self.register_buffer("shift", -mean / std)

    def forward(self, pixels: Tensor) -> Tensor:
        return pixels.permute(0, 3, 1, 2).float() * self.scale + self.shift


class Answer(nn.Module):
    """A network's outputs (B, ...) -> the answer by name. decode: see `AnswerPass`."""

    def __init__(self, decode: Decode | None) -> None:
        super().__init__()
        self._decode = decode

    def forward(self, outputs: Tensor) -> dict[str, Tensor]:
        return {EMBEDDING: outputs.clone()} if self._decode is None else self._decode(outputs)


class AnswerPass(nn.Module):
    """Images in, answers out, by name.

    decode: what the task makes of the network's outputs; None: there is no head, and they are the embedding.
    extras: names of EXTRAS that are given too. normalisation: it takes uint8 pixels (B, h, w, C) and normalises them
    itself; None: it takes normalised images (B, C, h, w).
    """

    def __init__(
        self,
        network: Encoder,
        decode: Decode | None,
        extras: Sequence[str] = (),
        normalisation: Normalisation | None = None,
    ) -> None:
        super().__init__()
        check_extras(network, extras)
        self.network, self.extras = network, tuple(extras)
        self.answer = Answer(decode)
        self.normalise = None if normalisation is None else Normalise(normalisation)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """What is given, by name: the answer first."""
        half = {name: p.float() for name, p in self.named_parameters() if p.dtype == torch.bfloat16}
        if half:  # weights that are kept in bfloat16 are float32 for this pass
            answers: dict[str, Tensor] = functional_call(self, half, (images,))
            return answers
        if self.normalise is not None:
            images = self.normalise(images)
        capture = Capture(blocks=[-1], all_tokens=PATCHES in self.extras) if self.extras else None
        named: dict[str, Tensor] = self.answer(self.network(images, capture=capture))
        if capture is None:
            return named
        step = capture.steps[self.network.depth - 1]
        for name in self.extras:
            if name == EMBEDDING:
                assert capture.pooled is not None
                named.setdefault(name, capture.pooled)
            elif name == PATCHES:
                assert capture.normed is not None
                named[name] = self.network.split(capture.normed, step.grid).patches
            else:
                [(_, rows)] = step.attention(torch.zeros(1, dtype=torch.long))  # [CLS] is the first token
                named[name] = rows[:, :, 0, self.network.prefix :].unflatten(2, step.grid)
        return named


def check_extras(network: Encoder, extras: Sequence[str]) -> None:
    """Refuse outputs that there are not, in a sentence."""
    for name in extras:
        if name not in EXTRAS:
            raise VitrailError(f"there is no output {name!r}: choose from {', '.join(EXTRAS)}")
    if ATTENTION in extras and not getattr(network.config, "cls_token", False):
        raise VitrailError("the output attention is that of [CLS], which this model has not: leave it out of --outputs")


def weights_in_bfloat16(network: Encoder) -> None:
    """Keep the large weights in bfloat16, half the bytes; `AnswerPass` computes in float32 all the same."""
    for parameter in network.parameters():
        if parameter.dim() > 1 and parameter.numel() >= SMALL:
            parameter.data = parameter.data.to(torch.bfloat16)
