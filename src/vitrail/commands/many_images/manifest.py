"""`vitrail manifest`: what images there are and where, in shards that many processes and machines can work on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vitrail.commands.shell import Argument
from vitrail.option_types import count
from vitrail.options import Option
from vitrail.progress import Progress, ProgressBar

if TYPE_CHECKING:
    from vitrail.data.manifest.manifest_file import Manifest

DATA = "a folder of images, .tar or .parquet files, or one of these; here, or a URL such as s3://bucket/photos"


def manifest(data: str | Path, out: str | Path, shard_size: int = 5000, progress: Progress | None = None) -> Manifest:
    """List the images of DATA in Parquet shards, in an order that is always the same. Memory does not grow with them.

    progress: called with (done, done), for nobody knows of how many.
    """
    from vitrail.data.manifest.list_images import list_images, place_of
    from vitrail.data.manifest.manifest_file import write_manifest
    from vitrail.data.parquet_file import require_pyarrow

    require_pyarrow()
    root, file = place_of(str(data))
    return write_manifest(list_images(root, file), root, out, shard_size, progress)


def run_manifest(
    data: Annotated[str, Argument(DATA, "DATA")],
    out: Annotated[str, Option("folder of the manifest: shards as Parquet files, and manifest.json", metavar="DIR")],
    shard_size: Annotated[int, Option("images of a shard, the unit of work", metavar="N", parse=count)] = 5000,
) -> int:
    """Lists images without unpacking or decoding any: files by their path, members of tar files (WebDataset) by offset
    and length, cells of Parquet files by row group and row. Class folders, .cls and .json members and label columns
    become labels. The exit code is 1 where a tar or Parquet file could not be listed to its end.
    """
    from vitrail.terminal import print_text

    with ProgressBar("listing") as bar:
        made = manifest(data, out, shard_size, lambda done, _: bar.update(done, None))
    print_text(in_words(made))
    return 1 if made.errors else 0


def in_words(manifest: Manifest) -> str:
    """'wrote photos.manifest: 40 images in 1 shard, 2 labels (20 cat, 20 dog)'."""
    from vitrail.text import counted, listing

    text = f"wrote {manifest.path}: {counted(manifest.images, 'image')} in {counted(len(manifest.shards), 'shard')}"
    if manifest.labels is None:
        text += ", many labels"
    elif manifest.labels:
        labels = [f"{number:,} {name}" for name, number in manifest.labels.items()]
        text += f", {counted(len(labels), 'label')} ({listing(labels, 3)})"
    if manifest.errors:
        text += f"; {counted(manifest.errors, 'file')} could not be listed to the end: the rows say why"
    return text
