"""Google's TIPS v2: a DINOv2 with one register, beside a text tower that is left out. Its pixels are not normalised."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vitrail.errors import VitrailError
from vitrail.weights.families import meta, timm
from vitrail.weights.families.timm_json import TimmConfig
from vitrail.weights.families.transformers_json import Usual, read_preprocessing, tower_config, without_nulls
from vitrail.weights.family import Foreign, notes_on_unused
from vitrail.weights.naming import to_ours
from vitrail.weights.preprocessing import Preprocessing
from vitrail.weights.source import Source

NAME = "tips"

# ---- names of tensors: Meta's for DINOv2, but for two

TOWER = "vision_encoder."
RENAMED = ((r"\.mlp\.c_fc\.", ".mlp.fc1."), (r"\.mlp\.c_proj\.", ".mlp.fc2."))
TEXT = "the text tower was left out: Vitrail reads the image tower"
IGNORED = {"text_encoder.": TEXT, "temperature": ""}

# ---- config and preprocessing

UNCHANGED = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))  # mean and std of pixels in 0..1 that stay as they are
USUAL = Usual(
    1e-6,
    "gelu",
    "bilinear_antialias",
    "Tipsv2",
    Preprocessing(resize="squash", interpolation="bilinear", mean=UNCHANGED[0], std=UNCHANGED[1]),
)
TYPES = ("tipsv2", "tipsv2_vision_model")


def recognises(source: Source) -> bool:
    """Whether it is DINOv2's network in TIPS' tower, or with one register, or by its config.json."""
    if TOWER + "patch_embed.proj.weight" in source.tensors:
        return True
    registers = source.tensors.get("register_tokens")
    one = registers is not None and registers.dim() == 3 and registers.shape[1] == 1  # DINOv2 has four
    return "patch_embed.proj.weight" in source.tensors and (one or source.model_type in TYPES)


def convert(source: Source, settings: Mapping[str, Any]) -> Foreign:
    """The image tower as a config, tensors and preprocessing of ours."""
    inside = {n.removeprefix(TOWER): t for n, t in source.tensors.items() if not n.startswith(tuple(IGNORED))}
    for of_tips, of_meta in RENAMED:
        inside = {re.sub(of_tips, of_meta, name): tensor for name, tensor in inside.items()}
    stored = tower_config(without_nulls(source.config))
    arguments = {"img_size": stored.get("image_size"), "num_heads": stored.get("num_attention_heads")}
    known = {"resample": USUAL.resample, "norm_eps": stored.get("layer_norm_eps", USUAL.norm_eps)}
    if stored.get("hidden_act", USUAL.hidden_act) != USUAL.hidden_act:
        raise VitrailError(f"config.json has hidden_act {stored['hidden_act']!r}; TIPS has gelu")
    tensors, config, heads_from = timm.network(
        meta.timm_names(inside), settings, TimmConfig(arguments=without_nulls(arguments)), **known
    )
    if config.classes:
        raise VitrailError(f"it has a head of {config.classes} outputs, and TIPS has none")
    notes = notes_on_unused(source.tensors, IGNORED)
    notes.append("its register is a second [CLS], of synthetic captions; the answer is the first, of the web's")
    return Foreign(
        config=config,
        tensors=to_ours(tensors, timm.names(config), config),
        preprocessing=read_preprocessing(source.preprocessor, USUAL, config, notes),
        heads_from=heads_from,
        task="embed",
        notes=notes,
    )
