"""Bytes by address: local files, and whatever `fsspec` opens by a URL (s3://, gs://, https://, memory://).

What is not there, or may not be read, is `Missing`. Everything else that a store may answer (a connection that breaks,
a disk that does not respond) is `Unavailable`: it was tried several times, and says nothing about the file itself.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import random
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

from vitrail.errors import VitrailError
from vitrail.files import replacing
from vitrail.text import shown

TRIES = 4
PATIENCE = 0.5  # seconds before the second try; each further one waits twice as long
_BLOCK = 1 << 22  # bytes that a store is asked for at least, where a file is read on
# what a network file system answers for a while, and not of one file
_PASSING = {
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOTCONN,
    errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ECONNRESET, errno.ECONNREFUSED,
}  # fmt: skip

_VERSION = ("size", "ETag", "etag", "LastModified", "mtime", "updated", "created")  # each store names its own

T = TypeVar("T")


class Missing(VitrailError):
    """There is no such file, or it may not be read: `why` goes on after its name."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} {why}")
        self.name, self.why = name, why

    def __reduce__(self) -> tuple[type[Missing], tuple[str, str]]:
        return type(self), (self.name, self.why)


class Unavailable(VitrailError):
    """The store did not answer, several times: another time it may."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a folder holds."""

    name: str
    path: str
    is_folder: bool
    is_file: bool
    is_link: bool = False


def is_url(path: str | Path) -> bool:
    """Whether an address is a store's; `file://` is a local file."""
    return "://" in str(path) and not str(path).startswith("file://")


def local(path: str | Path) -> str:
    """A local path as text, without `file://`."""
    return str(path).removeprefix("file://")


def join(root: str | Path, name: str) -> str:
    """The address of `name` in a folder; "" is the folder itself."""
    if not name:
        return str(root)
    return f"{str(root).rstrip('/')}/{name}" if is_url(root) else os.path.join(local(root), name)


def read_bytes(path: str | Path) -> bytes:
    """The whole file."""
    return ask_store(path, lambda: _read(path, 0, None))


def read_range(path: str | Path, offset: int, length: int) -> bytes:
    """`length` bytes from `offset` on; fewer where the file ends before."""
    return ask_store(path, lambda: _read(path, offset, length))


def write_bytes(path: str | Path, data: bytes) -> None:
    """A file that is there as a whole or not at all: renamed into its place, or put as one object."""
    if not is_url(path):
        with replacing(local(path)) as temporary:
            temporary.write_bytes(data)
        return
    fs, inner = filesystem(str(path))
    ask_store(path, lambda: fs.pipe_file(inner, data), "write")


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[Path]:
    """Gives a local file to write, which is at `path` once it is complete."""
    if not is_url(path):
        with replacing(local(path)) as temporary:
            yield temporary
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
        temporary = Path(folder) / "file"
        yield temporary
        fs, inner = filesystem(str(path))
        ask_store(path, lambda: fs.put_file(str(temporary), inner), "write")


def size_of(path: str | Path) -> int | None:
    """Bytes of a file; None where there is none."""
    try:
        if not is_url(path):
            return ask_store(path, lambda: os.stat(local(path)).st_size)
        fs, inner = filesystem(str(path))
        return ask_store(path, lambda: fs.info(inner)["size"])
    except Missing:
        return None


def version_of(path: str | Path) -> str:
    """Another one when a file is written anew, by its size and time, or by what the store says instead; "gone" where
    there is none."""
    try:
        if not is_url(path):
            status = ask_store(path, lambda: os.stat(local(path)))
            return f"{status.st_size} {status.st_mtime_ns}"
        fs, inner = filesystem(str(path))
        info = ask_store(path, lambda: fs.info(inner))
        return " ".join(str(info.get(fact)) for fact in _VERSION)
    except Missing:
        return "gone"


def is_folder(path: str | Path) -> bool:
    """Whether there is a folder of that name; on a store, whether names begin with it."""
    if not is_url(path):
        return os.path.isdir(local(path))
    fs, inner = filesystem(str(path))
    return bool(ask_store(path, lambda: fs.isdir(inner)))


def open_file(path: str | Path) -> IO[bytes]:
    """A file to read and seek in; on a store a block is fetched at a time."""
    if not is_url(path):
        return ask_store(path, lambda: _open_local(path))
    fs, inner = filesystem(str(path))
    return ask_store(path, lambda: fs.open(inner, "rb", block_size=_BLOCK))


