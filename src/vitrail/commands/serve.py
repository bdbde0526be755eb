"""`vitrail serve`: a page and an HTTP API for a model, on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Unpack

from vitrail.commands.shared_options import MODEL_OR_PRESET
from vitrail.commands.shell import Argument
from vitrail.inference.running_options import AnsweringOptions
from vitrail.option_types import count, port, positive
from vitrail.options import Option, takes_options
from vitrail.serving.decoding.served_formats import FORMATS, OTHER_FORMATS
from vitrail.threads import usable_cores

AUTO = "auto"  # as a token: generate one

_limit = partial(Option, section="Limits")
_access = partial(Option, section="Who may ask")


class ServeOptions(AnsweringOptions, total=False):
    host: Annotated[
        str, Option("the address to listen on", metavar="ADDRESS", default="127.0.0.1", unset="127.0.0.1, this machine")
    ]
    port: Annotated[int, Option("port to listen on; 0: any free one", metavar="N", parse=port, default=8000)]
    index: Annotated[
        str | Path | None, Option("an index of this model to search in, as `vitrail index` makes it", metavar="DIR")
    ]
    samples: Annotated[
        str | Path | None, Option("pictures for the page", metavar="DIR", unset="samples beside the model")
    ]
    token: Annotated[
        str | None, _access("token that requests must carry; auto: one is made up and printed", metavar="TOKEN")
    ]
    allow_host: Annotated[
        Sequence[str],
        _access(
            "a name besides localhost that the server answers to; may be given several times",
            metavar="NAME",
            several=True,
            default=(),
        ),
    ]
    allow_origin: Annotated[
        Sequence[str],
        _access(
            "a page of another origin that may ask, such as https://example.org; several times, or '*'",
            metavar="URL",
            several=True,
            default=(),
        ),
    ]
    max_bytes: Annotated[int | None, _limit("bytes of a request", metavar="N", parse=count, unset="32 million")]
    max_pixels: Annotated[int | None, _limit("pixels of an image", metavar="N", parse=count, unset="50 million")]
    allow_format: Annotated[
        Sequence[str] | None,
        _limit(
            "another format to take besides JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF, HEIC and .npy; several times",
            choices=OTHER_FORMATS,
            several=True,
        ),
    ]
    decode_memory: Annotated[
        int | None, _limit("memory for decoding an image", metavar="BYTES", parse=count, unset="1,500 million")
    ]
    decode_seconds: Annotated[
        float | None, _limit("time for decoding an image", metavar="SECONDS", parse=positive, unset="5")
    ]
    max_images: Annotated[int | None, _limit("images of a request", metavar="N", parse=count, unset="32")]
    queue: Annotated[int | None, _limit("images accepted and not yet answered", metavar="N", parse=count, unset="128")]
    patience: Annotated[
        float | None, _limit("wait for a client that sends nothing", metavar="SECONDS", parse=positive, unset="10")
    ]
    seconds: Annotated[float | None, _limit("time for an answer", metavar="SECONDS", parse=positive, unset="60")]
    stop_seconds: Annotated[
        float | None,
        _limit(
            "time from SIGTERM to the end; what is not answered by then is dropped",
            metavar="SECONDS",
            parse=positive,
            unset="30",
        ),
    ]


@takes_options(ServeOptions)
def serve(model: str | Path, **options: Unpack[ServeOptions]) -> None:
    """Serve a model until SIGTERM or Ctrl-C; then finish the requests in progress.

    model: a file, a folder, a hub id, or a preset (untrained, to look at the network).
    """
    import asyncio
    import secrets

    from vitrail.serving.server import bind_socket, check_access_options, check_installed, limits_from_options

    check_installed()
    limits = limits_from_options(
        bytes=options["max_bytes"],
        pixels=options["max_pixels"],
        images=options["max_images"],
        decode_bytes=options["decode_memory"],
        decode_seconds=options["decode_seconds"],
        formats=(*FORMATS, *(options["allow_format"] or ())),
        queue=options["queue"],
        patience=options["patience"],
        seconds=options["seconds"],
        stop_seconds=options["stop_seconds"],
    )
    token = secrets.token_urlsafe(18) if options["token"] == AUTO else options["token"]
    check_access_options(token, options["allow_origin"])
    with bind_socket(options["host"], options["port"]) as listener:  # before loading: a port in use is reported at once
        from vitrail.inference.engine import Engine
        from vitrail.serving.app import create_app
        from vitrail.serving.job_runner import JobRunner
        from vitrail.serving.middleware.access_policy import AccessPolicy
        from vitrail.serving.routes.static_files import read_samples
        from vitrail.serving.served_index import ServedIndex
        from vitrail.serving.served_model import ServedModel
        from vitrail.serving.server import display_name, run_server

        sample_files = read_samples(model, options["samples"])
        engine = Engine.open(
            model,
            untrained=True,
            engine=options["engine"],
            device=options["device"],
            precision=options["precision"],
            batch_size=options["batch_size"],
            calibration=options["calibration"] or [sample.data for sample in sample_files],
            merge_tokens=options["merge_tokens"],
        )
        served = ServedModel(engine, display_name(model), limits, batch_size=options["batch_size"])
        if options["fast_decode"]:
            served.use_fast_decode()
        found_in = None if options["index"] is None else ServedIndex(options["index"], engine)
        hosts = frozenset(name.lower() for name in [options["host"], *options["allow_host"]])
        workers = options["workers"] or max(2, usable_cores())  # one slow picture keeps not everybody waiting
        runner = JobRunner(served, limits, workers)
        access = AccessPolicy(token, hosts, frozenset(options["allow_origin"]))
        app = create_app(runner, access, sample_files, found_in)
        asyncio.run(run_server(app, runner, listener))


@takes_options(ServeOptions)
def run_serve(model: Annotated[str, Argument(MODEL_OR_PRESET, "MODEL")], **options: Unpack[ServeOptions]) -> None:
    """Starts a server and prints its address: a page to drop pictures on, and an API (/docs) whose requests share the
    model's batches. SIGTERM or Ctrl-C finishes what is in hand.
    """
    serve(model, **options)
