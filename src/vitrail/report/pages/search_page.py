"""The page of `vitrail search --page`: the picture that was asked about, and the pictures that were found."""

from __future__ import annotations

from pathlib import Path

from vitrail.images.decode import read_image
from vitrail.report.pages.rendering import made, render
from vitrail.search.index.add_images import is_plain_file
from vitrail.search.index.image_index import ImageIndex, Neighbour
from vitrail.text import counted, shown
from vitrail.threads import in_threads
from vitrail.visuals.thumbnails import thumbnail

QUERY_SIDE = 320  # pixels of the longer side of the picture that was asked about


def search_page(
    index: ImageIndex, query: Path, box: tuple[float, float, float, float] | None, found: list[Neighbour]
) -> str:
    """One HTML file that needs no other; names of files are text, whatever they contain."""
    pictures = in_threads(lambda one: thumbnail(Path(one.path)), found)
    folder = _shared_folder([Path(one.path) for one in found])
    height, width = read_image(query).shape[:2] if box is not None else (1, 1)
    return render(
        "search.html",
        name=f"Like {shown(query.name)}",
        subtitle=f"{counted(len(found), 'picture')} of {len(index):,} in the index {shown(index.folder)}",
        query={"name": shown(query), "picture": thumbnail(query, QUERY_SIDE)},
        box=None if box is None else _percent(box, height, width),
        found=[
            {
                "name": shown(one.path, folder),
                "path": shown(one.path),
                "picture": picture,
                "missing": "not there any more" if is_plain_file(one.path) else "in a larger file, or on a store",
                "score": f"{one.score:.3f}",
                "percent": f"{100 * max(0.0, one.score):.1f}",
            }
            for one, picture in zip(found, pictures, strict=True)
        ],
        folder="" if folder is None else shown(folder),
        made=f"{made()}; model {shown(index.manifest.facts.model)}",
    )


def _shared_folder(paths: list[Path]) -> Path | None:
    """The folder that all pictures lie in, so that the page can show the rest of their paths."""
    shared = paths[0].parent if paths else None
    for path in paths:
        while shared is not None and shared not in path.parents:
            shared = shared.parent if shared != shared.parent else None
    return shared


def _percent(box: tuple[float, float, float, float], height: int, width: int) -> str:
    """Where the box lies on the picture, as CSS."""
    x, y, across, down = box
    left, top = max(0.0, x), max(0.0, y)
    right, bottom = min(width, x + across), min(height, y + down)
    sides = {
        "left": left / width,
        "top": top / height,
        "width": (right - left) / width,
        "height": (bottom - top) / height,
    }
    return "; ".join(f"{name}: {100 * part:.2f}%" for name, part in sides.items())
