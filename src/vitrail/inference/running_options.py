"""How a model is run: the options of everything that answers for images."""

from __future__ import annotations

from functools import partial
from typing import Annotated, TypedDict

from vitrail.option_types import count
from vitrail.options import Option

_running = partial(Option, section="How the model is run")


class DeviceOptions(TypedDict, total=False):
    """Where a model runs."""

    device: Annotated[str, _running("cuda, mps or cpu", metavar="NAME", default="auto", unset="what is there")]


class RunningOptions(DeviceOptions, total=False):
    """How a model runs over many images."""

    batch_size: Annotated[
        int | None, _running("images at once", metavar="N", parse=count, unset="by the model's number of tokens")
    ]
    workers: Annotated[int, _running("images decoded at a time", metavar="N", parse=count, default=2)]
