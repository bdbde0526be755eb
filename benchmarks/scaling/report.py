"""What all measurements of benchmarks/scale.py share: waiting within a limit, and what is left of one that failed."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

KEPT = "kept"  # a mark


@dataclass(frozen=True)
class Report:
    """Lines of a section, of all or of what is known so far; whether it came out as it must."""

    lines: list[str]
    good: bool = True


@contextlib.contextmanager
def working_folder() -> Iterator[Path]:
    """A folder that is gone afterwards, unless something failed: then it stays, for its logs."""
    folder = Path(tempfile.mkdtemp(prefix="vitrail-scale-"))
    try:
        yield folder
    except BaseException:
        keep(folder)
        raise
    finally:
        if (folder / KEPT).exists():
            print(f"its files are kept in {folder}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def keep(folder: Path) -> None:
    (folder / KEPT).touch()


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it came to pass within that time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
