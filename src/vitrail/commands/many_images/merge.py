"""`vitrail merge`: the outputs of all shards as one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vitrail.commands.shell import Argument
from vitrail.options import Option

if TYPE_CHECKING:
    from vitrail.shards.output_format import Counts


def merge(folder: str | Path, out: str | Path, job: str | None = None) -> Counts:
    """Write the outputs of a folder's shards as one file, in the order of the manifest. job: the beginning of a
    fingerprint, where the folder holds outputs of several."""
    from vitrail.shards.merge_shards import merge_shards

    return merge_shards(folder, out, job)


def run_merge(
    folder: Annotated[str, Argument("the folder that predict, check or embed wrote for a manifest", "DIR")],
    out: Annotated[str, Option("the file to write", metavar="FILE")],
    job: Annotated[str | None, Option("which job, where the folder holds several", metavar="FINGERPRINT")] = None,
) -> None:
    """Writes one file, equal byte for byte whoever worked on the shards. Every byte of them is checked first."""
    from vitrail.terminal import print_text
    from vitrail.text import counted

    counts = merge(folder, out, job)
    errors = f"; {counts.errors:,} could not be read" if counts.errors else ""
    print_text(f"wrote {out}: {counted(counts.images, 'row')}{errors}")
