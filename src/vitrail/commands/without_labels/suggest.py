"""`vitrail suggest`: which images of a pile to label next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

from vitrail.commands.shared_options import MODEL
from vitrail.commands.shell import Argument
from vitrail.commands.without_labels.pile_options import PileOptions, running_options
from vitrail.errors import VitrailError
from vitrail.inference.running_options import AnsweringOptions
from vitrail.option_types import count, whole_number
from vitrail.options import Option, takes_options

if TYPE_CHECKING:
    from vitrail.dataset import Dataset
    from vitrail.inference.engine import Engine
    from vitrail.search.pile.suggestion import Suggestion
    from vitrail.weights.checkpoint import Checkpoint

PILE = "a folder of images to choose from; labels in it are not looked at"


class SuggestOptions(PileOptions, total=False):
    number: Annotated[int, Option("images to suggest", metavar="N", parse=count, default=50)]
    labelled: Annotated[
        str | Path | None,
        Option("images that have labels already: nothing like them is suggested", metavar="DATA"),
    ]
    seed: Annotated[int, Option("of the draw in piles of thousands", metavar="N", parse=whole_number, default=0)]


@takes_options(SuggestOptions)
def suggest(
    model: str | Path | Checkpoint | Engine, pile: str | Path | Dataset, **options: Unpack[SuggestOptions]
) -> Suggestion:
    """The images of PILE that are most worth a label: the model is unsure of them, and no two tell the same.

    A model without a head, or for numbers or depth, does not say how sure it is: then they are diverse only.
    """
    from vitrail.inference.predictor import Predictor
    from vitrail.search.pile.image_pile import read_pile, without
    from vitrail.search.pile.image_vectors import image_vectors, open_embedder
    from vitrail.search.pile.suggestion import suggest_images
    from vitrail.search.pile.uncertainty import uncertainty_of

    given = read_pile(pile, options["layout"], options["task"])
    known = None if options["labelled"] is None else read_pile(options["labelled"])
    images = given if known is None else without(given, known)
    predictor = Predictor(model, **running_options(AnsweringOptions, options, images.paths))
    embedder = open_embedder(predictor.engine, options["embeddings"], workers=options["workers"])
    vectors, places, unreadable = image_vectors(embedder, images.paths, options["embeddings"])
    images = images.take(places)
    labelled = None if known is None else image_vectors(embedder, known.paths, options["embeddings"]).vectors
    unsure = uncertainty_of(predictor, embedder, images.paths, vectors)
    found = suggest_images(vectors, images, options["number"], unsure, labelled, options["seed"])
    found.unreadable.extend(unreadable)
    return found


@takes_options(SuggestOptions)
def run_suggest(
    model: Annotated[str, Argument(MODEL, "MODEL")],
    pile: Annotated[str, Argument(PILE, "PILE")],
    page: Annotated[str | None, Option("write a page with their pictures", metavar="FILE")] = None,
    csv: Annotated[str | None, Option("write them as a table; -: on standard output", metavar="FILE")] = None,
    json: Annotated[bool, Option("print JSON")] = False,
    **options: Unpack[SuggestOptions],
) -> int:
    """Prints the paths of the images that are most worth a label, the most helpful first: those that the model is
    unsure of, in regions where many images are like them, and no two alike.
    """
    from json import dumps

    from vitrail.files import write_text
    from vitrail.inference.output.writers import STDOUT, csv_table
    from vitrail.terminal import print_error, print_text
    from vitrail.text import counted, shown

    for file in (page, csv):
        if file is not None and Path(file).is_dir():
            raise VitrailError(f"{file} is a folder: give the name of a file to write")
    if json and csv == STDOUT:
        raise VitrailError("--json and --csv - would both write to standard output: give --csv a file")
    found = suggest(model, pile, **options)
    rows = found.rows()
    if csv is not None:
        with csv_table(csv, list(rows[0])) as write:
            for row in rows:
                write(list(row.values()))
    if json:
        print_text(dumps(found.to_dict(), indent=2))
    elif csv != STDOUT:
        print_text("\n".join(shown(row["image"]) for row in rows))
    if page is not None:
        from vitrail.report.pages.suggest_page import page as render

        write_text(page, render(found, model=model, pile=pile))
    for note in found.notes:
        print_error(note)
    if found.unreadable:
        print_error(f"{counted(len(found.unreadable), 'image')} could not be read")
    return 1 if found.unreadable else 0
