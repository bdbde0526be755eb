"""What timm's config.json tells of a model and its tensors do not: some of its fields, labels, preprocessing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.encoder_config import EncoderConfig
from vitrail.weights.preprocessing import CLIP, HALF, IMAGENET, INTERPOLATION, Preprocessing
from vitrail.weights.source import Source

POOLS = {"token": "cls", "avg": "mean", "map": "attention"}
CROP_MODES = {"center": "crop", "squash": "squash", "border": "pad"}

# What an architecture's name tells; a test goes through all plain ViTs of timm 1.0.30.
OTHER_NETWORKS = (
    (r"_rpn_", "norms after its branches"),
    (r"_rope_(mixed|ape|\d)|sapiens2", "rotary positions of its own kind"),
    (r"^beit3_", "two networks in one"),
    (r"eva02_enormous", "norms after its branches"),
)
ACTIVATIONS = (
    (r"quickgelu", "quick_gelu"),
    (r"giantopt|so400m_patch16_siglip|base_patch32_siglip|large_patch16_siglip(_gap)?_512", "gelu_tanh"),
)
HEADS = (
    (r"base_patch16_gap_224", 16),
    (r"huge_plus_patch16_dinov3", 20),
    (r"7b_patch16_dinov3", 32),
    (r"^vit_pe_\w+_gigantic_", 16),
    (r"^test_vit2?$", 2),
    (r"^test_vit", 3),
)


@dataclass(frozen=True)
class TimmConfig:
    """What timm's config.json says of a model. Everything is empty where there is none."""

    architecture: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the model's constructor
    pretrained: Mapping[str, Any] = field(default_factory=dict)  # where it came from, and its preprocessing
    global_pool: str = ""
    label_names: Any = None

    @property
    def image_size(self) -> tuple[int, int] | None:
        """(height, width) that the model was built for, or None."""
        return _pair(self.arguments.get("img_size")) or self.input_size

    @property
    def input_size(self) -> tuple[int, int] | None:
        """(height, width) of the published preprocessing, or None."""
        size = self.pretrained.get("input_size")  # channels, height, width
        return _pair(size[1:]) if isinstance(size, list) else None

    @property
    def heads(self) -> tuple[Any, str]:
        """The number of attention heads, or None, and what it is known from."""
        if "num_heads" in self.arguments:
            return self.arguments["num_heads"], "num_heads in config.json"
        return _named(HEADS, self.architecture), f"timm's {self.architecture}"

    @property
    def activation(self) -> str:
        """As an argument, else by the architecture's name; VitrailError for one that ours lacks."""
        if "act_layer" not in self.arguments:
            return _named(ACTIVATIONS, self.architecture) or "gelu"
        name = self.arguments["act_layer"] or "gelu"
        if name not in ("gelu", "gelu_tanh", "quick_gelu"):
            raise VitrailError(f"config.json has act_layer {name!r}; only gelu, gelu_tanh and quick_gelu are read")
        return name

    def norm_eps(self, stem_norm: bool) -> float:
        """The eps of all norms: timm's 1e-6, or CLIP's 1e-5, which is in the code of its architectures."""
        if "norm_layer" in self.arguments:
            name = str(self.arguments["norm_layer"])
            if name.replace("_", "").lower() not in ("layernorm", "layernormfp32"):
                raise VitrailError(f"config.json has norm_layer {name!r}; only LayerNorm is read")
            return 1e-6
        clip = "_clip_" in self.architecture if self.architecture else stem_norm
        return 1e-5 if clip else 1e-6

    def pool(self, shown: str) -> str:
        """How tokens are pooled: as config.json says, else as the tensors show."""
        if not self.global_pool or shown == "attention":
            return shown
        if self.global_pool not in POOLS:
            raise VitrailError(f"config.json has global_pool {self.global_pool!r}; only {', '.join(POOLS)} are read")
        return POOLS[self.global_pool]

    def labels(self, classes: int) -> list[str] | None:
        """The class names in the order of the outputs, or None where they do not fit the head."""
        labels = self.label_names
        if isinstance(labels, dict):
            labels = [labels.get(str(i)) for i in range(classes)]
        if not isinstance(labels, list) or len(labels) != classes or not all(isinstance(name, str) for name in labels):
            return None
        return labels or None

    def refuse_other_networks(self) -> None:
        """VitrailError for an architecture that is no plain ViT by its name."""
        what = _named(OTHER_NETWORKS, self.architecture)
        if what:
            raise VitrailError(f"timm's {self.architecture} has {what}, and only plain ViTs are read")


