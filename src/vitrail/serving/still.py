"""Files that the server gives out: the page and the samples. All are read at the start, and a request names one of
these or none: no path from outside ever opens a file."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from vitrail.data.names import natural, nfc, shown
from vitrail.errors import VitrailError

WEB = Path(__file__).parent / "web"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
SAMPLES = 12
SAMPLE_BYTES = 8_000_000
SAMPLE_TYPES = {"JPEG": "image/jpeg", "MPO": "image/jpeg", "PNG": "image/png"}


@dataclass(frozen=True)
class Still:
    name: str
    kind: str
    data: bytes


def web_files() -> dict[str, Still]:
    """By name: everything in web/ of a known type."""
    files = sorted(WEB.iterdir()) if WEB.is_dir() else []
    return {
        path.name: Still(path.name, TYPES[path.suffix], path.read_bytes())
        for path in files
        if path.suffix in TYPES and path.is_file()
    }


def samples_of(model: str | Path, folder: str | Path | None) -> list[Still]:
    """The first pictures of the folder, or of `samples` beside the model file, where there is one."""
    if folder is not None and not Path(folder).is_dir():
        raise VitrailError(f"there is no folder {folder} with samples")
    place = Path(model)
    beside = (place if place.is_dir() else place.parent) / "samples"
    chosen = Path(folder) if folder is not None else beside if place.exists() else None
    if chosen is None or not chosen.is_dir():
        return []
    found: list[Still] = []
    for path in sorted(chosen.iterdir(), key=lambda path: natural(nfc(path.name))):
        if len(found) == SAMPLES:
            break
        sample = _sample(path)
        if sample is not None:
            found.append(sample)
    return found


def _sample(path: Path) -> Still | None:
    try:
        if not path.is_file() or path.stat().st_size > SAMPLE_BYTES:
            return None
        data = path.read_bytes()
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
            kind = SAMPLE_TYPES[image.format or ""]
    except (OSError, ValueError, SyntaxError, KeyError):  # not one of the pictures that a browser is given
        return None
    return Still(shown(path.stem), kind, data)
