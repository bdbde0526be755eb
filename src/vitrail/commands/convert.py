"""`vitrail convert SRC DST`: any model we read, to our file, to a folder for transformers, or to one for timm."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from vitrail.commands.shell import Argument
from vitrail.errors import VitrailError
from vitrail.option_types import count, count_or_none, size
from vitrail.options import Option
from vitrail.terminal import print_text

if TYPE_CHECKING:
    from vitrail.weights.checkpoint import Checkpoint

FORMATS = ("vitrail", "transformers", "timm")


def convert(source: str | Path, destination: str | Path, to: str = "vitrail", **changes: Any) -> Checkpoint:
    """Load `source` with `changes` (as `vitrail.load` takes them) and write it; gives back what was written.

    vitrail: one file. transformers: a folder that `AutoModelForImageClassification.from_pretrained` loads. timm: a
    folder that `timm.create_model("local-dir:...")` loads.
    """
    from vitrail.weights.families import writer
    from vitrail.weights.load import load

    if to not in FORMATS:
        raise VitrailError(f"there is no target {to!r}: choose one of {', '.join(FORMATS)}")
    destination = Path(destination)
    if to == "vitrail" and destination.suffix != ".safetensors":
        raise VitrailError(f"our file ends in .safetensors, not {destination.name!r}")
    if to != "vitrail" and destination.is_file():
        raise VitrailError(f"{destination} is a file; {to} weights go into a folder")
    checkpoint = load(source, **changes)
    if to == "vitrail":
        checkpoint.save(destination)
    else:
        writer(to, checkpoint.config).write_folder(checkpoint, destination)
    return checkpoint


class ConvertOptions(TypedDict, total=False):
    classes: Annotated[int, Option("a new head for so many; 0: no head", metavar="N", parse=count_or_none)]
    channels: Annotated[int, Option("adapt the stem to so many input channels", metavar="N", parse=count)]
    image_size: Annotated[tuple[int, int], Option("resample the positions to this size", metavar="H[xW]", parse=size)]
    attention_window: Annotated[
        int,
        Option("attention inside windows of so many patches a side, for large images", metavar="N", parse=count),
    ]
    heads: Annotated[int, Option("attention heads, where the weights do not tell", metavar="N", parse=count)]
    family: Annotated[str, Option("whose names the weights have, where that is not clear", metavar="NAME")]


def run_convert(
    src: Annotated[str, Argument("a file, a folder, a published name such as dinov2-s, or a hub id", "SRC")],
    dst: Annotated[str, Argument("the file or folder to write", "DST")],
    to: Annotated[str, Option("whose format to write", choices=FORMATS)] = "vitrail",
    **changes: Unpack[ConvertOptions],
) -> None:
    """Reads our file or any known family's, writes ours or theirs."""
    checkpoint = convert(src, dst, to=to, **changes)
    print_text(f"wrote {dst}")
    for note in checkpoint.notes:
        print_text(f"  {note}")
