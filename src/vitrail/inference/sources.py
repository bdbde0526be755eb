"""The images that a command line names: files, folders, manifests, and `-` for paths on standard input, one a line."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from vitrail.data.manifest.manifest_file import is_manifest, open_manifest
from vitrail.errors import VitrailError
from vitrail.images.listing import is_image, scan
from vitrail.images.stored_image import StoredImage
from vitrail.inference.prefetch import PAUSE, Pause
from vitrail.text import natural, nfc, shown

STDIN = "-"
PATIENCE = 0.2  # seconds without a new line after which those that came are answered
LINES = 1024  # read ahead at most: standard input may never end
_CHUNK = 1 << 16


def expand(arguments: Iterable[str | Path], stdin: int = 0) -> Iterator[str | Path | Pause]:
    """The paths of the images, in the order and spelling given. What is not there comes too: it will be an error row.

    stdin: the file descriptor that `-` stands for.
    """
    for argument in arguments:
        if str(argument) == STDIN:
            for line in lines_of(stdin):
                yield from [line] if isinstance(line, Pause) else images_of(line)
        elif is_manifest(argument):
            raise VitrailError(f"{shown(argument)} is a manifest, which this command does not take: give its folder")
        else:
            yield from images_of(argument)


def expand_manifests(arguments: Iterable[str | Path], stdin: int = 0) -> Iterator[str | Path | StoredImage | Pause]:
    """The same, and the images of manifests."""
    for argument in arguments:
        stored = str(argument) != STDIN and is_manifest(argument)
        yield from images_of_manifest(argument) if stored else expand([argument], stdin)


def images_of_manifest(path: str | Path) -> Iterator[StoredImage | Pause]:
    """The images of a manifest, a shard at a time. After each a pause: a batch does not reach over the end of a shard,
    so that answers are those of the shard by itself, to the last bit."""
    manifest = open_manifest(path)
    manifest.check_root()
    for shard in manifest.shards:
        yield from manifest.images_of(shard)
        yield PAUSE


def at_hand(arguments: Iterable[str | Path]) -> list[str | Path | StoredImage]:
    """The same as a list, to take some of; of a manifest the first shard, for nobody has memory for all."""
    sources: list[str | Path | StoredImage] = []
    for argument in arguments:
        if is_manifest(argument):
            manifest = open_manifest(argument)
            sources += manifest.images_of(manifest.shards[0])
        else:
            sources += images_of(argument)
    return sources


def images_of(path: str | Path) -> Sequence[str | Path]:
    """The path itself, or the images of a folder and of all folders in it: 2.jpg before 10.jpg, litter left out."""
    if not os.path.isdir(path):  # unlike Path.is_dir, this has an answer for every text
        return [path]
    folder = Path(path)
    listing = scan(folder)
    images = listing.images + [link for link in listing.dead if is_image(link.name)]
    return sorted(images, key=lambda image: [natural(nfc(part)) for part in image.relative_to(folder).parts])


def lines_of(descriptor: int) -> Iterator[str | Pause]:
    """Lines as they come, without empty ones, and a pause where the writer makes one.

    A thread waits for the writer. It reads the descriptor itself, not `sys.stdin`, whose lock it would hold while
    Python ends.
    """
    lines: queue.Queue[str | OSError | None] = queue.Queue(LINES)
    threading.Thread(target=_read_lines, args=(descriptor, lines), daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=PATIENCE)
        except queue.Empty:
            yield PAUSE
            line = lines.get()
        if isinstance(line, OSError):
            raise VitrailError(f"cannot read standard input: {line.strerror or line}")
        if line is None:
            return
        yield line


def _read_lines(descriptor: int, lines: queue.Queue[str | OSError | None]) -> None:
    rest = b""
    try:
        while chunk := os.read(descriptor, _CHUNK):
            *complete, rest = (rest + chunk).split(b"\n")
            for line in complete:
                _put(line, lines)
    except OSError as error:
        lines.put(error)
    _put(rest, lines)
    lines.put(None)


def _put(line: bytes, lines: queue.Queue[str | OSError | None]) -> None:
    line = line.removesuffix(b"\r")
    if line:
        lines.put(os.fsdecode(line))
