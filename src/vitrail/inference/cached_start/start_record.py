"""What a start with a graph found out, so that the next one can do without torch: which graph runs, and how.

A record holds for one model file, one set of options and one machine. The file is known by its size, inode and times,
and by the checksum in its header; if any of these differs, the model is loaded and everything is looked at again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.files import cache_folder, write_text
from vitrail.inference.auto.machine import THREADS, machine_without_torch
from vitrail.option_types import precision as named_precision
from vitrail.weights.model_description import CHECKSUM, file_metadata

FOLDER = "starts"
OPTIONS = ("engine", "device", "batch_size", "merge_tokens")  # that decide what runs, with the precision


@dataclass(frozen=True)
class StartRecord:
    """How a model ran."""

    file: list[Any]  # `file_identity` of the model
    network: str  # the fingerprint that its graph is kept under
    graph: str  # its name there
    engine: str
    precision: str
    hint: str  # what it computes in where it is not in int8, in OpenVINO's words
    threads: int
    batch_size: int
    compared: int  # pictures that its answers were compared with torch's on
    at_hand: int  # images that were given then, readable or not
    int8: list[str]  # the graphs of this network in int8 that were there then, for `auto` to choose among
    remarks: list[str]  # what every start says


def file_identity(path: Path) -> list[Any] | None:
    """Of a model file of ours as it is now; None where it is none. Any change of the file changes it."""
    try:
        stat = path.stat()
    except OSError:
        return None
    checksum = file_metadata(path).get(CHECKSUM)
    if checksum is None:
        return None
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, checksum]


def start_key(path: Path, options: Mapping[str, Any]) -> str:
    """The name of the record. Where the pictures to check on come from is part of it, if they are a folder."""
    described = {
        "model": os.path.abspath(path),
        "options": {name: options[name] for name in OPTIONS},
        "precision": named_precision(options["precision"]),
        "calibration": named_folder(options),
        "machine": machine_without_torch(),
        "threads": {name: os.environ.get(name, "") for name in THREADS},
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]


def named_folder(options: Mapping[str, Any]) -> str | None:
    """The absolute path of the pictures to check an engine on, if somebody names a folder for that."""
    calibration = options["calibration"]
    return os.path.abspath(calibration) if isinstance(calibration, str | Path) else None


def count_at_hand(options: Mapping[str, Any]) -> int:
    """How many images are given to check an engine on, where no folder is named for that."""
    calibration = options["calibration"]
    return 0 if calibration is None or isinstance(calibration, str | Path) else len(calibration)


def read_start(key: str) -> StartRecord | None:
    """What an earlier start left; None where nothing is there, or nothing that we wrote."""
    try:
        fields = json.loads(_path(key).read_text(encoding="utf-8"))
        record = StartRecord(**fields)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    for field in dataclasses.fields(StartRecord):
        expected = {"list[Any]": list, "list[str]": list, "str": str, "int": int}[str(field.type)]
        if type(getattr(record, field.name)) is not expected:
            return None
    return record


def write_start(key: str, record: StartRecord) -> None:
    """Keep it; where the folder cannot be written, the next start takes the long way again."""
    try:
        write_text(_path(key), json.dumps(dataclasses.asdict(record), indent=1))
    except VitrailError:
        return


def _path(key: str) -> Path:
    return cache_folder() / FOLDER / f"{key}.json"
