"""The state of a run whose model is cut up among processes: a folder to which each process writes its part.

The parts are torch's distributed checkpoint (DCP), which any number of processes can read. A marker is written last: it
has the train state, and the digest of every other file.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from vitrail.errors import VitrailError
from vitrail.files import read_text, write_text
from vitrail.training.distributed import Processes

MARKER = "whole.json"
INDEX = ".metadata"  # of DCP: which tensor is where


def write_parts(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], processes: Processes) -> None:
    """Every process calls this with what it holds."""
    from torch.distributed.checkpoint.state_dict_saver import save

    processes.from_main(lambda: rmtree(folder, ignore_errors=True))  # one of an earlier attempt
    with dcp_errors(f"cannot write {folder}"):
        save(dict(tensors), checkpoint_id=folder)
    own = {path.name: digest(path) for path in sorted(folder.glob(f"__{processes.rank}_*"))}
    files = {name: value for part in processes.collect(own) for name, value in part.items()}
    if processes.is_main:
        files[INDEX] = digest(folder / INDEX)
        content = {"facts": dict(facts), "files": files}
        write_text(folder / MARKER, json.dumps(content | {"checksum": checksum(content)}))


def read_marker(folder: Path) -> dict[str, Any]:
    """The train state; a VitrailError where the folder is not whole."""
    if not (folder / MARKER).exists():
        raise VitrailError(f"{folder} is unfinished: it has no {MARKER}")
    try:
        content: dict[str, Any] = json.loads(read_text(folder / MARKER))
        good = content.pop("checksum") == checksum(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        good = False
    if not good:
        raise VitrailError(f"{folder} is damaged: the checksum of {MARKER} does not match")
    for name, expected in content["files"].items():
        if not (folder / name).is_file() or digest(folder / name) != expected:
            raise VitrailError(f"{folder} is damaged: {name} is not what was written")
    return dict(content["facts"])


def read_parts(folder: Path, model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """Every tensor by its name, cut up as the model's own are now. Every process calls this, however many there are.

    A ValueError or KeyError where the model has another shape."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = FileSystemReader(folder)
    with dcp_errors(f"cannot read {folder}"):
        saved = reader.read_metadata().state_dict_metadata
        own = {f"{kind}.{name}": tensor for kind in ("model", "average") for name, tensor in model.state_dict().items()}
        parameters = [[p for group in optimizer.param_groups for p in group["params"]] for optimizer in optimizers]
        tensors: dict[str, Tensor] = {}
        for name, entry in saved.items():
            shape, kind = entry.size, entry.properties.dtype  # type: ignore[union-attr]
            if name in own or not shape:
                like = own.get(name, torch.empty((), dtype=kind))
            else:
                _, index, number, _ = name.split(".", 3)
                like = parameters[int(index)][int(number)]
            if like.shape != shape:
                raise ValueError(f"saved for another shape: {name}")
            tensors[name] = torch.zeros_like(like.detach(), dtype=kind)
        load(tensors, storage_reader=reader, no_dist=not dist.is_initialized())
    return tensors


@contextmanager
def dcp_errors(what: str) -> Iterator[None]:
    """DCP's own exception is none that others catch, and it warns where there is one process."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            yield
    except CheckpointException as error:
        causes = [cause for cause, _ in error.failures.values()]
        raise VitrailError(f"{what}: {causes[0] if causes else error}") from None


def checksum(content: Mapping[str, Any]) -> str:
    """SHA-256 of what a marker says."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
