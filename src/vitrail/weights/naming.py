"""One mechanism for every family: a table of names turns their tensors into ours, and ours into theirs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.encoder import Encoder
from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.patches import conv_to_linear, linear_to_conv
from vitrail.model.presets import build_network

PATCHES = "stem.projection.weight"


@dataclass(frozen=True)
class Names:
    """Our name -> theirs. `{i}` is the number of a block; a name without it stands for one block or module alone.

    `modules` stand for their `.weight` and `.bias`; several of theirs are stacked into one of ours (q, k, v -> qkv).
    `tensors` are single ones, whose shapes may differ by dims of 1: our (R, D) is their (1, R, D).
    `exact` are single ones, of the same shape.
    `ignored` are beginnings of their names that the image encoder does not use, such as a text tower.
    """

    modules: Mapping[str, str | tuple[str, ...]]
    tensors: Mapping[str, str]
    ignored: tuple[str, ...] = field(default=())
    exact: Mapping[str, str] = field(default_factory=dict)

    def theirs(self, ours: str) -> tuple[str, ...]:
        """The names on their side that one tensor of ours is made of."""
        if ours in self.exact:
            return (self.exact[ours],)
        alone = ours.rpartition(".")[0] in self.modules
        template = ours if alone else re.sub(r"^blocks\.\d+\.", "blocks.{i}.", ours)
        number = ours.split(".")[1] if template != ours else ""
        if template in self.tensors:
            templates: tuple[str, ...] = (self.tensors[template],)
        else:
            module, _, end = template.rpartition(".")
            if module not in self.modules:
                raise VitrailError(f"this family of weights has no place for {ours}")
            modules = self.modules[module]
            templates = tuple(f"{name}.{end}" for name in ((modules,) if isinstance(modules, str) else modules))
        return tuple(name.replace("{i}", number) for name in templates)


def empty_model(config: EncoderConfig, cnn: torch.nn.Module | None = None) -> Encoder:
    """The model with shapes but no weights yet: for checking names, and for taking loaded tensors as they are."""
    with torch.device("meta"):
        return build_network(config, cnn)


def to_ours(tensors: Mapping[str, Tensor], names: Names, config: EncoderConfig) -> dict[str, Tensor]:
    """Their tensors as our state dict. Every tensor must find its place: nothing is left over, nothing is missing."""
    unused = {name for name in tensors if not name.startswith(names.ignored)} if names.ignored else set(tensors)
    ours: dict[str, Tensor] = {}
    for name, expected in empty_model(config).state_dict().items():
        theirs = names.theirs(name)
        missing = [t for t in theirs if t not in tensors]
        if missing:
            raise VitrailError(f"the weights lack {missing[0]}, which this model needs for {name}")
        parts = [tensors[t] for t in theirs]
        unused.difference_update(theirs)
        if len({part.shape for part in parts}) > 1:
            shapes = ", ".join(str(tuple(part.shape)) for part in parts)
            raise VitrailError(f"{', '.join(theirs)} have shapes {shapes}; they are equal in a plain ViT")
        tensor = parts[0] if len(parts) == 1 else torch.cat([torch.atleast_1d(part) for part in parts])
        if name == PATCHES and tensor.dim() == 4:
            tensor = conv_to_linear(tensor)
        if _squeezed(tensor) != _squeezed(expected):
            raise VitrailError(f"{theirs[0]} has shape {tuple(tensor.shape)}, {name} takes {tuple(expected.shape)}")
        ours[name] = tensor.reshape(expected.shape).contiguous()
    if unused:
        some = ", ".join(sorted(unused)[:3])
        raise VitrailError(f"{len(unused)} tensors have no place in a plain ViT of this family: {some}")
    return ours


def to_theirs(ours: Mapping[str, Tensor], names: Names, config: EncoderConfig) -> dict[str, Tensor]:
    """Our state dict under their names, split and shaped as they have it."""
    theirs: dict[str, Tensor] = {}
    for name, tensor in ours.items():
        targets = names.theirs(name)
        if name == PATCHES:
            tensor = linear_to_conv(tensor, config.patch_size)
        elif re.sub(r"^blocks\.\d+\.", "blocks.{i}.", name) in names.tensors and tensor.dim() == 2:
            tensor = tensor.unsqueeze(0)  # (1, R, D): tokens and positions carry a batch dim there
        for target, part in zip(targets, tensor.chunk(len(targets)), strict=True):
            theirs[target] = part.contiguous().clone()
    return theirs


def _squeezed(tensor: Tensor) -> list[int]:
    return [side for side in tensor.shape if side != 1]
