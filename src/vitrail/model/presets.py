"""Sizes as strings: "S/16" is a ViTConfig, "DINOv2-B/14-reg" another, "swin-T" a SwinConfig. And which network a config
is of: this is the one place that knows them all.

A config's JSON names its network in the field `network`; that of a ViT, the first and once the only one, does not.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.encoder_config import EncoderConfig, json_object
from vitrail.model.swin.swin_config import SwinConfig

if TYPE_CHECKING:
    from torch import nn

    from vitrail.model.encoder import Encoder

CONFIGS: dict[str, type[EncoderConfig]] = {"vit": ViTConfig, "swin": SwinConfig}

# width, depth, heads, MLP width; mu is big_vision's tiny one, for tests
SIZES = {
    "mu": (32, 1, 2, 128),
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "H": (1280, 32, 16, 5120),
    "So400m": (1152, 27, 16, 4304),  # the shape-optimised one of SigLIP and TIPS
    "g": (1408, 40, 16, 6144),
}
PATCHES = (8, 14, 16, 32)

# What a family changes in the plain ViT of the same size, and the sizes it was published in.
FAMILIES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "DeiT": ({}, ("Ti/16", "S/16", "B/16")),
    "DINO": ({"classes": 0, "resample": "bicubic_offset"}, ("S/8", "S/16", "B/8", "B/16")),
    "DINOv2": (
        {"classes": 0, "image_size": 518, "layer_scale": 1.0, "resample": "bicubic_offset"},
        ("S/14", "B/14", "L/14", "g/14"),
    ),
    "DINOv3": (  # LingBot-Vision too
        {"classes": 0, "image_size": 256, "positions": "rotary", "registers": 4, "layer_scale": 1e-5, "norm_eps": 1e-5},
        ("S/16", "B/16", "L/16", "H+/16", "7B/16"),
    ),
}
ENDINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "distilled": ("DeiT", {"distillation": True}),
    "reg": ("DINOv2", {"registers": 4, "resample": "bicubic_antialias"}),
}
OWN_SIZES: dict[str, dict[str, Any]] = {  # a family's size that is not the plain ViT's of that letter
    # wider than big_vision's g and gated: 4096 = 2/3 of 4 x 1536, rounded up to a multiple of 8
    "DINOv2-g": {"width": 1536, "depth": 40, "heads": 24, "mlp_width": 4096, "activation": "swiglu"},
    "DINOv3-H+": {"width": 1280, "depth": 32, "heads": 20, "mlp_width": 5120, "activation": "swiglu"},
    "DINOv3-7B": {"width": 4096, "depth": 40, "heads": 32, "mlp_width": 8192, "activation": "swiglu"},
}

# width, depths, heads; mu is a tiny one, for tests
SWIN_SIZES: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {
    "mu": (16, (2, 2), (2, 4)),
    "T": (96, (2, 2, 6, 2), (3, 6, 12, 24)),
    "S": (96, (2, 2, 18, 2), (3, 6, 12, 24)),
    "B": (128, (2, 2, 18, 2), (4, 8, 16, 32)),
    "L": (192, (2, 2, 18, 2), (6, 12, 24, 48)),
}
# What a family has at all sizes, and what at one of them: the published windows.
SWIN_FAMILIES: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "swin": ({"version": "v1", "image_size": 224, "window_size": 7}, {"mu": {"image_size": 64, "window_size": 4}}),
    "swinv2": (
        {"version": "v2", "image_size": 256, "window_size": 8},
        {
            "mu": {"image_size": 64, "window_size": 4},
            "L": {"window_size": 16, "pretrained_windows": (12, 12, 12, 6)},  # trained at 192 px before
        },
    ),
}


def preset_names() -> list[str]:
    """Every preset's name. Plain sizes also take any other whole patch size: "mu/4"."""
    names = [f"{size}/{patch}" for size in SIZES for patch in PATCHES]
    for family, (_, sizes) in FAMILIES.items():
        names += [f"{family}-{size}" for size in sizes]
        for ending, (owner, _) in ENDINGS.items():
            if owner == family:
                names += [f"{family}-{size}-{ending}" for size in sizes]
    return names + [f"{family}-{size}" for family in SWIN_FAMILIES for size in SWIN_SIZES]


def is_preset(name: str) -> bool:
    """Whether the text has a preset's form and a known size: "S/16", "S/7", not "owner/model"."""
    return name in preset_names() or re.fullmatch(rf"({'|'.join(SIZES)})/\d+", name) is not None


def preset(name: str, **changes: Any) -> EncoderConfig:
    """The config of a preset, with some fields changed: `preset("mu/4", image_size=32, classes=10)`."""
    _check(name)
    return swin_preset(name, **changes) if _is_swin(name) else vit_preset(name, **changes)


def swin_preset(name: str, **changes: Any) -> SwinConfig:
    """`preset`, of a Swin."""
    _check(name)
    if not _is_swin(name):
        raise VitrailError(f"the preset {name} is a ViT, not a Swin")
    family, _, size = name.partition("-")
    width, depths, heads = SWIN_SIZES[size]
    of_family, of_size = SWIN_FAMILIES[family]
    fields = {"width": width, "depths": depths, "heads": heads, **of_family, **of_size.get(size, {})}
    return SwinConfig.from_dict(fields | changes)


def vit_preset(name: str, **changes: Any) -> ViTConfig:
    """`preset`, of a ViT."""
    _check(name)
    if _is_swin(name):
        raise VitrailError(f"the preset {name} is a Swin, not a ViT")
    *family, size = name.split("-", 1) if "-" in name else [name]
    size, _, ending = size.partition("-")
    letter, patch = size.split("/")
    own = OWN_SIZES.get(f"{family[0]}-{letter}") if family else None
    fields = dict(own or zip(("width", "depth", "heads", "mlp_width"), SIZES[letter], strict=True))
    fields["patch_size"] = int(patch)
    if family:
        fields |= FAMILIES[family[0]][0]
    if ending:
        fields |= ENDINGS[ending][1]
    if "width" in changes and "mlp_width" not in changes:
        del fields["mlp_width"]  # follows the new width
    return ViTConfig.from_dict(fields | changes)


# ---- networks


def build_network(config: EncoderConfig | str, cnn: nn.Module | None = None) -> Encoder:
    """The network of a config or of a preset's name, with fresh weights. `cnn`: of a ViT with stem "features"."""
    from vitrail.model.swin.swin import Swin  # here, for a config alone needs no torch
    from vitrail.model.vit import ViT

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


def _is_swin(name: str) -> bool:
    return name.partition("-")[0] in SWIN_FAMILIES


def _check(name: str) -> None:
    if not is_preset(name):
        raise VitrailError(f"there is no preset {name!r}: choose one of {', '.join(preset_names())}")
