"""`vitrail index`: images as vectors in a folder that can be searched, added to and removed from."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

from vitrail.commands.predict import IMAGES_OR_MANIFEST
from vitrail.commands.shared_options import MAX_PIXELS
from vitrail.commands.shell import Argument
from vitrail.commands.without_labels.embed import EmbedOptions, checked_on, embed_job, open_embedder, running
from vitrail.errors import VitrailError
from vitrail.inference.running_options import AnsweringOptions
from vitrail.options import Option, options_in, takes_options
from vitrail.shards.shard_options import ModelShardOptions, ShardOptions, manifest_of

if TYPE_CHECKING:
    from vitrail.images.unreadable import UnreadableImage
    from vitrail.search.embeddings import Embedder
    from vitrail.search.index.add_images import AddSummary
    from vitrail.search.index.image_index import ImageIndex
    from vitrail.search.index.index_writer import IndexWriter

SOURCE = "a model file, folder, published name or hub id; with --add, --remove or --rebuild, the folder of an index"


class IndexOptions(AnsweringOptions, ModelShardOptions, total=False):
    out: Annotated[str | Path | None, Option("make an index in this folder, or go on with it", metavar="DIR")]
    add: Annotated[bool, Option("add the images to an index; those that changed are replaced", default=False)]
    remove: Annotated[bool, Option("remove the images, or all below a folder, from an index", default=False)]
    rebuild: Annotated[bool, Option("write an index anew, without what was removed", default=False)]
    model: Annotated[str | Path | None, Option("where the index's model is now", metavar="MODEL", unset="where it was")]


@dataclass(frozen=True)
class Outcome:
    """What came of a command, in words."""

    words: str
    errors: Sequence[UnreadableImage] = ()
    unread: bool = False  # some images could not be read


@takes_options(IndexOptions)
def index(
    source: str | Path, images: str | Path | Iterable[str | Path] = (), **options: Unpack[IndexOptions]
) -> ImageIndex:
    """Make an index of images with a model, `index(model, images, out=folder)`, or change one: `index(folder, images,
    add=True)`, `index(folder, images, remove=True)`, `index(folder, rebuild=True)`. The index is given back.

    What is there already is not embedded again, the same content is never there twice, and a file that changed is
    replaced. Whatever stops it leaves an index that is whole. `images` can be a manifest, whose shards are worked on by
    several processes; all of its parts must be done.
    """
    if options["part"] is not None:
        raise VitrailError("part is for the shell: in Python, leave it out")
    index_images(source, images, options)
    from vitrail.search.index.image_index import ImageIndex

    return ImageIndex(options["out"] or source)


@takes_options(IndexOptions)
def run_index(
    source: Annotated[str, Argument(SOURCE, "MODEL|INDEX")],
    images: Annotated[Sequence[str], Argument(IMAGES_OR_MANIFEST, "[IMAGES...]", several=True)] = (),
    max_pixels: Annotated[int | None, MAX_PIXELS] = None,
    **options: Unpack[IndexOptions],
) -> int:
    """Makes a folder of vectors for `vitrail search`: `vitrail index MODEL IMAGES --out DIR`. Then `vitrail index DIR
    IMAGES --add` and `--remove` change it. What is there is not computed again, and a run that was stopped goes on by
    the same command.
    """
    from vitrail.images.decode_limits import limit_decoding
    from vitrail.search.index.index_manifest import is_index, read_manifest
    from vitrail.terminal import print_error
    from vitrail.text import counted, shown

    folder = Path(options["out"] or source)
    try:
        with limit_decoding(max_pixels):
            outcome = index_images(source, images, options, max_pixels)
    except KeyboardInterrupt:
        print_error(f"stopped: what was added so far is in {shown(folder)}, and the same command goes on from it")
        raise
    for error in outcome.errors:
        print_error(str(error))
    print(outcome.words, file=sys.stderr)
    if is_index(folder):  # with --part there may be none yet
        print(f"{shown(folder)}: {counted(read_manifest(folder).size, 'picture')}")
    return 1 if outcome.unread else 0


def index_images(
    source: str | Path,
    images: str | Path | Iterable[str | Path],
    options: IndexOptions,
    max_pixels: int | None = None,
) -> Outcome:
    """Do what the options ask for."""
    from vitrail.search.index.index_writer import writing_index

    given = [images] if isinstance(images, str | Path) else list(images)
    check_grammar(source, given, options)
    target = options["out"] or (source if options["add"] else None)
    sharding = options_in(ShardOptions, options)
    opened = [] if options["remove"] else [str(image) for image in given]  # what is removed may be gone
    manifest = manifest_of(opened, None if target is None else str(target), sharding)
    if manifest is not None:
        return _add_manifest(source, manifest, options, max_pixels)
    if target is not None:
        summary = _add(source, given, options)
        return Outcome(summary.in_words(), summary.errors, bool(summary.errors))
    with writing_index(source) as writer:
        if options["rebuild"]:
            writer.commit(rebuild=True)
            words = "written anew"
        else:
            words = _remove(writer, given)
    make_graph(Path(source), force=options["rebuild"])
    return Outcome(words)


def check_grammar(source: str | Path, images: Sequence[str | Path], options: IndexOptions) -> None:
    """Refuse what does not go together, with the line that was meant."""
    from vitrail.search.index.index_manifest import is_index

    chosen = [f"--{name}" for name in ("out", "add", "remove", "rebuild") if options[name]]
    if len(chosen) > 1:
        raise VitrailError(f"{' and '.join(chosen)} do not go together: give one of them")
    if not chosen:
        hint = (
            f"vitrail index {source} IMAGES --add" if is_index(source) else f"vitrail index {source} IMAGES --out DIR"
        )
        raise VitrailError(f"say what to do: {hint}")
    if options["out"] is not None and is_index(source):
        raise VitrailError(f"{source} is an index: give the model first, or leave out --out and say --add")
    if not images and not options["rebuild"]:
        raise VitrailError("give images: files, folders, or - for paths on standard input")
    if images and options["rebuild"]:
        raise VitrailError("--rebuild takes no images: it writes anew what is in the index")
    if options["model"] is not None and not options["add"]:
        raise VitrailError("--model goes with --add: it says where the index's model is now")


def _add(source: str | Path, images: Sequence[str | Path], options: IndexOptions) -> AddSummary:
    from vitrail.inference.sources import expand
    from vitrail.progress import ProgressBar
    from vitrail.search.index.add_images import add_images
    from vitrail.search.index.index_manifest import is_index, read_manifest
    from vitrail.search.index.index_model import recorded_name
    from vitrail.search.index.index_writer import writing_index
    from vitrail.search.vector_file import facts_of, import_pyarrow

    import_pyarrow()  # its absence is said before a model is loaded
    folder = Path(options["out"] or source)
    facts = None
    if options["out"] is None:
        embedder = _index_embedder(folder, options["model"], images, options)
    else:
        embedder = open_embedder(source, images, normalise=True, **running(options))
        facts = facts_of(embedder, recorded_name(source))
        if is_index(folder) and read_manifest(folder).facts.fingerprint != facts.fingerprint:
            raise VitrailError(f"{folder} is an index of another model: choose another --out")
    with writing_index(folder, facts) as writer, ProgressBar("indexing") as bar:
        summary = add_images(writer, embedder, expand(images), bar.step)
    make_graph(folder)
    return summary


def _add_manifest(source: str | Path, manifest: str, options: IndexOptions, max_pixels: int | None) -> Outcome:
    """The shards become files of vectors first, by as many processes as are asked for, and then rows of the index."""
    from vitrail.progress import ProgressBar
    from vitrail.search.index.index_manifest import is_index, read_manifest
    from vitrail.search.index.index_model import model_places, recorded_name
    from vitrail.search.index.index_writer import check_new_place, writing_index
    from vitrail.search.vector_file import import_pyarrow
    from vitrail.shards.add_to_index import add_shards, facts_of_shards, shards_of
    from vitrail.shards.run_job import run_job
    from vitrail.text import shown

    import_pyarrow()  # its absence is said before a model is loaded
    folder = Path(options["out"] or source)
    there = read_manifest(folder).facts if options["add"] or is_index(folder) else None
    if there is None:
        check_new_place(folder)
    model: str | Path = source
    if there is not None and options["add"]:
        model = options["model"] or next(model_places(folder, there.model), there.model)
    vectors: EmbedOptions = {**running(options), "what": "pooled", "normalise": True}
    made = embed_job(recorded_name(model), manifest, max_pixels, options["threads"], vectors)
    job = replace(made, expected=None if there is None else there.fingerprint)
    result = run_job(job, manifest, shards_of(folder), options_in(ShardOptions, options))
    if options["part"] is not None:
        words = f"{result.in_words()}; when all parts are done, the same command without --part writes the index"
        return Outcome(words, unread=bool(result.errors))
    facts = None if there is not None else facts_of_shards(result.folder, result.manifest)
    with writing_index(folder, facts) as writer, ProgressBar("indexing") as bar:
        summary = add_shards(writer, result.folder, result.manifest, bar.step)
    make_graph(folder)
    words = f"{summary.in_words()}; {shown(shards_of(folder))} can be removed now"
    return Outcome(words, summary.errors, bool(summary.errors))


def _index_embedder(
    folder: Path, model: str | Path | None, images: Sequence[str | Path], options: IndexOptions
) -> Embedder:
    from vitrail.search.index.index_manifest import read_manifest
    from vitrail.search.index.index_model import open_index_model

    return open_index_model(folder, read_manifest(folder), model, **checked_on(images, running(options)))


def _remove(writer: IndexWriter, images: Sequence[str | Path]) -> str:
    from vitrail.inference.prefetch import Pause
    from vitrail.inference.sources import STDIN, lines_of
    from vitrail.search.index.add_images import remove_images
    from vitrail.text import counted, listing, shown

    paths: list[str | Path] = []
    for image in images:  # folders are not opened: what is removed may be gone
        paths += [line for line in lines_of(0) if not isinstance(line, Pause)] if str(image) == STDIN else [image]
    count, unknown = remove_images(writer, paths)
    if not count:
        raise VitrailError(f"none of these is in the index: {listing([shown(path) for path in unknown])}")
    missing = f"; not there: {listing([shown(path) for path in unknown])}" if unknown else ""
    return f"{counted(count, 'picture')} removed{missing}"


def make_graph(folder: Path, force: bool = False) -> None:
    """The HNSW graph of an index that is large, where it is missing or far behind."""
    from vitrail.search.index.hnsw_graph import EXACT_LIMIT, build_graph, needs_graph
    from vitrail.search.index.image_index import ImageIndex
    from vitrail.search.index.index_manifest import read_manifest
    from vitrail.terminal import print_error

    manifest = read_manifest(folder)
    if not needs_graph(folder, manifest) and not (force and manifest.size > EXACT_LIMIT):
        return
    try:
        build_graph(ImageIndex(folder))
    except VitrailError as error:
        print_error(f"searches look at every vector, for there is no graph: {error}")
