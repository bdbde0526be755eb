"""PEFT's LoRA adapters: a folder with adapter_config.json, merged into the weights of the base it names."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.text import listing
from vitrail.weights import hub
from vitrail.weights.source import FILES as MODEL_FILES
from vitrail.weights.source import Source, read, read_json

CONFIG = "adapter_config.json"
FILES = ("adapter_model.safetensors", "adapter_model.bin")
ROOT = "base_model.model."
PART = re.compile(r"\.lora_(A|B)(?:\.\w+)?(?:\.weight)?$")
PLAIN = re.compile(r"\^?[\w.]+")  # a key of alpha_pattern that is a name; PEFT takes any regular expression
MOST_PATTERNS = 1000

IN_MEMORY = (  # transformers 5's names of modules, which an adapter has, and the published ones, which files have
    (r"\blayers\.(\d+)\.", r"encoder.layer.\1."),
    (r"\battention\.q_proj\b", "attention.attention.query"),
    (r"\battention\.k_proj\b", "attention.attention.key"),
    (r"\battention\.v_proj\b", "attention.attention.value"),
    (r"\battention\.o_proj\b", "attention.output.dense"),
    (r"\bmlp\.fc1\b", "intermediate.dense"),
    (r"\bmlp\.fc2\b", "output.dense"),
)


def is_adapter(path: Path) -> bool:
    """Whether this is the folder or the file of an adapter."""
    if not path.is_dir():
        return path.name in FILES
    has = {name for name in (*FILES, *MODEL_FILES) if (path / name).is_file()}
    return bool(has & {*FILES}) and not has & {*MODEL_FILES}


def read_merged(path: Path, name: str) -> Source:
    """The base's weights with the adapter's added, as if the base had been saved so."""
    folder = path if path.is_dir() else path.parent
    file = path if path.is_file() else next(folder / name for name in FILES if (folder / name).is_file())
    config = read_json(folder / CONFIG)
    if not config:
        raise VitrailError(f"{file} is an adapter: copy {CONFIG}, which says what it is made for, beside it")
    _refuse_others(config, file)
    base = _read_base(config, folder, file)
    adapter = read(file, name).tensors
    merged, saved = _merged(base.tensors, adapter, config)
    note = f"the LoRA adapter was merged into {Path(base.name).name}: {len(adapter) // 2} matrices"
    stored = dict(base.config)
    if saved:
        note = f"the LoRA adapter was merged into {Path(base.name).name}, and {listing(sorted(saved), 6)} replaced"
        if any(merged[n].shape != base.tensors[n].shape for n in saved if n in base.tensors):
            stored.pop("id2label", None)  # of the base's own head
            stored.pop("label2id", None)
    return dataclasses.replace(
        base, name=name, file=file.name, tensors=merged, config=stored, metadata={}, notes=(*base.notes, note)
    )


def _refuse_others(config: Mapping[str, Any], file: Path) -> None:
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        other = str(kind)[:40]
        raise VitrailError(f"{file} is an adapter of type {other}: merge it with peft (merge_and_unload) and save that")
    unread = [name for name in ("use_dora", "use_qalora", "layer_replication") if config.get(name)]
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict) or len(patterns) > MOST_PATTERNS or not all(map(PLAIN.fullmatch, patterns)):
        unread.append("alpha_pattern")
    if unread or config.get("bias", "none") != "none":
        setting = unread[0] if unread else "bias"
        raise VitrailError(
            f"{file} is a LoRA adapter with {setting}, which is not read: merge it with peft (merge_and_unload)"
        )


def _read_base(config: Mapping[str, Any], folder: Path, file: Path) -> Source:
    named = config.get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        raise VitrailError(f"{file} is an adapter without its base: name the base's folder in {CONFIG}")
    for place in (folder / named, Path(named)):  # beside the adapter first: what lies here may be another's
        if _is_there(place):
            return read(place, str(place))
    try:
        if hub.is_hub_id(named):
            return read(hub.fetch(named), named)
    except VitrailError as error:
        why = f" ({error})"
    else:
        why = ""
    raise VitrailError(
        f"{file} is an adapter and its base {named} is not here: "
        f"copy it, and put its path as base_model_name_or_path in {CONFIG}{why}"
    )


def _is_there(place: Path) -> bool:
    try:
        return place.exists()
    except OSError:  # the name is too long for a file
        return False


def _merged(
    base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], config: Mapping[str, Any]
) -> tuple[dict[str, Tensor], set[str]]:
    """The base with W + scale * B @ A for every pair, and the names of tensors that the adapter holds whole."""
    merged, saved, changed = dict(base), set[str](), set[str]()
    parts = {name: PART.search(name) for name in adapter}
    ups = {name[: part.start()]: adapter[name] for name, part in parts.items() if part is not None and part[1] == "B"}
    for name, tensor in adapter.items():
        part = parts[name]
        if part is None:
            own = _module(name.replace(".modules_to_save.default", ""), base, whole=True)
            merged[own] = tensor
            saved.add(own)
        elif part[1] == "A":
            module = name[: part.start()]
            if module not in ups:
                raise VitrailError(f"the adapter has {name} but no lora_B to go with it")
            target = _module(f"{module}.weight", base)
            if target in changed:
                raise VitrailError(f"the adapter changes {target} twice: give one adapter")
            changed.add(target)
            merged[target] = base[target].float() + _update(tensor, ups[module], module, config, base[target])
    return merged, saved


def _update(down: Tensor, up: Tensor, module: str, config: Mapping[str, Any], weight: Tensor) -> Tensor:
    """scale * B @ A in the shape of the weight. down: (r, in), up: (out, r)."""
    rank = down.shape[0] if down.dim() == 2 else 0
    if not rank or up.dim() != 2 or up.shape[1] != rank or (up.shape[0], down.shape[1]) != tuple(weight.shape):
        shapes = f"{tuple(up.shape)} and {tuple(down.shape)}"
        raise VitrailError(f"the adapter's matrices for {module} are {shapes}, its weight is {tuple(weight.shape)}")
    alpha = _alpha(config, module.removeprefix(ROOT), rank)
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return scale * (up.float() @ down.float())


def _alpha(config: Mapping[str, Any], module: str, usual: float) -> float:
    """Of the first entry of PEFT's alpha_pattern that is the end of the module's name, or after a ^ all of it."""
    found = config.get("lora_alpha", usual)
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if f"^{module}" == pattern or f".{module}".endswith(f".{pattern}"):
            found = value
            break
    if not isinstance(found, int | float) or isinstance(found, bool) or not math.isfinite(found):
        raise VitrailError(f"{CONFIG} has lora_alpha {str(found)[:40]!r}, not a number")
    return float(found)


def _module(name: str, base: Mapping[str, Tensor], whole: bool = False) -> str:
    """The base's own name for a tensor that an adapter names: without PEFT's root, with or without "vit."."""
    plain = name.removeprefix(ROOT)
    published = plain
    for memory, file in IN_MEMORY:
        published = re.sub(memory, file, published)
    for choice in (plain, published):
        for own in (choice, choice.partition(".")[2], f"vit.{choice}"):
            if own in base:
                return own
    if whole:
        return plain  # a head that the base lacks
    raise VitrailError(f"the adapter changes {plain}, which its base does not have: is it the base it was made for?")
