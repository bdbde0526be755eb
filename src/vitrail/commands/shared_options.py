"""Options that several commands have."""

from __future__ import annotations

from functools import partial
from typing import Annotated, TypedDict

from vitrail.data.layouts.layout_names import layout_names
from vitrail.option_types import count
from vitrail.options import Option
from vitrail.tasks.registry import task_names

DATA = "a folder, a CSV or Parquet table, or a COCO file"  # help texts of arguments
DATA_OR_MANIFEST = "a folder, a manifest, a CSV or Parquet table, or a COCO file"
MODEL = "a model file or folder, a published name such as vit-s-in1k, or a hub id"
MODEL_OR_PRESET = "a model file or folder, a preset such as S/16, a published name such as dinov2-s, or a hub id"

MAX_PIXELS = Option(
    "pixels of an image; a larger one counts as unreadable", metavar="N", parse=count, unset="179 million"
)

_data = partial(Option, section="How the data is read")


class LayoutOptions(TypedDict, total=False):
    layout: Annotated[str | None, _data("how the data lies", choices=layout_names, unset="recognised")]


class DataOptions(LayoutOptions, total=False):
    task: Annotated[str | None, _data("what is learned from it", choices=task_names, unset="recognised")]
