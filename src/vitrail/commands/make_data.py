"""`vitrail make-data`: pictures with exact truth, to try a task without data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack

from vitrail.commands.shell import Argument
from vitrail.errors import VitrailError
from vitrail.option_types import count, whole_number
from vitrail.options import Option, takes_options
from vitrail.progress import Progress, ProgressBar
from vitrail.tasks.registry import synthetic_task_names
from vitrail.terminal import print_text

if TYPE_CHECKING:
    from vitrail.data.synthetic.shapes import Made

KINDS = ("shapes",)


class MakeDataOptions(TypedDict, total=False):
    images: Annotated[int, Option("number of pictures", metavar="N", parse=count, default=5000)]
    size: Annotated[int, Option("pixels a side", metavar="N", parse=count, default=64)]
    seed: Annotated[int, Option("the same seed gives the same pictures", metavar="N", parse=whole_number, default=0)]
    task: Annotated[str, Option("the labels to write", choices=lambda: ("all", *synthetic_task_names()), default="all")]
    workers: Annotated[int | None, Option("threads that draw", unset="one a core, up to 8", shell=False)]
    progress: Annotated[Progress | None, Option("called with (done, of how many)", unset="a bar", shell=False)]


@takes_options(MakeDataOptions)
def make_data(kind: str, out: str | Path, **options: Unpack[MakeDataOptions]) -> Made:
    """Write a set of pictures with the truth of a task, or of all, to the new folder OUT. kind: shapes."""
    from vitrail.data.synthetic.shapes import make_shapes

    if kind not in KINDS:
        raise VitrailError(f"kind is {kind!r}; choose one of {', '.join(KINDS)}")
    with ProgressBar("drawing") as bar:
        options["progress"] = options["progress"] or bar.update
        return make_shapes(out, **options)


@takes_options(MakeDataOptions)
def run_make_data(
    kind: Annotated[str, Argument(f"what to make: {', '.join(KINDS)}", "KIND", choices=KINDS)],
    out: Annotated[str, Argument("a new folder", "OUT")],
    **options: Unpack[MakeDataOptions],
) -> None:
    """Draws textured scenes with shapes, in train, val and test, with labels for every task: the main shape's class,
    the number of shapes, the main one's size, masks and boxes. Prints the commands to try.
    """
    print_text(str(make_data(kind, out, **options)))
