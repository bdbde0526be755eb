"""Files that the server gives out: the page and the sample images. All are read once, at the start."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from vitrail import visuals
from vitrail.errors import VitrailError
from vitrail.tasks.report_part import page_folders
from vitrail.text import natural, nfc, shown

WEB = Path(__file__).parent.parent / "web"
VISUALS = Path(visuals.__path__[0])  # has the styles that the page shares with the reports
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
MAX_SAMPLES = 12
MAX_SAMPLE_BYTES = 8_000_000
SAMPLE_TYPES = {"JPEG": "image/jpeg", "MPO": "image/jpeg", "PNG": "image/png"}


@dataclass(frozen=True)
class StaticFile:
    name: str
    content_type: str
    data: bytes
    cache: str | None = None  # the Cache-Control header; None: no-store, as for all answers


def read_web_files() -> dict[str, StaticFile]:
    """By URL path: all of web/ and the styles shared with reports below /web/, the scripts of tasks below /web/tasks/,
    and the page itself at /."""
    paths = {path.relative_to(WEB).as_posix(): path for path in sorted(WEB.rglob("*")) if path.is_file()}
    paths |= {path.name: path for path in sorted(VISUALS.glob("*.css"))}
    for folder in page_folders():
        paths |= {f"tasks/{path.name}": path for path in sorted(Path(folder).glob("*.js"))}
    files = {
        f"/web/{name}": StaticFile(name, CONTENT_TYPES[path.suffix], path.read_bytes(), "no-cache")
        for name, path in paths.items()
        if path.suffix in CONTENT_TYPES
    }
    if "/web/index.html" in files:
        files["/"] = files["/web/index.html"]
    return files


def read_samples(model: str | Path, folder: str | Path | None) -> list[StaticFile]:
    """The first images of the folder, or else of the folder `samples` beside the model file."""
    if folder is not None and not Path(folder).is_dir():
        raise VitrailError(f"there is no folder {folder} with samples")
    source = Path(model)
    beside_model = (source if source.is_dir() else source.parent) / "samples"
    directory = Path(folder) if folder is not None else beside_model if source.exists() else None
    if directory is None or not directory.is_dir():
        return []
    samples: list[StaticFile] = []
    for path in sorted(directory.iterdir(), key=lambda path: natural(nfc(path.name))):
        if len(samples) == MAX_SAMPLES:
            break
        sample = _read_sample(path)
        if sample is not None:
            samples.append(sample)
    return samples


def _read_sample(path: Path) -> StaticFile | None:
    try:
        if not path.is_file() or path.stat().st_size > MAX_SAMPLE_BYTES:
            return None
        data = path.read_bytes()
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
            content_type = SAMPLE_TYPES[image.format or ""]
    except (OSError, ValueError, SyntaxError, KeyError):  # not an image that browsers show
        return None
    return StaticFile(shown(path.stem), content_type, data)
