"""`vitrail explain`: answers with their reasons, as text, a page, PNG files or JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack, overload

from vitrail.commands.shared_options import MODEL_OR_PRESET
from vitrail.commands.shell import Argument
from vitrail.errors import VitrailError
from vitrail.explanation.explain_options import ExplainOptions
from vitrail.options import Option, takes_options
from vitrail.terminal import print_text
from vitrail.text import counted, shown

if TYPE_CHECKING:
    from vitrail.explanation.output.result import Explanation
    from vitrail.inference.engine import Engine
    from vitrail.inference.read_source import Source
    from vitrail.weights.checkpoint import Checkpoint

STDOUT = "-"
MOST = 200  # images of one command: each is kept with all its maps


@overload
def explain(  # type: ignore[overload-overlap]  # a text is an iterable of texts too, but one image
    model: str | Path | Checkpoint | Engine, images: Source, **options: Unpack[ExplainOptions]
) -> Explanation: ...
@overload
def explain(
    model: str | Path | Checkpoint | Engine, images: Iterable[Source], **options: Unpack[ExplainOptions]
) -> list[Explanation]: ...
@takes_options(ExplainOptions)
def explain(
    model: str | Path | Checkpoint | Engine, images: Source | Iterable[Source], **options: Unpack[ExplainOptions]
) -> Explanation | list[Explanation]:
    """Why the model answers as it does: for an image, or for several a list in their order.

    images: a path, the bytes of a file, a Pillow image or an array; or several of these.
    """
    from vitrail.explanation.explainer import Explainer
    from vitrail.inference.read_source import SOURCES

    explainer = Explainer(model, **options)
    if isinstance(images, SOURCES):
        return explainer(images)
    return [explainer(image, f"image number {number}") for number, image in enumerate(images, start=1)]


@takes_options(ExplainOptions)
def run_explain(
    model: Annotated[str, Argument(MODEL_OR_PRESET, "MODEL")],
    images: Annotated[Sequence[str], Argument("files, or folders (all images in them)", "IMAGES...", several=True)],
    out: Annotated[str | None, Option("write an HTML page with all maps and the walk", metavar="FILE")] = None,
    png: Annotated[str | None, Option("write every map as a picture, for slides", metavar="DIR")] = None,
    json: Annotated[
        str | None, Option("write the numbers; -: on standard output instead of text", metavar="FILE")
    ] = None,
    **options: Unpack[ExplainOptions],
) -> int:
    """Where the answer comes from, what each token attends to in each block and head, and a walk from pixels to the
    answer. The model runs as always: fused attention, the same answer.
    """
    from vitrail.explanation.explainer import Explainer
    from vitrail.explanation.output.explanation_text import averaged, trust_table
    from vitrail.images.unreadable import UnreadableImage

    if out and Path(out).is_dir():
        raise VitrailError(f"{out} is a folder: give the name of the page to write, such as {Path(out) / 'page.html'}")
    paths = _paths(images)
    options["walk"] = options["every_query"] = out is not None
    explainer = Explainer(model, **options)
    quiet = json == STDOUT
    explanations: list[Explanation] = []
    for path in paths:
        try:
            explanation = explainer(path)
        except UnreadableImage as error:
            print_text(f"{shown(path)}: error: {error.why}", sys.stderr if quiet else sys.stdout)
            continue
        explainer.walk = False  # one walk shows the network; a second would repeat it
        explanations.append(explanation)
        if not quiet:
            _print(explanation)
    if len(explanations) > 1 and explainer.compare and not quiet:
        print_text(f"over {counted(len(explanations), 'image')}")
        print_text("\n".join(trust_table(averaged(explanations))))
    if explanations and json is not None:
        _write_json(explanations, json)
    if explanations and png is not None:
        _write_pngs(explanations, png)
    if explanations and out is not None:
        _write_page(explanations, out, model, explainer.checkpoint)
    return 0 if len(explanations) == len(paths) else 1


def _paths(images: Sequence[str]) -> list[str | Path]:
    from vitrail.inference.prefetch import Pause
    from vitrail.inference.sources import STDIN, expand

    if STDIN in images:
        raise VitrailError("explain takes files and folders, not standard input: name the images")
    paths = [path for path in expand(images) if not isinstance(path, Pause)]
    if not paths:
        raise VitrailError("no images were found")
    if len(paths) > MOST:
        raise VitrailError(f"{len(paths):,} images are more than the {MOST} that one command explains: name fewer")
    return paths


def _print(explanation: Explanation) -> None:
    from vitrail.explanation.output.explanation_text import lines_of, trust_table

    print_text("\n".join(lines_of(explanation)))
    if explanation.curves:
        print_text("\n".join(trust_table(explanation.curves)))


def _write_json(explanations: list[Explanation], file: str) -> None:
    from json import dumps

    from vitrail.explanation.output.explanation_json import as_json
    from vitrail.files import write_text

    text = dumps([as_json(explanation) for explanation in explanations], ensure_ascii=True) + "\n"
    if file == STDOUT:
        sys.stdout.write(text)
    else:
        write_text(file, text)


def _write_pngs(explanations: list[Explanation], folder: str) -> None:
    from vitrail.explanation.output.map_png import file_prefixes, write_pngs

    names = file_prefixes([explanation.name for explanation in explanations])
    count = sum(len(write_pngs(one, folder, name)) for one, name in zip(explanations, names, strict=True))
    print_text(f"wrote {counted(count, 'picture')} to {folder}", sys.stderr)


def _write_page(explanations: list[Explanation], file: str, model: str, checkpoint: Checkpoint) -> None:
    from vitrail.files import write_text
    from vitrail.report.pages.explain_page import page

    write_text(file, page(explanations, model=model, checkpoint=checkpoint))
    print_text(f"wrote {file}", sys.stderr)
