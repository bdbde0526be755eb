"""Engines that crashed with a model on this machine: `auto` does not try them again with the same versions."""

from __future__ import annotations

import datetime
import hashlib
import json
from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.files import cache_folder, write_text
from vitrail.inference.auto.candidates import Candidate
from vitrail.inference.auto.machine import machine
from vitrail.terminal import print_error

FOLDER = "crashes"


def crashes_of(fingerprint: str) -> dict[str, str]:
    """What crashed with a network here, by engine and precision, and how; {} also where the file is not ours."""
    try:
        crashes = json.loads(_path(fingerprint).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return {str(name): str(how) for name, how in crashes.items()} if isinstance(crashes, dict) else {}


def remember_crash(fingerprint: str, candidate: Candidate, how: str) -> None:
    """Keep it. A folder that cannot be written is said, and nothing else happens."""
    today = datetime.date.today().isoformat()
    crashes = crashes_of(fingerprint) | {str(candidate): f"it crashed on {today} ({how})"}
    try:
        write_text(_path(fingerprint), json.dumps(crashes, indent=1))
    except VitrailError as error:
        print_error(f"the crash of an engine is not kept for next time: {error}")


def _path(fingerprint: str) -> Path:
    here = hashlib.sha256(json.dumps(machine(), sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / FOLDER / f"{fingerprint}-{here}.json"