def entries(folder: str) -> Iterator[Entry]:
    """What lies right in a folder, in the order in which the system or the store has it."""
    if is_url(folder):
        yield from _entries_of_store(folder)
        return
    try:
        with os.scandir(local(folder)) as listed:
            for entry in listed:
                is_link = entry.is_symlink()
                yield Entry(entry.name, entry.path, _is(entry.is_dir), _is(entry.is_file), is_link)
    except OSError as error:
        raise VitrailError(f"cannot open the folder {shown(folder)}: {error.strerror or error}") from None


def filesystem(url: str) -> tuple[Any, str]:
    """The `fsspec` file system of a URL, and the path in it. Settings are the store's own (AWS_ENDPOINT_URL, ...)."""
    protocol, path = urlsplit(url).scheme, url
    fs = _filesystem(protocol)
    return fs, str(fs._strip_protocol(path))


# ---- parts


@functools.cache
def _filesystem(protocol: str) -> Any:
    """One a process and protocol: it holds the connections. It keeps no listings, which would grow without end."""
    import fsspec

    try:
        return fsspec.filesystem(protocol, use_listings_cache=False)
    except ImportError as error:
        raise VitrailError(f"{protocol}:// needs one more package: {error}") from None
    except ValueError:
        raise VitrailError(f"{protocol}:// is no kind of store that fsspec knows: is the address right?") from None


def _entries_of_store(folder: str) -> Iterator[Entry]:
    fs, inner = filesystem(folder)
    for info in ask_store(folder, lambda: fs.ls(inner, detail=True)):
        name = str(info["name"]).rstrip("/").rpartition("/")[2]
        if str(info["name"]).rstrip("/") == inner.rstrip("/"):  # S3 lists an empty object for the folder itself
            continue
        kind = info["type"]
        yield Entry(name, join(folder, name), kind == "directory", kind == "file")


def _read(path: str | Path, offset: int, length: int | None) -> bytes:
    if is_url(path):
        fs, inner = filesystem(str(path))
        end = None if length is None else offset + length
        return bytes(fs.cat_file(inner, start=offset or None, end=end))
    with _open_local(path) as file:
        file.seek(offset)
        return file.read() if length is None else file.read(length)


def _open_local(path: str | Path) -> IO[bytes]:
    """A file. To open a pipe is to wait until somebody writes to it, and a device may never end."""
    kind = os.stat(local(path)).st_mode
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):  # of a folder the system says it itself
        raise Missing(str(path), "is a pipe or a device, not a file")
    return open(local(path), "rb")


def ask_store(path: str | Path, ask: Callable[[], T], verb: str = "read") -> T:
    """`ask`, several times if need be; what comes of it is one of two errors."""
    for attempt in range(TRIES):
        try:
            return ask()
        except VitrailError:
            raise
        except FileNotFoundError:
            why = "is a link that leads nowhere" if os.path.islink(str(path)) else "does not exist"
            raise Missing(str(path), why) from None
        except IsADirectoryError:
            raise Missing(str(path), "is a folder, not a file") from None
        except PermissionError as error:
            raise Missing(str(path), f"cannot be {_participle(verb)}: {error.strerror or error}") from None
        except Exception as error:
            why = " ".join(str(getattr(error, "strerror", None) or error or type(error).__name__).split())[:300]
            if not _passes(path, error):
                raise Missing(str(path), f"cannot be {_participle(verb)}: {why}") from None
            if attempt == TRIES - 1:
                raise Unavailable(
                    f"cannot {verb} {shown(path)}, tried {TRIES} times: {why}; run the same command again"
                ) from None
            time.sleep(PATIENCE * 2**attempt * random.uniform(0.5, 1.0))
    raise AssertionError  # the last attempt returned or raised


def _participle(verb: str) -> str:
    return {"read": "read", "write": "written"}[verb]


def _passes(path: str | Path, error: Exception) -> bool:
    """Whether another time may go better: local disks say so by number, a store's libraries in no one way."""
    if is_url(path):
        return not isinstance(error, ValueError | TypeError | NotImplementedError)
    return isinstance(error, OSError) and error.errno in _PASSING


def _is(kind: Callable[[], bool]) -> bool:
    """`entry.is_dir` or `entry.is_file`, which raise where a link leads to itself."""
    try:
        return kind()
    except OSError:
        return False
