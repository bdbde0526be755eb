"""From a file, a folder or a hub id to named tensors and what was stored beside them. Nothing in a file is ever run."""

from __future__ import annotations

import argparse
import json
import pickle
import re
import struct
import tarfile
import warnings
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.weights.not_weights import what_it_is
from vitrail.weights.wrapping import strip_prefixes, unwrap

FILES = (  # what a folder's weights may be called, best first
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
PICKLES = (".pth", ".pt", ".bin", ".pth.tar", ".ckpt")
ENDINGS = (".safetensors", ".npz", *PICKLES)
# What reading a damaged file raises, in the libraries that read it.
DAMAGED = (
    *(RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError, ArithmeticError),
    *(EOFError, MemoryError, ImportError, SyntaxError, pickle.UnpicklingError, struct.error, zlib.error),
    *(zipfile.BadZipFile, tarfile.TarError),
)


@dataclass
class Source:
    """Tensors by name, and what lay beside them."""

    name: str  # as the user gave it
    file: str  # the file's own name
    tensors: dict[str, Tensor]
    metadata: dict[str, str] = field(default_factory=dict)  # of a safetensors file
    config: dict[str, Any] = field(default_factory=dict)  # config.json beside it
    preprocessor: dict[str, Any] = field(default_factory=dict)  # preprocessor_config.json, how images are prepared
    notes: tuple[str, ...] = ()  # what was done to the tensors, a sentence each
    unwrapped: tuple[str, ...] = ()  # the entries and prefixes that the tensors were found under


def read(path: Path, name: str) -> Source:
    """Read a weight file, or a folder that holds one."""
    try:
        if path.is_dir():
            path = find_weights(path)
        tensors, metadata, unwrapped = _read_file(path)
        config, preprocessor = read_json(path.parent / "config.json"), _read_preprocessor(path.parent)
    except OSError as error:
        raise VitrailError(f"cannot read {path}: {error.strerror or error}") from None
    if not tensors:
        raise VitrailError(f"{path} holds no weights")
    inside, prefixes = strip_prefixes(tensors)
    return Source(
        name=name,
        file=path.name,
        tensors=inside,
        metadata=metadata,
        config=config,
        preprocessor=preprocessor,
        notes=_left_out(tensors, inside, prefixes),
        unwrapped=(*unwrapped, *prefixes),
    )


def _read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, str], tuple[str, ...]]:
    """The tensors, the metadata of a safetensors file, and the entries that a pickle had its tensors under."""
    other = what_it_is(path)
    if other is not None:
        raise VitrailError(f"{path} {other}")
    if path.name.endswith(".index.json"):
        return _read_shards(path), {}, ()
    if path.suffix == ".npz":
        return _read_npz(path), {}, ()
    if path.suffix == ".safetensors":
        return *_read_safetensors(path), ()
    if path.name.endswith(PICKLES):
        tensors, unwrapped = unwrap(_read_pickle(path))
        return _plain(tensors, path), {}, unwrapped
    raise VitrailError(f"{path} is no weight file: those end in {', '.join(ENDINGS)}")


def _left_out(tensors: dict[str, Tensor], inside: dict[str, Tensor], prefixes: tuple[str, ...]) -> tuple[str, ...]:
    count = len(tensors) - len(inside)
    if not count:
        return ()
    what = "1 tensor beside them was" if count == 1 else f"{count} tensors beside them were"
    return (f"the weights were found under {' '.join(prefixes)}, and {what} left out",)


def find_weights(folder: Path) -> Path:
    """The weight file of a folder: one of the usual names, or the only one there."""
    for name in FILES:
        if (folder / name).is_file():
            return folder / name
    files = sorted(p for p in folder.iterdir() if p.name.endswith(ENDINGS) and not p.name.startswith("."))
    if len(files) != 1:
        what = f"{len(files)} weight files ({files[0].name}, {files[1].name}, ...)" if files else "no weight file"
        raise VitrailError(f"the folder {folder} holds {what}: name the file itself")
    return files[0]


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            # cloned: a mapped file that someone writes over would take the process down
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}
    except (SafetensorError, *DAMAGED) as error:
        raise VitrailError(f"{path} is damaged, cut short or no safetensors file ({_reason(error)})") from None


def _read_shards(index: Path) -> dict[str, Tensor]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(shard, str) for shard in names.values()):
        raise VitrailError(f"{index} has no weight_map: copy it again from its source")
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(names.values())):
        if Path(shard).name != shard or not shard.endswith((".safetensors", *PICKLES)):
            raise VitrailError(f"{index} names a shard outside its folder or of another kind: {shard!r}")
        path = index.parent / shard
        if not path.is_file():
            raise VitrailError(f"{index} names {shard}, which is not beside it: copy all of its shards")
        tensors |= _read_file(path)[0]
    return tensors


def _read_npz(path: Path) -> dict[str, Tensor]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: _tensor(file[name]) for name in file.files}
    except DAMAGED as error:
        raise VitrailError(f"{path} is damaged, cut short or no .npz of plain arrays ({_reason(error)})") from None


def _tensor(array: np.ndarray) -> Tensor:
    if array.dtype == np.dtype("V2"):  # numpy knows no bfloat16: JAX saves it as two raw bytes
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array)).reshape(array.shape)


def _read_pickle(path: Path) -> Any:
    """Tensors and plain values only: a pickle that wants to call anything is refused before it does."""
    try:
        # Namespace: the arguments that DINO, DeiT and MAE keep in their checkpoints; a bare record, it runs nothing.
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the file's age or kind: what matters of it is said below
            return torch.load(path, map_location="cpu", weights_only=True)
    except DAMAGED as error:
        wants = re.search(r"(?:GLOBAL |global )`?([\w.]+)", str(error))
        if wants:
            raise VitrailError(
                f"{path} is a pickle that wants to run code ({wants[1]}), so it was not loaded: "
                "ask its author for a .safetensors file"
            ) from None
        raise VitrailError(f"{path} is damaged, cut short or no PyTorch file ({_reason(error)})") from None


def _plain(tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
            raise VitrailError(f"{path} holds {name}, which is sparse, quantised or without data, not a plain tensor")
    return tensors


def read_json(path: Path) -> dict[str, Any]:
    """An object of named fields, empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise VitrailError(f"{path} is not JSON: copy it again from its source") from None
    return content if isinstance(content, dict) else {}


def _read_preprocessor(folder: Path) -> dict[str, Any]:
    """transformers keeps it alone, or within the settings of a processor that also prepares text."""
    alone = read_json(folder / "preprocessor_config.json")
    within = read_json(folder / "processor_config.json").get("image_processor")
    return alone or (within if isinstance(within, dict) else {})


def _reason(error: BaseException) -> str:
    """What a library says of a file, short. torch's long advice on pickles ends in the reason."""
    text = str(error).rpartition("WeightsUnpickler error:")[2].strip()
    return (text.splitlines() or [type(error).__name__])[0][:120]
