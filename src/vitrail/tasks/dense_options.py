"""What a user may have to say about masks and boxes that the files do not say themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.text import shown

IGNORE = 255  # in a mask that was read: nothing is to be learnt here
CHOSEN = -1


@dataclass(frozen=True, slots=True)
class DenseOptions:
    """Everything is found by itself where it is left empty."""

    classes: str = ""  # a file with one name a line, or `index name`; paths are relative to here, else to DATA
    colours: str = ""  # a file with `R G B name` a line, or a CSV with such columns
    ignore: int = CHOSEN  # the index in mask files that is not learnt; CHOSEN: 255, and what is called void
    pairs: str = ""  # "train:trainannot, val:valannot": folders of images and of their masks

    def __post_init__(self) -> None:
        if not CHOSEN <= self.ignore <= 255:
            raise VitrailError(f"ignore is an index from 0 to 255, or {CHOSEN} to have it chosen, not {self.ignore}")

    def file(self, name: str, root: Path) -> Path | None:
        """The file that `classes` or `colours` names, where one does."""
        written: str = getattr(self, name)
        if not written:
            return None
        for path in (Path(written), root / written):
            if path.is_file():
                return path
        raise VitrailError(f"there is no file {shown(written)}, which {name} names")
