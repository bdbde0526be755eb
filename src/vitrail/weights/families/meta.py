"""Meta's own weights, .pth: DINO, DINOv2, DINOv3, training checkpoints too, DeiT, MAE. timm's names, but for a few."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.tasks.registry import task_of_outputs
from vitrail.weights.families import timm
from vitrail.weights.families.timm_json import TimmConfig, read_timm_config
from vitrail.weights.family import Foreign
from vitrail.weights.naming import to_ours
from vitrail.weights.preprocessing import IMAGENET, Preprocessing
from vitrail.weights.source import Source

NAME = "meta"

# ---- names of tensors

RENAMED = (  # Meta's own names, and timm's for the same
    (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),  # DINOv2 trains in chunks: blocks.<chunk>.<block>.
    (r"^(blocks\.\d+)\.mlp\.w12\.", r"\1.mlp.fc1."),  # DINOv2's SwiGLU
    (r"^(blocks\.\d+)\.mlp\.w1\.", r"\1.mlp.fc1_g."),  # DINOv3's: the gate, the value
    (r"^(blocks\.\d+)\.mlp\.w2\.", r"\1.mlp.fc1_x."),
    (r"^(blocks\.\d+)\.mlp\.w3\.", r"\1.mlp.fc2."),
    (r"^register_tokens$|^storage_tokens$", "reg_token"),
    (r"^(blocks\.\d+)\.gamma_([12])$", r"\1.ls\2.gamma"),  # DeiT III
)
PRETRAINING = ("mask_token", "decoder_", "local_cls_norm.", "projectors.")  # what only pretraining used
PERIODS = "rope_embed.periods"
MASK = ".attn.qkv.bias_mask"
# A file named as timm names its architectures: vit_small_patch16_224.augreg_in21k.pth
TIMM_FILE = r"(vit|deit|deit3|flexivit|beit)_[a-z0-9]+_(distilled_)?patch\d+"
TIMMS_OWN = ("reg_token", "norm_pre.", "attn_pool.", "blocks.0.attn.q_norm.", "blocks.0.ls1.", "blocks.0.attn.q_bias")


def recognises(source: Source) -> bool:
    """Whether it is a DeiT or DINO as Meta published it: timm's names, but not timm's config.json."""
    of_timm = read_timm_config(source).architecture
    return not of_timm and timm.has_names(timm_names(source.tensors)) and _kind(source) is not None


def convert(source: Source, settings: Mapping[str, Any]) -> Foreign:
    """Meta's tensors, which timm's names fit, with Meta's preprocessing."""
    kind = _kind(source) or (DEIT if "head.weight" in source.tensors else DINO)
    known: dict[str, Any] = {"resample": kind.resample}
    if kind is DINOV3:
        known["rotary_bfloat16"] = _periods_are_rounded(source.tensors)
    tensors = timm_names(source.tensors)
    tensors, config, heads_from = timm.network(tensors, settings, TimmConfig(architecture=kind.architecture), **known)
    return Foreign(
        config=config,
        tensors=to_ours(tensors, timm.names(config), config),
        preprocessing=_preprocessing(kind, config),
        heads_from=heads_from,
        task=task_of_outputs(config.classes),
        notes=_notes(kind, source),
    )


def timm_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Meta's tensors under timm's names, without what only pretraining used."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.startswith(PRETRAINING) or name == PERIODS or name.endswith(MASK):
            continue
        mask = tensors.get(name.removesuffix(".attn.qkv.bias") + MASK)
        if name.endswith(".attn.qkv.bias") and mask is not None:
            tensor = _masked(tensor, mask)
        for of_meta, of_timm in RENAMED:
            name = re.sub(of_meta, of_timm, name)
        renamed[name] = tensor
    return renamed


def _masked(bias: Tensor, mask: Tensor) -> Tensor:
    """DINOv3's keys have no bias: a mask of ones and zeros takes it out."""
    if bias.shape != mask.shape or not mask.isfinite().all():
        raise VitrailError(
            "its bias_mask is NaN or of another shape than the bias, so the file was saved before its weights were "
            "initialised or loaded: save it again from a model that has them"
        )
    return bias * mask


