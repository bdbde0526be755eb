"""`vitrail export MODEL --format onnx --out DIR`: a model as a file that other runtimes take, checked against it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack

from vitrail.commands.shared_options import MODEL
from vitrail.commands.shell import Argument
from vitrail.errors import VitrailError
from vitrail.option_types import count, names, size
from vitrail.options import Option, takes_options
from vitrail.terminal import print_text

if TYPE_CHECKING:
    from vitrail.inference.exporting.export_model import ExportedModel
    from vitrail.weights.checkpoint import Checkpoint

DYNAMIC = "dynamic"


def batch_size(text: str) -> int | str:
    """'dynamic', or a whole number above 0."""
    if text == DYNAMIC:
        return text
    try:
        return count(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither {DYNAMIC} nor a whole number above 0") from None


class ExportOptions(TypedDict, total=False):
    format: Annotated[str, Option("what the file is for", choices=("onnx", "openvino", "torch"), default="onnx")]
    size: Annotated[
        tuple[int, int] | None, Option("the image size it takes", metavar="H[xW]", parse=size, unset="the model's own")
    ]
    batch: Annotated[
        int | str,
        Option("images at once: dynamic for any number, or N", metavar="N", parse=batch_size, default=DYNAMIC),
    ]
    precision: Annotated[
        str,
        Option("what the weights are kept in", choices=("fp32", "bf16", "int8"), default="fp32"),
    ]
    preprocessing: Annotated[
        str,
        Option(
            "inside: the file takes uint8 pixels and normalises them itself; resizing is left to you",
            choices=("outside", "inside"),
            default="outside",
        ),
    ]
    outputs: Annotated[
        list[str],
        Option(
            "what it gives besides the answer: embedding, patches, attention", metavar="NAMES", parse=names, default=()
        ),
    ]
    images: Annotated[
        str | Path | None,
        Option(
            "pictures to check the file on, and to calibrate int8 on: a file or a folder",
            metavar="FILE|DIR",
            unset="seeded noise; int8: those that a run keeps beside its model",
        ),
    ]


@takes_options(ExportOptions)
def export(model: str | Path | Checkpoint, out: str | Path, **options: Unpack[ExportOptions]) -> ExportedModel:
    """Write the model into the folder `out` as `model.onnx`, `model.xml` with `model.bin`, or `model.pt2`, and
    `model.json` beside it with what the file's own metadata say. A file whose answers are not the model's is not left
    there."""
    from vitrail.inference.engine import open_model
    from vitrail.inference.exporting.export_model import (
        FORMATS,
        PRECISIONS,
        PREPROCESSING,
        ExportSettings,
        export_checkpoint,
    )
    from vitrail.weights.checkpoint import Checkpoint

    for name, known in (("format", FORMATS), ("precision", PRECISIONS), ("preprocessing", PREPROCESSING)):
        if (given := dict(options)[name]) not in known:
            raise VitrailError(f"{name} is {given!r}: choose one of {', '.join(known)}")
    batch, asked = options["batch"], options["size"]
    if batch != DYNAMIC and (not isinstance(batch, int) or batch < 1):
        raise VitrailError(f"batch is {batch!r}: give {DYNAMIC} or a whole number above 0")
    settings = ExportSettings(
        format=options["format"],
        size=(asked, asked) if isinstance(asked, int) else asked,
        batch=batch if isinstance(batch, int) else None,
        precision=options["precision"],
        inside=options["preprocessing"] == "inside",
        outputs=tuple(options["outputs"]),
        images=options["images"],
        model_path=None if isinstance(model, Checkpoint) else model,
    )
    checkpoint = model if isinstance(model, Checkpoint) else open_model(model)
    return export_checkpoint(checkpoint, Path(out), settings)


@takes_options(ExportOptions)
def run_export(
    model: Annotated[str, Argument(MODEL, "MODEL")],
    out: Annotated[str, Option("the folder to write to", metavar="DIR")],
    **options: Unpack[ExportOptions],
) -> None:
    """Writes the model as a file for ONNX Runtime, OpenVINO or torch alone, with labels, preprocessing and calibration
    in it, and checks that the file gives the model's answers."""
    exported = export(model, out, **options)
    parts = sorted(path for path in Path(out).iterdir() if path.name.startswith(exported.path.stem + "."))
    megabytes = sum(path.stat().st_size for path in parts) / 1e6
    print_text(f"wrote {exported.path} ({megabytes:.1f} MB)")
    entry = exported.metadata["input"]
    shape = " x ".join("any" if side is None else str(side) for side in entry["shape"])
    print_text(f"  input   {entry['name']}, {entry['type']}, {shape}")
    for name, output in exported.metadata["outputs"].items():
        print_text(f"  output  {name}: {output['meaning']}")
    print_text(f"  {exported.check.in_words()}")
