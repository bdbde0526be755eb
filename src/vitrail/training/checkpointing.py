"""Checkpoints: all that a run needs to go on as if it had never stopped. One file a saved step, and the best weights.

A file is complete or not there, and its checksum tells whether it is still what was written. Of a model that is cut up
among processes a saved step is a folder, to which each writes its part (`sharding/sharded_state.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from vitrail.errors import VitrailError
from vitrail.training.distributed import Processes
from vitrail.training.optim.ema import EMA
from vitrail.training.sharding.sharded_state import MARKER, read_marker, write_parts
from vitrail.weights.checkpoint import checksum, write_tensors
from vitrail.weights.model_description import CHECKSUM

KEPT = 2
FACTS = "vitrail-state"
BEST = "best.safetensors"


@dataclass
class Saved:
    """The content of one file: tensors by name, and the train state beside them. Of a folder: where the tensors are."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    parts: Path | None = None


def write_state(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(facts)
    write_tensors(path, plain, {FACTS: text, CHECKSUM: checksum(text, plain)})


def read_state(path: Path) -> Saved:
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is not a dict
    except (SafetensorError, OSError) as error:
        raise VitrailError(f"{path} cannot be read: {error}") from None
    if FACTS not in metadata or checksum(metadata[FACTS], tensors) != metadata.get(CHECKSUM):
        raise VitrailError(f"{path} is damaged: its checksum does not match")
    return Saved(tensors, json.loads(metadata[FACTS]))


class Checkpoints:
    """The folder RUN/checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def steps(self) -> list[int]:
        """The saved steps, oldest first."""
        return sorted({step for step, path in self.found() if path.is_file() or (path / MARKER).exists()})

    def found(self) -> list[tuple[int, Path]]:
        """Every step with its file or its folder, which may be unfinished; oldest first."""
        matches = (
            (re.fullmatch(r"step-(\d+)(\.safetensors)?", path.name), path) for path in self.folder.glob("step-*")
        )
        return sorted((int(match[1]), path) for match, path in matches if match)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}.safetensors"

    def save(self, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        write_state(self.path(step), tensors, {**facts, "step": step})
        self.remove_all_but(self.path(step))

    def save_parts(
        self, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], processes: Processes
    ) -> None:
        """Every process calls this, with its part of the tensors."""
        folder = self.path(step).with_suffix("")
        write_parts(folder, tensors, {**facts, "step": step}, processes)
        if processes.is_main:
            self.remove_all_but(folder)

    def remove_all_but(self, saved: Path) -> None:
        """What is older than the newest whole ones, unfinished or another file of the step that was saved now."""
        kept = self.steps()[-KEPT:]
        for step, path in self.found():
            if path != saved and (step not in kept or path.stem == saved.stem):
                if path.is_dir():
                    rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def load_last(self) -> tuple[Saved | None, list[str]]:
        """The newest that is whole, and a sentence for each newer one that is not."""
        notes: list[str] = []
        for _, path in reversed(self.found()):
            try:
                return (Saved({}, read_marker(path), path) if path.is_dir() else read_state(path)), notes
            except VitrailError as error:
                notes.append(f"{error}; going on from the one before")
        return None, notes

    def save_best(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        write_state(self.folder / BEST, tensors, facts)

    def load_best(self) -> Saved | None:
        """None where there is none, or it is damaged: the last state then has to do."""
        path = self.folder / BEST
        try:
            return read_state(path) if path.exists() else None
        except VitrailError:
            return None


def collect_tensors(model: nn.Module, optimizers: Sequence[Optimizer], ema: EMA | None) -> dict[str, Tensor]:
    """Whole tensors by name. Of a model that is cut up among processes, every process must ask."""
    return {name: whole(tensor) for name, tensor in own_tensors(model, optimizers, ema).items()}


def own_tensors(model: nn.Module, optimizers: Sequence[Optimizer], ema: EMA | None) -> dict[str, Tensor]:
    """Tensors by name as this process has them: whole, or its part of them."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    if ema is not None:
        tensors |= {f"average.{name}": tensor for name, tensor in ema.weights.items()}
    for index, optimizer in enumerate(optimizers):
        for number, state in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{number}.{key}": value for key, value in state.items()}
    return tensors


def are_cut_up(tensors: Mapping[str, Tensor]) -> bool:
    """Whether each process has a part of them."""
    return any(isinstance(tensor, DTensor) for tensor in tensors.values())


def restore_tensors(
    tensors: Mapping[str, Tensor], model: nn.Module, optimizers: Sequence[Optimizer], ema: EMA | None
) -> None:
    """Into a model and optimizers of the same settings; a ValueError, KeyError or RuntimeError where they differ."""
    saved = {name.split(".")[1] for name in tensors if name.startswith("optimizer.")}
    if (saved and len(saved) != len(optimizers)) or (ema is not None and not _below("average.", tensors)):
        raise ValueError("saved with other optimizers, or without an average")
    own = model.state_dict()
    model.load_state_dict({name: like(tensor, own[name]) for name, tensor in _below("model.", tensors).items()})
    if ema is not None:
        ema.weights = {name: like(tensor, own[name]) for name, tensor in _below("average.", tensors).items()}
    for index, optimizer in enumerate(optimizers):
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _below(f"optimizer.{index}.", tensors).items():
            number, _, key = name.partition(".")
            parameter = parameters[int(number)]
            if tensor.dim() and tensor.shape != parameter.shape:
                raise ValueError(f"saved for another parameter: {name}")
            state.setdefault(int(number), {})[key] = like(tensor, parameter) if tensor.dim() else tensor
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """Cut up among the processes as `other` is, or as it is."""
    if not isinstance(other, DTensor) or isinstance(tensor, DTensor):
        return tensor.to(other.device)
    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements)


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
