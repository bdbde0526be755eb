"""One file a foreign family. A family is recognised by the names of its tensors, in this order."""

from __future__ import annotations

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.swin.swin_config import SwinConfig
from vitrail.weights.families import (
    google,
    meta,
    perception,
    timm,
    tips,
    torchvision,
    transformers_beit,
    transformers_dinov3,
    transformers_towers,
    transformers_vit,
    transformers_yolos,
)
from vitrail.weights.families.swin import timm_swin, transformers_swin
from vitrail.weights.family import Family, Writer
from vitrail.weights.source import Source

FAMILIES: tuple[Family, ...] = (
    google,
    transformers_yolos,
    transformers_swin,
    transformers_beit,
    transformers_vit,
    transformers_dinov3,
    transformers_towers,
    torchvision,
    tips,
    perception,
    meta,
    timm_swin,
    timm,
)


# Who writes a network's weights for a library.
WRITERS: dict[tuple[str, type[EncoderConfig]], Writer] = {
    ("transformers", ViTConfig): transformers_vit,
    ("transformers", SwinConfig): transformers_swin,
    ("timm", ViTConfig): timm,
    ("timm", SwinConfig): timm_swin,
}


def writer(library: str, config: EncoderConfig) -> Writer:
    """The family that writes weights of such a network for a library."""
    if library == "transformers" and isinstance(config, ViTConfig):  # only DINOv3 has rotary positions there
        if config.is_rotary:
            return transformers_dinov3
        if config.relative_bias:  # and only BEiT relative ones
            return transformers_beit
    return WRITERS[library, type(config)]


def recognise(source: Source, name: str | None = None) -> Family:
    """The family these tensors belong to, or the one the caller named."""
    if name is not None:
        for family in FAMILIES:
            if name == family.NAME:
                return family
        raise VitrailError(f"there is no family {name!r}: choose one of {', '.join(f.NAME for f in FAMILIES)}")
    for family in FAMILIES:
        if family.recognises(source):
            return family
    if any(".lora_A" in tensor for tensor in source.tensors):
        raise VitrailError(
            f"{source.name} is a LoRA adapter without its base: give the folder that holds it as "
            "adapter_model.safetensors beside its adapter_config.json, which names the base"
        )
    from vitrail.weights.families.nearest_family import describe  # it looks at all families

    raise VitrailError(f"{source.name} is of no known family of plain ViT weights: {describe(source.tensors)}")
