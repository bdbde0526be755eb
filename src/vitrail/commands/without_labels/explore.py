"""`vitrail explore`: what is in a pile of images, labelled or not, on a page one can look around in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

from vitrail.commands.shared_options import MODEL
from vitrail.commands.shell import Argument
from vitrail.commands.without_labels.pile_options import PILE, PileOptions, running_options
from vitrail.inference.running_options import AnsweringOptions
from vitrail.option_types import count, count_or_none, whole_number
from vitrail.options import Option, takes_options

if TYPE_CHECKING:
    from vitrail.dataset import Dataset
    from vitrail.inference.engine import Engine
    from vitrail.search.pile.exploration import Exploration
    from vitrail.weights.checkpoint import Checkpoint


class ExploreOptions(PileOptions, total=False):
    clusters: Annotated[
        int | None, Option("how many", metavar="N", parse=count, unset="those that separate the images best")
    ]
    seed: Annotated[int, Option("of clusters and map", metavar="N", parse=whole_number, default=0)]


@takes_options(ExploreOptions)
def explore(
    model: str | Path | Checkpoint | Engine, data: str | Path | Dataset, **options: Unpack[ExploreOptions]
) -> Exploration:
    """Near-duplicates, clusters with their typical images, outliers, and a map of all images of DATA."""
    from vitrail.search.pile.exploration import explore_vectors
    from vitrail.search.pile.image_pile import read_pile
    from vitrail.search.pile.image_vectors import image_vectors, open_embedder

    pile = read_pile(data, options["layout"], options["task"])
    embedder = open_embedder(model, options["embeddings"], **running_options(AnsweringOptions, options, pile.paths))
    vectors, places, unreadable = image_vectors(embedder, pile.paths, options["embeddings"])
    found = explore_vectors(vectors, pile.take(places), clusters=options["clusters"], seed=options["seed"])
    found.unreadable.extend(unreadable)
    return found


@takes_options(ExploreOptions)
def run_explore(
    model: Annotated[str, Argument(MODEL, "MODEL")],
    data: Annotated[str, Argument(PILE, "DATA")],
    page: Annotated[str | None, Option("write a page with the map, and all that was found", metavar="FILE")] = None,
    json: Annotated[bool, Option("print JSON")] = False,
    csv: Annotated[str | None, Option("write a row an image: place on the map, cluster, group", metavar="FILE")] = None,
    thumbnails: Annotated[
        int, Option("images that have a small picture on the map", metavar="N", parse=count_or_none)
    ] = 6000,
    **options: Unpack[ExploreOptions],
) -> int:
    """Finds near-duplicates, clusters and outliers by a model's embeddings, and draws a map of all images: zoom, lasso
    to a list of files, colours by class. Labels are not needed. The exit code is 1 where an image could not be read.
    """
    from json import dumps

    from vitrail.errors import VitrailError
    from vitrail.files import write_text
    from vitrail.terminal import print_error, print_text
    from vitrail.text import counted

    for file in (page, csv):
        if file is not None and Path(file).is_dir():
            raise VitrailError(f"{file} is a folder: give the name of a file to write")
    found = explore(model, data, **options)
    print_text(dumps(found.to_dict(), indent=2) if json else str(found))
    if csv is not None:
        from vitrail.inference.output.writers import csv_table

        rows = found.rows()
        with csv_table(csv, list(rows[0])) as write:
            for row in rows:
                write(list(row.values()))
    if page is not None:
        from vitrail.report.pages.explore_page import page as render

        write_text(page, render(found, model=model, data=data, thumbnails=thumbnails))
    for file in (page, csv):
        if file is not None and not json:
            print_text(f"wrote {file}")
    if found.unreadable and json:
        print_error(f"{counted(len(found.unreadable), 'image')} could not be read")
    return 1 if found.unreadable else 0
