"""Options of the commands that look at a pile of images through a model's embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

from vitrail.commands.shared_options import DataOptions
from vitrail.commands.without_labels.embed import checked_on
from vitrail.inference.running_options import AnsweringOptions
from vitrail.options import Option, options_of

PILE = "a folder of images, labelled or not, a table, or a COCO file"  # help of the argument


class EmbeddingsOptions(TypedDict, total=False):
    embeddings: Annotated[
        str | Path | None,
        Option("a file of `vitrail embed` by the same model: what it has is not computed again", metavar="FILE"),
    ]


class PileOptions(DataOptions, AnsweringOptions, EmbeddingsOptions, total=False):
    """What is looked at, and through which vectors."""


def running_options(declared: type, options: Any, paths: list[Path]) -> dict[str, Any]:
    """Those of a command's options that are declared to say how a model is run. paths: images that are given, to
    compare engines on."""
    return dict(checked_on(paths, cast(AnsweringOptions, {name: options[name] for name in options_of(declared)})))
