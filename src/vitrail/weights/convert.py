"""`vitrail convert SRC DST`: any model we read, to our file, to a folder for transformers, or to one for timm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.families import timm, transformers_vit
from vitrail.weights.load import load

TARGETS = ("vitrail", "transformers", "timm")


def convert(source: str | Path, destination: str | Path, to: str = "vitrail", **changes: Any) -> Checkpoint:
    """Load `source` with `changes` (as `vitrail.load` takes them) and write it; gives back what was written.

    vitrail: one file. transformers: a folder that `AutoModelForImageClassification.from_pretrained` loads. timm: a
    folder that `timm.create_model("local-dir:...")` loads.
    """
    if to not in TARGETS:
        raise VitrailError(f"there is no target {to!r}: choose one of {', '.join(TARGETS)}")
    destination = Path(destination)
    if to == "vitrail" and destination.suffix != ".safetensors":
        raise VitrailError(f"our file ends in .safetensors, not {destination.name!r}")
    if to != "vitrail" and destination.is_file():
        raise VitrailError(f"{destination} is a file; {to} weights go into a folder")
    checkpoint = load(source, **changes)
    if to == "vitrail":
        checkpoint.save(destination)
    else:
        (transformers_vit if to == "transformers" else timm).write_folder(checkpoint, destination)
    return checkpoint
