"""What fuzzing runs: a reader of bytes, and the inputs that it begins with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Read: TypeAlias = Callable[[bytes, Path], None]  # an input, and a folder to put it into


@dataclass(frozen=True)
class Target:
    read: Read
    seeds: Callable[[], list[bytes]]
    json: bool = False  # its inputs are changed as JSON


class Broken(AssertionError):
    """An input that took too long or too much, or was refused in more than a sentence."""
