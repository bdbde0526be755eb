"""Memory that a server and one of its decoding processes both see. Pages that nobody wrote to take no memory."""

from __future__ import annotations

import mmap
import os
import secrets
import sys
import tempfile

LARGE = 4_000_000  # bytes that are given back after use; the pages of smaller images are used again


def create_buffer(size: int) -> tuple[mmap.mmap, str]:
    """The memory, and the handle with which a child process opens it. On POSIX that is a descriptor to pass on."""
    if sys.platform == "win32":
        tag = f"vitrail-{secrets.token_hex(16)}"
        return mmap.mmap(-1, size, tagname=tag), tag
    if sys.platform == "linux":
        descriptor = os.memfd_create("vitrail-images")
    else:
        descriptor, path = tempfile.mkstemp(prefix="vitrail-images-")
        os.unlink(path)
    os.ftruncate(descriptor, size)
    return mmap.mmap(descriptor, size), str(descriptor)


def open_buffer(handle: str, size: int) -> mmap.mmap:
    """In the child."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size, tagname=handle)
    buffer = mmap.mmap(int(handle), size)
    os.close(int(handle))
    return buffer


def give_back(buffer: mmap.mmap, used: int) -> None:
    """Free the pages of a large image, where the system can."""
    advice = getattr(mmap, "MADV_REMOVE", None)
    if used > LARGE and advice is not None and sys.platform == "linux":
        buffer.madvise(advice)
