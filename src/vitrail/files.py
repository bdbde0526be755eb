"""Text files that are read or refused in a sentence, and files that are never half there: written beside their place,
then renamed into it. Folders that one process at a time writes to."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.text import shown

DAY = 24 * 3600.0


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Gives a temporary path to write; on success it takes the place of `path`, on failure `path` stays as it was."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished(path.parent, path.name, DAY)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise VitrailError(f"cannot write {path}: {error.strerror or error}") from None
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        raise VitrailError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_all(folder: str | Path) -> Iterator[Path]:
    """Gives a temporary folder to write files into; on success they take their places in `folder`, on failure it stays
    as it was. Their names are right from the start, for files that name one another."""
    folder = Path(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for left in folder.parent.glob(f".{glob.escape(folder.name)}.????????.part"):  # by a process that was killed
            if time.time() - left.stat().st_mtime >= DAY:
                shutil.rmtree(left, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
    except OSError as error:
        raise VitrailError(f"cannot write to {folder}: {error.strerror or error}") from None
    try:
        yield temporary
        folder.mkdir(exist_ok=True)
        for path in temporary.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
            path.chmod(0o666 & ~_umask())
            os.replace(path, folder / path.name)
    except OSError as error:
        raise VitrailError(f"cannot write to {folder}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def holding_lock(path: Path, busy: str) -> Iterator[None]:
    """Held by one process at a time; the system releases it however that process ends. busy: what another is told."""
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise VitrailError(busy) from None
    except OSError as error:
        raise VitrailError(f"cannot write {shown(path.parent)}: {error.strerror or error}") from None
    try:
        yield
    finally:
        lock.release()


def remove_unfinished(folder: Path, name: str | None = None, seconds: float = 0.0) -> None:
    """What `replacing` left in a folder when its process was killed, for the file of this name or for all.

    seconds: that nobody has written to it for; another process may still be writing those that are younger."""
    pattern = f".{'*' if name is None else glob.escape(name)}.????????.part"
    for part in folder.glob(pattern):
        with contextlib.suppress(OSError):  # another process was faster
            if time.time() - part.stat().st_mtime >= seconds:
                part.unlink()


def read_text(path: Path) -> str:
    """A UTF-8 text file, whatever wrote a mark before it; VitrailError where it is none, or cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise VitrailError(f"{shown(path)} is not UTF-8 text: save it again as UTF-8") from None
    except OSError as error:
        raise VitrailError(f"cannot read {shown(path)}: {error.strerror or error}") from None


def map_array(path: Path) -> Any:
    """An array in NumPy's format, memory-mapped: nothing is read that nobody asks for. None where the file is none."""
    import numpy as np

    if not path.is_file():  # a pipe would be waited for
        return None
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except Exception:  # damaged headers raise many things
        return None


def write_text(path: str | Path, text: str) -> None:
    """A text file, whole or not at all."""
    if Path(path).is_dir():
        raise VitrailError(f"{path} is a folder: give the name of a file to write")
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def cache_folder() -> Path:
    """Where decoded images and graphs of networks are kept: `VITRAIL_CACHE`, else the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("VITRAIL_CACHE") or Path(base) / "vitrail")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
