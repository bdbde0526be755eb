"""`vitrail search`: the pictures of an index that are most like a picture, or like a part of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from vitrail.commands.shared_options import MAX_PIXELS
from vitrail.commands.shell import Argument
from vitrail.errors import VitrailError
from vitrail.inference.running_options import AnsweringOptions
from vitrail.option_types import box as parse_box
from vitrail.option_types import count
from vitrail.options import Option, takes_options

if TYPE_CHECKING:
    from vitrail.search.index.image_index import ImageIndex, Neighbour


class SearchOptions(AnsweringOptions, total=False):
    top: Annotated[int, Option("pictures to find", metavar="N", parse=count, default=20)]
    box: Annotated[
        tuple[float, float, float, float] | None,
        Option("search by a part of the image, in its pixels", metavar="X,Y,W,H", parse=parse_box),
    ]
    model: Annotated[str | Path | None, Option("where the index's model is now", metavar="MODEL", unset="where it was")]


@takes_options(SearchOptions)
def run_search(
    index: Annotated[str, Argument("the folder that `vitrail index` made", "INDEX")],
    query: Annotated[str, Argument("an image file", "IMAGE")],
    json: Annotated[str | None, Option("write JSON instead; -: on standard output", metavar="FILE")] = None,
    page: Annotated[str | None, Option("write a page with the pictures", metavar="FILE")] = None,
    max_pixels: Annotated[int | None, MAX_PIXELS] = None,
    **options: Unpack[SearchOptions],
) -> None:
    """Prints the most similar pictures of an index, best first, each with its score: the cosine of the two vectors, 1
    for the same picture. In Python it is `vitrail.ImageIndex(INDEX).search(IMAGE)`.
    """
    from vitrail.images.decode_limits import limit_decoding
    from vitrail.search.index.image_index import ImageIndex

    if not Path(query).is_file():
        raise VitrailError(f"{query} is no file: give an image to search by")
    opened = ImageIndex(index)
    if not len(opened):
        raise VitrailError(f"the index {index} is empty: add pictures by `vitrail index {index} IMAGES --add`")
    with limit_decoding(max_pixels):
        found = opened.search(query, **options)
    if page is not None:
        _write_page(Path(page), opened, query, options["box"], found)
    if json is not None:
        _write_json(json, query, options["box"], found)
    elif page is None:
        _print(found)


def _print(found: list[Neighbour]) -> None:
    from vitrail.text import shown

    for one in found:
        print(f"{one.score:.3f}  {shown(one.path)}")


def _write_json(path: str, query: str, box: tuple[float, ...] | None, found: list[Neighbour]) -> None:
    from vitrail.files import write_text
    from vitrail.inference.output.writers import STDOUT
    from vitrail.text import json_text

    record: dict[str, Any] = {"query": query, "results": [one.to_dict() for one in found]}
    if box is not None:
        record["box"] = list(box)
    if path == STDOUT:
        print(json_text(record, indent=2, encoding=sys.stdout.encoding))
    else:
        write_text(path, json_text(record, indent=2) + "\n")


def _write_page(
    path: Path, index: ImageIndex, query: str, box: tuple[float, float, float, float] | None, found: list[Neighbour]
) -> None:
    from vitrail.files import write_text
    from vitrail.report.pages.search_page import search_page
    from vitrail.text import shown

    write_text(path, search_page(index, Path(query), box, found))
    print(f"wrote {shown(path)}", file=sys.stderr)
