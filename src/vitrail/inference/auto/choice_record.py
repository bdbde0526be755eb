"""The choices that were made on this machine, a small file each in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.files import cache_folder, write_text
from vitrail.inference.auto.candidates import Candidate
from vitrail.tasks.agreement import Agreement
from vitrail.terminal import print_error

FOLDER = "engines"


@dataclass(frozen=True)
class Choice:
    """What was chosen for a model on a machine, and why."""

    engine: str
    precision: str
    speedup: float  # against torch in float32, in images a second
    agreement: Agreement | None  # None: torch in float32, which is what others are compared with
    pictures: str  # that they were compared on, in words
    compared: int  # of them
    size: tuple[int, int]
    batch: int  # images at a time, when it was measured
    milliseconds: Mapping[str, float]  # of a batch, by engine and precision
    date: str
    refused: Mapping[str, str]  # engines that were faster, and why they were not taken

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.engine, self.precision)

    def in_words(self) -> str:
        """What was chosen, how much faster it is and how well it agrees."""
        text = f"{self.candidate}"
        if self.agreement is None:
            return f"{text}: no other engine here is faster and gives the same answers"
        return f"{text}, {self.speedup:.2f} times as fast as torch in float32: {self.agreement.in_words()}"


def choice_key(fingerprint: str, circumstances: Mapping[str, Any]) -> str:
    """The name of the record: of the network, and of all that the choice depends on."""
    digest = hashlib.sha256(json.dumps(circumstances, sort_keys=True).encode()).hexdigest()
    return f"{fingerprint}-{digest[:16]}"


def read_choice(key: str) -> Choice | None:
    """What was chosen before; None where nothing was, or where the file is not what we wrote."""
    return _read(_folder() / f"{key}.json")


def write_choice(key: str, choice: Choice) -> None:
    """Remember a choice. A folder that cannot be written is said, and nothing else happens."""
    try:
        write_text(_folder() / f"{key}.json", json.dumps(asdict(choice), indent=1))
    except VitrailError as error:
        print_error(f"the choice of an engine is not kept for next time: {error}")


def choices_of(fingerprint: str) -> list[Choice]:
    """All choices that were made here for a network, the last one first; one that has two names once."""
    found: list[Choice] = []
    for path in sorted(_folder().glob(f"{fingerprint}-*.json")):
        choice = _read(path)
        if choice is not None and choice not in found:
            found.append(choice)
    return sorted(found, key=lambda choice: choice.date, reverse=True)


def _folder() -> Path:
    return cache_folder() / FOLDER


def _read(path: Path) -> Choice | None:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields["agreement"] is not None:
            fields["agreement"] = Agreement(**fields["agreement"])
        height, width = fields["size"]
        choice = Choice(**fields | {"size": (int(height), int(width))})
        choice.in_words()  # its numbers are numbers
        int(choice.compared)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return choice
