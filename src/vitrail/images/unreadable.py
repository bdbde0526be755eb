"""A file that gives no image, as one kind of error whose sentence names the file and says why."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from PIL import Image, UnidentifiedImageError

from vitrail.errors import VitrailError
from vitrail.images.decode_limits import decode_limits
from vitrail.images.sniffing import ends_early

_TRUNCATED = ("truncated", "not enough", "unexpected end", "eof", "buffer is smaller", "not large enough")


class UnreadableImage(VitrailError):
    """`kind` is for programs: missing, empty, truncated, damaged, not an image, too large, wrong channels."""

    def __init__(self, name: str, kind: str, why: str) -> None:
        super().__init__(f"{name} {why}")
        self.name, self.kind, self.why = name, kind, why

    def __reduce__(self) -> tuple[type[UnreadableImage], tuple[str, str, str]]:
        return type(self), (self.name, self.kind, self.why)  # it crosses from worker processes


class WrongChannels(ValueError):
    """What the file holds cannot be the channels that were asked for."""


@contextlib.contextmanager
def as_sentences(name: str, data: bytes) -> Iterator[None]:
    """Pillow's decoders raise a dozen kinds of errors on damaged files; whatever comes is one kind from here on."""
    try:
        yield
    except (UnreadableImage, UnidentifiedImageError):  # the second is for the caller, who looks at what it is instead
        raise
    except Image.DecompressionBombError:
        raise too_large(name) from None
    except WrongChannels as error:
        raise UnreadableImage(name, "wrong channels", str(error)) from None
    except MemoryError:
        raise UnreadableImage(name, "too large", "needs more memory than there is: make it smaller first") from None
    except Exception as error:
        why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        if ends_early(data) or isinstance(error, EOFError) or any(word in why.lower() for word in _TRUNCATED):
            raise UnreadableImage(name, "truncated", f"is truncated: its end is missing ({why})") from None
        raise UnreadableImage(name, "damaged", f"is damaged ({why})") from None


def too_large(name: str) -> UnreadableImage:
    """The error for an image of more pixels than are decoded."""
    return UnreadableImage(name, "too large", f"has more than {decode_limits().pixels:,} pixels: make it smaller first")
