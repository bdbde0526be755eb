"""The files of a folder and of all folders in it, in the order of `predict`, in memory that does not grow with them.

A folder's names are sorted as they come: up to so many in memory, the rest through sorted files on disk.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import IO, NamedTuple

from vitrail.images.listing import is_litter
from vitrail.storage import Entry, entries, is_url, join, local
from vitrail.text import natural, nfc

AT_ONCE = 100_000  # names that are sorted in memory
_READ_BACK = 1024  # bytes of each sorted file at a time: of ten million names there are a hundred files


class Name(NamedTuple):
    """A name in a folder."""

    text: str
    is_folder: bool


def walk(root: str, wanted: Callable[[str], bool], at_once: int = AT_ONCE) -> Iterator[str]:
    """Paths from the root on, of files whose names are wanted, and of links to such that lead nowhere: whoever reads
    them will say so. Links to folders are followed, but no folder is entered twice. 2.jpg comes before 10.jpg."""
    entered: set[tuple[int, int]] = set()
    with contextlib.ExitStack() as stack:
        waiting = [("", _names(root, wanted, at_once, entered, stack))]
        while waiting:
            folder, names = waiting[-1]
            name = next(names, None)
            if name is None:
                waiting.pop()
                continue
            path = f"{folder}/{name.text}" if folder else name.text
            if name.is_folder:
                waiting.append((path, _names(join(root, path), wanted, at_once, entered, stack)))
            else:
                yield path


def _names(
    folder: str,
    wanted: Callable[[str], bool],
    at_once: int,
    entered: set[tuple[int, int]],
    stack: contextlib.ExitStack,
) -> Iterator[Name]:
    if not is_url(folder):
        status = os.stat(local(folder))
        identity = (status.st_dev, status.st_ino)
        if identity in entered:
            return iter(())
        entered.add(identity)
    names = (Name(entry.name, entry.is_folder) for entry in entries(folder) if _is_wanted(entry, wanted))
    return sorted_names(names, at_once, stack)


def _is_wanted(entry: Entry, wanted: Callable[[str], bool]) -> bool:
    if is_litter(entry.name):
        return False
    if entry.is_folder:
        return True
    dead_link = entry.is_link and not entry.is_file and not os.path.exists(entry.path)
    return wanted(entry.name) and (entry.is_file or dead_link)  # not a pipe, which may never end


def sorted_names(names: Iterable[Name], at_once: int, stack: contextlib.ExitStack) -> Iterator[Name]:
    """In natural order, at most `at_once` of them in memory at a time. `stack`: what closes files on the way."""
    runs: list[IO[bytes]] = []
    some: list[Name] = []
    for name in names:
        some.append(name)
        if len(some) == at_once:
            runs.append(_written(sorted(some, key=_key), stack))
            some = []
    some.sort(key=_key)
    if not runs:
        return iter(some)
    return heapq.merge(iter(some), *map(_read_back, runs), key=_key)


def _key(name: Name) -> tuple[list[tuple[int, int, str]], str]:
    return natural(nfc(name.text))


def _written(names: list[Name], stack: contextlib.ExitStack) -> IO[bytes]:
    """Names in a file that goes when it is closed; they hold any byte but 0."""
    file = stack.enter_context(tempfile.TemporaryFile(prefix="vitrail-"))  # noqa: SIM115
    for name in names:
        file.write(b"\0%d%b" % (name.is_folder, os.fsencode(name.text)))
    file.seek(0)
    return file


def _read_back(file: IO[bytes]) -> Iterator[Name]:
    rest = b""
    while chunk := file.read(_READ_BACK):
        *whole, rest = (rest + chunk).split(b"\0")
        yield from (_name(part) for part in whole if part)
    if rest:
        yield _name(rest)
    file.close()


def _name(part: bytes) -> Name:
    return Name(os.fsdecode(part[1:]), part[:1] == b"1")
