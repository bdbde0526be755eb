"""How a model is run: the options of everything that answers for images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

from vitrail.inference.backends.backend import AUTO, BACKENDS
from vitrail.option_types import count, merged_tokens, precision
from vitrail.options import Option

ENGINE_NAMES = (AUTO, *BACKENDS)  # options are resolved among the names of whoever inherits them: AUTO may be another
_running = partial(Option, section="How the model is run")


class DeviceOptions(TypedDict, total=False):
    """Where a model runs, and what it computes in."""

    device: Annotated[str, _running("cuda, mps or cpu", metavar="NAME", default="auto", unset="what is there")]
    precision: Annotated[
        str,
        _running(
            "auto, fp32 or bf16 (heads: float32); int8 with the engines openvino and onnxruntime",
            metavar="NAME",
            parse=precision,
            default="auto",
            unset="predict, serve: bf16 where the processor is fast in it; evaluate, explain: fp32",
        ),
    ]


class RunningOptions(DeviceOptions, total=False):
    """How a model runs over many images."""

    engine: Annotated[
        str,
        _running(
            "what runs the network; auto: the fastest here that gives torch's answers",
            choices=ENGINE_NAMES,
            default="torch",
        ),
    ]
    calibration: Annotated[
        str | Path | Sequence[Any] | None,
        _running(
            "a folder of pictures that --engine auto compares engines on, and that int8 is calibrated on",
            metavar="DIR",
            unset="those that training kept beside the model, else some of those that are given",
        ),
    ]
    merge_tokens: Annotated[
        int | float | str,
        _running(
            "merge so many similar tokens for each block, or as many as cost no more than 0.5% of the accuracy, "
            "measured or expected on --calibration: faster, and less exact",
            metavar="N|DROP%",
            parse=merged_tokens,
            default=0,
        ),
    ]
    batch_size: Annotated[
        int | None, _running("images at once", metavar="N", parse=count, unset="by the model's number of tokens")
    ]
    workers: Annotated[
        int | None,
        _running("images decoded at a time", metavar="N", parse=count, unset="one a core"),
    ]


class AnsweringOptions(RunningOptions, total=False):
    """How a model runs where answers may be a little less exact for speed; `evaluate` has no such choice."""

    fast_decode: Annotated[
        bool,
        _running(
            "decode large JPEGs at 1/2, 1/4 or 1/8 of their size: faster, but probabilities change, by up to 0.17 "
            "in 300 photos",
            default=False,
        ),
    ]
