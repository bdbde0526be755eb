"""The networks, by what their configs say: the one place that knows them all.

A config's JSON names its network in the field `network`; that of a ViT, the first and once the only one, does not.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.encoder import Encoder
from vitrail.model.encoder_config import EncoderConfig, json_object
from vitrail.model.presets import preset
from vitrail.model.swin.swin import Swin
from vitrail.model.swin.swin_config import SwinConfig
from vitrail.model.vit import ViT

CONFIGS: dict[str, type[EncoderConfig]] = {"vit": ViTConfig, "swin": SwinConfig}


def build_network(config: EncoderConfig | str, cnn: nn.Module | None = None) -> Encoder:
    """The network of a config or of a preset's name, with fresh weights. `cnn`: of a ViT with stem "features"."""
    config = preset(config) if isinstance(config, str) else config
    if isinstance(config, ViTConfig):
        return ViT(config, cnn)
    if cnn is not None:
        raise VitrailError("a CNN goes with a ViT whose stem is 'features', and only with it")
    assert isinstance(config, SwinConfig)
    return Swin(config)


def config_from_dict(values: dict[str, Any]) -> EncoderConfig:
    """The config that JSON's object describes, of whichever network; VitrailError for anything else."""
    name = values.get("network", "vit") if isinstance(values, dict) else "vit"
    if not isinstance(name, str) or name not in CONFIGS:
        raise VitrailError(f"the config has network {name!r}; choose one of {', '.join(CONFIGS)}")
    return CONFIGS[name].from_dict(values)


def config_from_json(text: str) -> EncoderConfig:
    """The config that a JSON text describes, of whichever network."""
    return config_from_dict(json_object(text))
