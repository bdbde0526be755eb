"""An image by its address: a file, a member of a tar, a cell of a Parquet file, here or on a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from vitrail.images.unreadable import UnreadableImage
from vitrail.storage import Missing

MOST_BYTES = 1 << 30  # of one image file: what claims to be larger is not fetched


@dataclass(frozen=True, slots=True)
class StoredImage(ABC):
    """`name` is what rows and errors call it."""

    name: str

    @abstractmethod
    def fetch(self) -> bytes:
        """Its bytes; Missing, UnreadableImage or Unavailable otherwise."""

    @property
    def holder(self) -> str:
        """The address of the file that it lies in; "" where it lies in none."""
        return ""

    def read(self) -> bytes:
        """Its bytes, in whatever thread decodes it, or UnreadableImage. `Unavailable` goes through: it is not the
        image's fault, and a row that says so would stay."""
        try:
            data = self.fetch()
        except Missing as error:
            raise UnreadableImage(self.name, "missing", error.why) from None
        if not data:
            raise UnreadableImage(self.name, "empty", "is empty (0 bytes)")
        return data
