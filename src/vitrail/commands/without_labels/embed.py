"""`vitrail embed`: what a model makes of each image, as vectors in a Parquet file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

from vitrail.commands.many_images.on_shards import run_on_shards
from vitrail.commands.predict import IMAGES_OR_MANIFEST
from vitrail.commands.shared_options import MAX_PIXELS, MODEL
from vitrail.commands.shell import Argument
from vitrail.errors import VitrailError
from vitrail.inference.running_options import AnsweringOptions
from vitrail.options import Option, options_in, takes_options
from vitrail.shards.shard_options import ModelShardOptions, ShardOptions, manifest_of

if TYPE_CHECKING:
    from vitrail.search.embedding_file import EmbedSummary
    from vitrail.search.embeddings import Embedder
    from vitrail.shards.jobs.embed_job import EmbedJob

CHOICES = ("pooled", "cls", "mean", "both", "patches")


class EmbedOptions(AnsweringOptions, total=False):
    what: Annotated[
        str,
        Option(
            "pooled: the vector that the head reads; cls: the [CLS] token; mean: the mean of the patches; both: these "
            "two side by side; patches: every patch",
            choices=CHOICES,
            default="pooled",
        ),
    ]
    normalise: Annotated[bool, Option("vectors of length 1, whose dot product is the cosine", default=False)]


@takes_options(EmbedOptions)
def embed(
    model: str | Path, images: str | Path | Iterable[str | Path], out: str | Path, **options: Unpack[EmbedOptions]
) -> EmbedSummary:
    """Write a Parquet file with a row an image: id, path, digest, vector, error. Read it with `vitrail.read_vectors`.

    A run that was stopped left its parts beside the file: the same call goes on from them.
    """
    from vitrail.inference.sources import expand
    from vitrail.progress import ProgressBar
    from vitrail.search.embedding_file import embed_to_file
    from vitrail.search.vector_file import import_pyarrow

    import_pyarrow()  # its absence is said before the model is loaded
    given = [images] if isinstance(images, str | Path) else list(images)
    embedder = open_embedder(model, given, what=options["what"], normalise=options["normalise"], **running(options))
    with ProgressBar("embedding") as bar:
        return embed_to_file(embedder, expand(given), out, str(model), lambda _: bar.step())


class RunEmbedOptions(EmbedOptions, ModelShardOptions, total=False):
    pass


@takes_options(RunEmbedOptions)
def run_embed(
    model: Annotated[str, Argument(MODEL, "MODEL")],
    images: Annotated[Sequence[str], Argument(IMAGES_OR_MANIFEST, "IMAGES...", several=True)],
    out: Annotated[
        str, Option("the Parquet file to write; with a manifest: a folder, a Parquet file a shard", metavar="FILE")
    ],
    max_pixels: Annotated[int | None, MAX_PIXELS] = None,
    **options: Unpack[RunEmbedOptions],
) -> int:
    """Writes a Parquet file with a row an image: id, path, content digest, vector, error. What cannot be read is a row
    with its error, and the exit code is then 1. A run that was stopped goes on by the same command.
    """
    from vitrail.images.decode_limits import limit_decoding
    from vitrail.terminal import print_error
    from vitrail.text import counted, shown

    sharding = options_in(ShardOptions, options)
    if (manifest := manifest_of([str(image) for image in images], out, sharding)) is not None:
        return run_on_shards(
            embed_job(model, manifest, max_pixels, options["threads"], options), manifest, out, sharding
        )
    try:
        with limit_decoding(max_pixels):
            summary = embed(model, images, out, **options_in(EmbedOptions, options))
    except KeyboardInterrupt:
        print_error(f"stopped: what was made so far is kept beside {shown(out)}, and the same command goes on from it")
        raise
    if not summary.images:
        print_error("no images were found")
        return 1
    kept = f" ({summary.kept:,} of them by an earlier run)" if summary.kept else ""
    bad = f"; {summary.unreadable:,} could not be read" if summary.unreadable else ""
    print(f"{counted(summary.images, 'image')}{kept} in {shown(summary.path)}{bad}", file=sys.stderr)
    return 1 if summary.unreadable else 0


def embed_job(model: str, manifest: str, max_pixels: int | None, threads: int, options: EmbedOptions) -> EmbedJob:
    """What is done with each shard of a manifest."""
    from vitrail.inference.sources import at_hand
    from vitrail.shards.jobs.embed_job import EmbedJob

    how = running(options)
    if measures(how) and how["calibration"] is None:
        how = {**how, "calibration": at_hand([manifest])}
    return EmbedJob(model, how, options["what"], options["normalise"], threads, max_pixels)


def open_embedder(
    model: str | Path,
    images: Sequence[str | Path],
    *,
    what: str = "pooled",
    normalise: bool = False,
    **options: Unpack[AnsweringOptions],
) -> Embedder:
    """The embedder of a command, whose engine is compared with torch on the images that are given."""
    from vitrail.search.embeddings import Embedder

    return Embedder(model, what=what, normalise=normalise, **checked_on(images, options))


def checked_on(images: Sequence[str | Path], options: AnsweringOptions) -> AnsweringOptions:
    """The options with these images to check an engine on, where one is to be checked and no others are named."""
    from vitrail.inference.prefetch import Pause
    from vitrail.inference.sources import STDIN, expand

    if [str(image) for image in images].count(STDIN) > 1:
        raise VitrailError("'-' is standard input, which can be read once: name it once")
    if measures(options) and options["calibration"] is None and STDIN not in map(str, images):
        return {**options, "calibration": [path for path in expand(images) if not isinstance(path, Pause)]}
    return options


def measures(options: AnsweringOptions) -> bool:
    """Whether an engine is to be compared with torch."""
    return options["engine"] != "torch" or options["merge_tokens"] != 0


def running(options: AnsweringOptions) -> AnsweringOptions:
    """Of a command's options those that say how a model is run."""
    return options_in(AnsweringOptions, options)
