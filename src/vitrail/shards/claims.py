"""Who works on a shard, as a file beside its output, so that two processes do not do the same work.

Nothing depends on it but time: an output is renamed into its place as a whole, and whoever writes it writes the same
bytes. So a claim that is lost, or taken over too early, costs a shard's time and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator

from vitrail.storage import is_url, local

STALE = 600.0  # seconds without a sign of life after which a claim of another machine is taken over
_TOUCH = 20.0  # seconds between two signs


@contextlib.contextmanager
def claimed(output: str, gone: Collection[str] = ()) -> Iterator[Callable[[], None] | None]:
    """Gives a function to call now and then while working, or None where another process works on it.

    gone: processes, in the words of `owner_of`, that are known to have ended. On a store there are no claims: give each
    process its own part."""
    if is_url(output):
        yield lambda: None
        return
    path = f"{local(output)}.claim"
    if not _take(path, gone):
        yield None
        return
    last = time.monotonic()

    def touch() -> None:
        nonlocal last
        if time.monotonic() - last > _TOUCH:
            last = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(path)

    try:
        yield touch
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def owner_of(output: str) -> str:
    """'process 17 on node-3', of a claim that is there."""
    try:
        return in_words(*_owner(f"{local(output)}.claim"))
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def in_words(host: str, pid: int) -> str:
    """A process among those of all machines."""
    return f"process {pid} on {host}"


def _take(path: str, gone: Collection[str]) -> bool:
    """Whether the claim is ours now: there was none, or its owner is gone."""
    for _ in range(2):
        try:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            if not _is_stale(path, gone):
                return False
            with contextlib.suppress(OSError):
                os.unlink(path)
            continue
        except OSError:
            return True  # a claim that cannot be made prevents no work; if nothing can be written, the output says so
        try:
            with os.fdopen(handle, "w") as file:
                json.dump({"host": socket.gethostname(), "pid": os.getpid()}, file)
        except OSError:  # the disk is full: an empty claim would be taken for another process's
            with contextlib.suppress(OSError):
                os.unlink(path)
        return True
    return False


def _is_stale(path: str, gone: Collection[str]) -> bool:
    try:
        if time.time() - os.stat(path).st_mtime > STALE:
            return True
        host, pid = _owner(path)
    except FileNotFoundError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False  # it is being written, or cannot be read: its age will tell
    if in_words(host, pid) in gone:
        return True
    if host != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return pid == os.getpid()  # ours, of an attempt that failed


def _owner(path: str) -> tuple[str, int]:
    with open(path, encoding="utf-8") as file:
        about = json.load(file)
    return str(about["host"]), int(about["pid"])
