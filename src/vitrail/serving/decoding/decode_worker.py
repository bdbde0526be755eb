"""The decoding process: `python -m vitrail.serving.decoding.decode_worker`, started by `worker_process`.

It reads a line of JSON for each image on standard input, and answers with one on standard output. Bytes and pixels lie
in shared memory. It may take so much memory and no more; the server kills it when it takes too long.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
from typing import Any, BinaryIO

import numpy as np

from vitrail.images.decode import known_formats
from vitrail.images.decode_limits import limit_decoding
from vitrail.images.unreadable import UnreadableImage
from vitrail.serving.decoding.picture_reader import Picture, PictureReader
from vitrail.serving.decoding.shared_buffer import open_buffer


def main() -> None:
    """Until standard input ends, which it does with the server."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # both are for the server, which may still have images to answer
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    replies = _take_standard_output()
    settings = json.loads(sys.stdin.buffer.readline())
    reader = PictureReader.from_dict(settings["reader"])
    buffer = open_buffer(settings["buffer"], settings["size"])
    known_formats()  # imports the decoders
    limit_memory(settings["memory"])
    _send(replies, {})
    with limit_decoding(reader.max_pixels, settings["formats"]):
        for line in sys.stdin.buffer:
            _send(replies, _answer(reader, buffer, **json.loads(line)))


def limit_memory(amount: int) -> None:
    """So many bytes more than it has now. Only Linux tells how much that is."""
    if sys.platform == "linux":
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            held = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + amount, held + amount))


def _answer(reader: PictureReader, buffer: mmap.mmap, length: int, name: str) -> dict[str, Any]:
    try:
        return _write(reader.read(buffer[:length], name), buffer)
    except UnreadableImage as error:
        return {"error": [error.kind, error.why]}
    except MemoryError:
        return {"error": ["too large", "needs more memory than it may take: make it smaller first"]}
    except Exception as error:  # whatever a decoder does with one image is that image's error
        return {"error": ["damaged", f"is damaged ({type(error).__name__}: {' '.join(str(error).split())[:200]})"]}


def _write(picture: Picture, buffer: mmap.mmap) -> dict[str, Any]:
    """The arrays go into the buffer one after the other; the answer has their shapes."""
    arrays = [picture.pixels] if picture.whole is None else [picture.pixels, picture.whole]
    offset = 0
    for array in arrays:
        np.frombuffer(buffer, np.uint8, array.size, offset)[:] = array.reshape(-1)
        offset += array.size
    frame = picture.letterbox
    return {
        "size": picture.size,
        "shapes": [array.shape for array in arrays],
        "letterbox": None if frame is None else [frame.own, frame.inside, frame.input],
    }


def _take_standard_output() -> BinaryIO:
    """Replies go where standard output was. What libraries print goes nowhere: clients could fill a disk with it."""
    replies = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    return replies


def _send(replies: BinaryIO, value: dict[str, Any]) -> None:
    replies.write(json.dumps(value).encode() + b"\n")
    replies.flush()


if __name__ == "__main__":
    main()