def read_timm_config(source: Source) -> TimmConfig:
    """What config.json says; empty where it is not timm's."""
    stored = source.config
    if not isinstance(stored.get("architecture"), str):
        return TimmConfig()
    # in older folders what is now under pretrained_cfg lies beside the architecture
    pretrained = stored.get("pretrained_cfg", stored)
    arguments = stored.get("model_args", {})
    if not isinstance(pretrained, dict) or not isinstance(arguments, dict):
        raise VitrailError("its config.json has pretrained_cfg or model_args that are no objects of named fields")
    return TimmConfig(
        architecture=stored["architecture"],
        arguments=arguments,
        pretrained=pretrained,
        global_pool=str(arguments.get("global_pool", stored.get("global_pool")) or ""),
        label_names=stored.get("label_names", pretrained.get("label_names", pretrained.get("labels"))),
    )


def read_preprocessing(timm_config: TimmConfig, config: EncoderConfig, file: str) -> tuple[Preprocessing, list[str]]:
    """The preprocessing that pretrained_cfg describes, and notes on what was assumed or changed."""
    stored = timm_config.pretrained
    notes: list[str] = []
    mean, std = stored.get("mean"), stored.get("std")
    if mean is None or std is None:
        mean, std = _usual_normalisation(config, file)
        notes.append(f"nothing tells how its pixels were normalised: mean {mean} and std {std} were assumed")
    size = timm_config.input_size or config.image_size
    whole = tuple(max(side // patch, 1) * patch for side, patch in zip(size, config.patch_size, strict=True))
    if whole != size:
        notes.append(f"images are brought to {whole}, whole patches, not to the {size} it was published with")
    resize, fraction = CROP_MODES.get(str(stored.get("crop_mode")), "crop"), _fraction(stored.get("crop_pct"))
    if resize == "pad" and fraction < 1:
        notes.append(f"timm cuts images to the middle {fraction} after {resize}, here they are used whole")
    interpolation = stored.get("interpolation", "bicubic")
    if resize == "crop" and whole[0] != whole[1] and interpolation != "bilinear":
        notes.append(f"timm itself resizes images bilinearly for {whole}, which is no square; here {interpolation}")
    preprocessing = Preprocessing(
        size=(whole[0], whole[1]),
        resize=resize,
        crop_fraction=1.0 if resize == "pad" else fraction,
        interpolation=interpolation if interpolation in INTERPOLATION else "bicubic",  # "random" is for training
        mean=mean,
        std=std,
        crop_offset="round",
    )
    return preprocessing.for_channels(config.channels), notes


def _usual_normalisation(config: EncoderConfig, file: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if not isinstance(config, ViTConfig):  # Swin
        return IMAGENET
    if config.stem_norm:
        return HALF if config.rotary_too else CLIP  # Perception Encoder, and CLIP
    if config.rotary_too:  # EVA-02
        return CLIP
    # DeiT III and DINOv2 have layer scale; DeiT and DINO have only their files' names
    of_meta = config.distillation or config.layer_scale is not None or re.search("deit|dino", file.lower())
    return IMAGENET if of_meta else HALF


def _fraction(crop_pct: Any) -> float:
    return min(crop_pct, 1.0) if isinstance(crop_pct, int | float) else 0.9  # timm's own for its ViTs


def _named(table: Sequence[tuple[str, Any]], architecture: str) -> Any:
    """The first entry whose pattern is found in the architecture's name."""
    return next((value for pattern, value in table if re.search(pattern, architecture)), None)


def _pair(size: Any) -> tuple[int, int] | None:
    pair = (size, size) if isinstance(size, int) else size
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(side, int) for side in pair):
        return None
    return pair[0], pair[1]
