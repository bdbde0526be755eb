"""Graphs of networks, kept in the user's cache folder: tracing takes seconds, reading what it gave does not.

A file is whole or it is not there (`replacing`), and it is read only if its checksum is right, so two processes that
make the same graph at once are no harm: the last one's stays. Everything that a graph depends on is in its key.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitrail import __version__
from vitrail.errors import VitrailError
from vitrail.files import DAY, cache_folder, remove_unfinished, replacing
from vitrail.terminal import print_error
from vitrail.text import shown

if TYPE_CHECKING:  # a start with a kept graph does without torch
    from vitrail.weights.checkpoint import Checkpoint

MOST_BYTES = 4_000_000_000  # of all graphs; those that were not used for the longest time go first
PACKAGES = ("torch", "openvino", "nncf", "onnx", "onnxscript", "onnxruntime")
ENDING = ".graph"


def fingerprint(checkpoint: Checkpoint) -> str:
    """Of the network: its config, every weight, how many tokens it merges, and a CNN of the caller's own."""
    from vitrail.model.efficient.token_merging import merges_in_blocks
    from vitrail.weights.checkpoint import checksum

    network = checkpoint.model
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    described = checkpoint.config.unusual() | {
        "merges": network.merge_tokens and merges_in_blocks(checkpoint.config, network.merge_tokens)
    }
    if network.feature_cnn is not None and "cnn" not in described:  # weights do not tell strides and activations
        described |= {"own_cnn": repr(network.feature_cnn)}
    return checksum(json.dumps(described, sort_keys=True), tensors)[:32]


def versions() -> dict[str, str]:
    """Of us and of what makes and runs graphs; "" where it is not installed."""

    def version(name: str) -> str:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return ""

    return {"vitrail": __version__} | {name: version(name) for name in PACKAGES}


class GraphCache:
    """The graphs of one network."""

    def __init__(self, fingerprint: str, folder: Path | None = None) -> None:
        key = hashlib.sha256(json.dumps(versions(), sort_keys=True).encode()).hexdigest()[:8]
        self.fingerprint = fingerprint
        self.root = folder or cache_folder() / "graphs"
        self.folder = self.root / f"{fingerprint}-{key}"

    def read(self, name: str) -> list[memoryview] | None:
        """The parts of a graph; None where there is none. A damaged one is said, and goes."""
        path = self.folder / f"{name}{ENDING}"
        try:
            data = np.fromfile(path, np.uint8).data
        except OSError:
            return None
        parts = _parts(data)
        with contextlib.suppress(OSError):  # a disk that cannot be written may still be read
            if parts is None:
                print_error(f"{shown(path)} is damaged: it is made again")
                path.unlink()
            else:
                path.touch()  # it was used
        return parts

    def write(self, name: str, parts: Sequence[bytes]) -> None:
        """Keep a graph. A folder that cannot be written is said, and nothing else happens."""
        try:
            with replacing(self.folder / f"{name}{ENDING}") as temporary, temporary.open("wb") as file:
                header = json.dumps({"lengths": [len(part) for part in parts], "sha256": _digest(parts)})
                file.write(header.encode() + b"\n")
                for part in parts:
                    file.write(part)
        except VitrailError as error:
            print_error(f"the graph is not kept for next time: {error}")
            return
        with contextlib.suppress(OSError):  # somebody else removes what is there: nothing is left to do
            self._prune()

    def _prune(self) -> None:
        """Keep the newest graphs of all networks that fit into MOST_BYTES."""
        used = 0
        files = [(path.stat(), path) for path in self.root.glob(f"*/*{ENDING}")]
        for stat, path in sorted(files, key=lambda entry: -entry[0].st_mtime):
            used += stat.st_size
            if used > MOST_BYTES and path.parent != self.folder:
                path.unlink(missing_ok=True)
        for folder in self.root.iterdir():
            remove_unfinished(folder, seconds=DAY)


def _parts(data: memoryview) -> list[memoryview] | None:
    """What `write` was given; None where something of it is missing or changed."""
    end = bytes(data[:4096]).find(b"\n")
    try:
        header = json.loads(bytes(data[:end]))
        lengths, digest = [int(length) for length in header["lengths"]], header["sha256"]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    parts, start = [], end + 1
    for length in lengths:
        parts.append(data[start : start + length])
        start += length
    return parts if start == len(data) and _digest(parts) == digest else None


def _digest(parts: Sequence[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