def _periods_are_rounded(tensors: Mapping[str, Tensor]) -> bool:
    """Whether DINOv3's periods, 100^(4i/d), are those of bfloat16, in which it was trained, or of float32."""
    if PERIODS not in tensors:
        return False
    periods = tensors[PERIODS].float().flatten()
    exact = 100.0 ** (torch.arange(len(periods)) / max(len(periods), 1))
    if torch.equal(periods, exact.to(torch.bfloat16).float()):
        return True
    if not torch.allclose(periods, exact, rtol=1e-5):
        raise VitrailError(f"{PERIODS} are not 100^(4i/d), the periods of DINOv3's rotary positions")
    return False


# ---- which of Meta's models it is, and what that tells


@dataclass(frozen=True)
class Kind:
    """How a model takes its positions to another size, and the size of the images it is tested on."""

    name: str
    resample: str
    tested_on: int | None = None  # None: the native size
    architecture: str = ""  # timm's name for one of its kind, where that says more than the names of tensors


DINO = Kind("DINO", "bicubic_offset")
DINOV2 = Kind("DINOv2", "bicubic_offset", 224)  # its native size is 518
DINOV2_REGISTERS = Kind("DINOv2 with registers", "bicubic_antialias", 224)
DINOV3 = Kind("DINOv3", "bicubic", 256, "vit_small_patch16_dinov3")
MAE = Kind("MAE", "bicubic")
IJEPA = Kind("I-JEPA", "bicubic")
DEIT = Kind("DeiT", "bicubic")

MARKS = (  # names that only one of them has, surest first
    (r"^register_tokens$", DINOV2_REGISTERS),
    (r"^storage_tokens$|^rope_embed\.periods$", DINOV3),
    (r"^decoder_", MAE),
    (r"^mask_token$|^blocks\.\d+\.\d+\.|\.mlp\.w12\.", DINOV2),
)


def _kind(source: Source) -> Kind | None:
    """By names of its own, else, since the names are timm's, by how Meta's files are made, else none of Meta's."""
    names = set(source.tensors)
    for mark, kind in MARKS:
        if any(re.search(mark, name) for name in names):
            return kind
    if not source.file.endswith((".pth", ".pt", ".pth.tar")) or any(name.startswith(TIMMS_OWN) for name in names):
        return None
    if source.unwrapped in (("encoder",), ("target_encoder",)) and "cls_token" not in names:
        return IJEPA
    if source.unwrapped in (("model",), ("model_ema",)):
        return MAE if "head.weight" not in names or "fc_norm.weight" in names else DEIT
    if re.search(TIMM_FILE, source.file) or "blocks.0.attn.qkv.bias" not in names:
        return None
    headless = not names & {"head.weight", "fc_norm.weight", "dist_token"}
    return DINO if headless and "state_dict" not in source.unwrapped else None


def _notes(kind: Kind, source: Source) -> list[str]:
    notes = []
    if not any(re.search(mark, name) for mark, _ in MARKS for name in source.tensors):
        notes.append(f"taken for Meta's {kind.name}, whose names are timm's; family='timm' takes it for timm's")
    if source.unwrapped:
        notes.append(f"the weights were found under {' '.join(source.unwrapped)}, what lies beside was left out")
    if any(name.startswith(PRETRAINING) for name in source.tensors):
        notes.append("what only pretraining used was left out: the mask token, and the decoder if there was one")
    if any(name.endswith(MASK) for name in source.tensors):
        notes.append("the biases of its keys were left out, as its bias_mask says")
    return notes


# ---- preprocessing


def _preprocessing(kind: Kind, config: ViTConfig) -> Preprocessing:
    """torchvision's: the shorter side to 256, the middle 224 cut out, or the same proportion of another native size.
    DINOv3 is shown the whole image, squashed to 256."""
    size = config.image_size
    if kind.tested_on:
        down, across = config.patch_size
        size = kind.tested_on // down * down or down, kind.tested_on // across * across or across
    mean, std = IMAGENET
    if kind is DINOV3:
        squashed = Preprocessing(size=size, resize="squash", interpolation="bilinear", mean=mean, std=std)
        return squashed.for_channels(config.channels)
    published = Preprocessing(size=size, crop_fraction=224 / 256, mean=mean, std=std, crop_offset="round")
    return published.for_channels(config.channels)
