"""From a file, a folder or a hub id to named tensors and what was stored beside them. Nothing in a file is ever run,
and what reading it may take is known from its headers, and bounded by its size, before anything is allocated."""

from __future__ import annotations

import argparse
import math
import pickle
import re
import struct
import tarfile
import tokenize
import warnings
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.text import parsed_json, shown
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
MOST_UNPACKED = 20  # times its own size that a compressed .npz may take; weights shrink by far less than that
MOST_SHARED = 4  # times its own size that the tensors of a pickle may take, which can share their values
SMALL = 1_000_000  # bytes that any file may take
# What reading a damaged file raises, in the libraries that read it.
DAMAGED = (
    *(RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError, ArithmeticError),
    *(EOFError, MemoryError, ImportError, SyntaxError, pickle.UnpicklingError, struct.error, zlib.error),
    *(zipfile.BadZipFile, tarfile.TarError, tokenize.TokenError),
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

    @property
    def model_type(self) -> str:
        """What config.json calls the network; "" where it gives no name."""
        written = self.config.get("model_type")
        return written if isinstance(written, str) else ""


def read(path: Path, name: str) -> Source:
    """Read a weight file, or a folder that holds one."""
    try:
        if path.is_dir():
            path = find_weights(path)
        if path.exists() and not path.is_file():  # to read a pipe or a device may never end
            raise VitrailError(f"{path} is no file")
        tensors, metadata, unwrapped = _read_file(path)
        config, preprocessor = read_json(path.parent / "config.json"), _read_preprocessor(path.parent)
    except OSError as error:
        raise VitrailError(f"cannot read {path}: {error.strerror or error}") from None
    if not tensors:
        raise VitrailError(f"{path} holds no weights")
    if odd := [name for name in tensors if not name.isprintable()]:  # sentences and notes quote names
        raise VitrailError(f"{path} holds a tensor whose name is no text: {shown(odd[0])!r}")
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
        return _copied(tensors, path), {}, unwrapped
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
        with zipfile.ZipFile(path) as archive:
            _check_arrays(archive, path)
        with np.load(path, allow_pickle=False) as file:
            return {name: _tensor(file[name]) for name in file.files}
    except VitrailError:
        raise
    except DAMAGED as error:
        raise VitrailError(f"{path} is damaged, cut short or no .npz of plain arrays ({_reason(error)})") from None


def _check_arrays(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse an .npz that unpacks to far more than weights do, and arrays that claim more than their file holds."""
    most = SMALL + MOST_UNPACKED * path.stat().st_size
    unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > most:
        raise VitrailError(f"{path} unpacks to {unpacked:,} bytes, more than {most:,} for a file of its size")
    for entry in archive.infolist():
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{entry.filename} is packed in a way that NumPy does not write")
        with archive.open(entry) as file:
            if _claimed_bytes(file) > entry.file_size:
                raise ValueError(f"{entry.filename} claims more values than it has")


def _claimed_bytes(file: IO[bytes]) -> int:
    """What the header of an .npy says that its values take; a ValueError where it is none."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if min(shape, default=0) < 0:
        raise ValueError(f"an array has the shape {shape}")
    return math.prod(shape) * dtype.itemsize


def _tensor(array: np.ndarray) -> Tensor:
    if array.dtype == np.dtype("V2"):  # numpy knows no bfloat16: JAX saves it as two raw bytes
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array)).reshape(array.shape)


def _read_pickle(path: Path) -> Any:
    """Tensors and plain values only: a pickle that wants to call anything is refused before it does."""
    try:
        with path.open("rb") as file:
            zipped = file.read(4) == b"PK\x03\x04"
        if zipped:
            _check_stored(path)
        # Namespace: the arguments that DINO, DeiT and MAE keep in their checkpoints; a bare record, it runs nothing.
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the file's age or kind: what matters of it is said below
            # mapped: a tensor takes no memory before it was checked
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except VitrailError:
        raise
    except DAMAGED as error:
        wants = re.search(r"(?:GLOBAL |global )`?([\w.]+)", str(error))
        if wants:
            raise VitrailError(
                f"{path} is a pickle that wants to run code ({wants[1]}), so it was not loaded: "
                "ask its author for a .safetensors file"
            ) from None
        raise VitrailError(f"{path} is damaged, cut short or no PyTorch file ({_reason(error)})") from None


def _check_stored(path: Path) -> None:
    """torch.save stores tensors as they are, so that they can be mapped; who compressed them may have made a bomb."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    if any(entry.filename.endswith("/constants.pkl") for entry in entries):
        raise VitrailError(f"{path} is a TorchScript program, not weights, so it was not loaded")
    packed = [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
    if packed:
        raise VitrailError(f"{path} was compressed, which torch.save does not do ({shown(packed[0])}): save it anew")


def _copied(tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The tensors of a pickle in memory of their own, once it is certain that they are plain and not too many: a few
    values can be shown as a tensor of any size (stride 0), and by any number of tensors."""
    total, most = 0, SMALL + MOST_SHARED * path.stat().st_size
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
            raise VitrailError(f"{path} holds {name}, which is sparse, quantised or without data, not a plain tensor")
        total += tensor.numel() * tensor.element_size()
        if total > most:
            raise VitrailError(f"{path} holds {name}, which repeats values far beyond the size of the file")
    # cloned: a mapped file that someone writes over would take the process down
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}


def read_json(path: Path) -> dict[str, Any]:
    """An object of named fields, empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = parsed_json(path.read_text(encoding="utf-8"))
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
