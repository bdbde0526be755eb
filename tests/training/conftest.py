from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.running import TINY, write_pictures


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "data")


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Path]:
    """Writes a settings file of a model that trains in a second; `noise` is dropout and drop path."""

    def write(workers: int = 0, noise: float = 0.1, extra: str = "") -> Path:
        path = tmp_path / "tiny.toml"
        path.write_text(TINY.format(workers=workers, noise=noise) + extra)
        return path

    return write
