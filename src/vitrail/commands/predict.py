"""`vitrail predict`: images in, a row each out, and an exit code that says whether all could be read."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

from vitrail.commands.many_images.on_shards import run_on_shards
from vitrail.commands.shared_options import MAX_PIXELS, MODEL
from vitrail.commands.shell import Argument
from vitrail.errors import VitrailError
from vitrail.inference.running_options import AnsweringOptions
from vitrail.option_types import count
from vitrail.options import Option, options_in, takes_options
from vitrail.progress import ProgressBar
from vitrail.shards.shard_options import ModelShardOptions, ShardOptions, manifest_of

if TYPE_CHECKING:
    from vitrail.inference.backends.backend import Backend
    from vitrail.inference.engine import Engine
    from vitrail.inference.output.writers import Write
    from vitrail.inference.predictor import Predictor
    from vitrail.shards.jobs.predict_job import PredictJob

IMAGES = "files, folders (all images in them), or - for paths on standard input, one a line"
IMAGES_OR_MANIFEST = IMAGES.replace(", or -", ", a manifest, or -")


class PredictOptions(AnsweringOptions, ModelShardOptions, total=False):
    unknown: Annotated[
        bool,
        Option(
            "the answer to a picture unlike those of training is 'unknown'; not for masks, boxes and depth",
            default=False,
        ),
    ]


@takes_options(PredictOptions)
def run_predict(
    model: Annotated[str, Argument(MODEL, "MODEL")],
    images: Annotated[Sequence[str], Argument(IMAGES_OR_MANIFEST, "IMAGES...", several=True)],
    top: Annotated[int, Option("answers an image", metavar="N", parse=count)] = 5,
    json: Annotated[
        str | None, Option("write a JSON list instead; -: JSON lines on standard output", metavar="FILE")
    ] = None,
    csv: Annotated[str | None, Option("write a table instead; -: on standard output", metavar="FILE")] = None,
    out: Annotated[
        str | None,
        Option(
            "masks, overlays or boxes as pictures, and a JSON file about all; with a manifest: JSON lines a shard",
            metavar="DIR",
        ),
    ] = None,
    max_pixels: Annotated[int | None, MAX_PIXELS] = None,
    **options: Unpack[PredictOptions],
) -> int:
    """Prints one row an image, in their order. What cannot be read is a row with its error, and the exit code is
    then 1.
    """
    from vitrail.images.decode_limits import limit_decoding
    from vitrail.inference.image_processor import clipped_note
    from vitrail.inference.output.writers import STDOUT
    from vitrail.inference.sources import STDIN, at_hand, expand_manifests

    running, sharding = options_in(AnsweringOptions, options), options_in(ShardOptions, options)
    _check_streams(images, json, csv)
    if _measures(running) and running["calibration"] is None and STDIN not in map(str, images):
        running["calibration"] = at_hand(images)
    if (manifest := manifest_of([str(image) for image in images], out, sharding)) is not None and out is not None:
        from vitrail.shards.jobs.predict_job import PredictJob

        job = _shard_job(
            PredictJob(model, running, top, options["unknown"], options["threads"], max_pixels), out, json, csv
        )
        return run_on_shards(job, manifest, out, sharding)
    predictor = _predictor(model, running)
    task = predictor.engine.task
    unreadable = clipped = 0
    quiet = STDOUT in (str(json), str(csv)) or (json is None and csv is None)  # the rows themselves show the progress
    with contextlib.ExitStack() as stack:
        stack.enter_context(limit_decoding(max_pixels))
        writes = _outlets(stack, predictor.engine, top, json, csv)
        if out is not None:
            from vitrail.inference.output.answer_files import pictures_in

            writes.append(stack.enter_context(pictures_in(out, task, predictor.checkpoint.preprocessing)))
        bar = stack.enter_context(ProgressBar(enabled=not quiet))
        predictions = predictor.predict(expand_manifests(images), top, unknown=options["unknown"])
        for prediction in stack.enter_context(contextlib.closing(predictions)):
            unreadable += prediction.error is not None
            clipped += prediction.clipped
            for write in writes:
                write(prediction)
            bar.step()
    print(_summary(bar, unreadable, predictor.engine.backend), file=sys.stderr)
    if clipped:
        print(clipped_note(clipped, predictor.engine.processor.preprocessing.bits), file=sys.stderr)
    return 1 if unreadable or not bar.done else 0


def _measures(options: AnsweringOptions) -> bool:
    return options["engine"] != "torch" or options["merge_tokens"] != 0


def _predictor(model: str, options: AnsweringOptions) -> Predictor:
    """With a graph that an earlier start left, torch is not imported: that takes longer than all else."""
    from vitrail.inference.cached_start.cached_engine import open_cached
    from vitrail.inference.cached_start.start_record import file_identity
    from vitrail.inference.predictor import Predictor

    if not _measures(options):  # nothing to remember
        return Predictor(model, **options)
    cached = open_cached(model, options)
    if cached is not None:
        return Predictor.of_cached(cached, options["workers"])
    from vitrail.inference.cached_start.remember_start import remember_start

    before = file_identity(Path(model))
    predictor = Predictor(model, **options)
    remember_start(predictor.engine, options, before)
    return predictor


def _check_streams(images: Sequence[str], json: str | None, csv: str | None) -> None:
    from vitrail.inference.output.writers import STDOUT
    from vitrail.inference.sources import STDIN

    if str(json) == str(csv) == STDOUT:
        raise VitrailError("--json - and --csv - would both write to standard output: give one of them a file")
    if [str(image) for image in images].count(STDIN) > 1:
        raise VitrailError("'-' is standard input, which can be read once: name it once")


def _shard_job(job: PredictJob, out: str, json: str | None, csv: str | None) -> PredictJob:
    if json is not None or csv is not None:
        raise VitrailError(f"rows of a manifest go to {out}: vitrail merge {out} --out FILE makes one file of them")
    return job


def _outlets(stack: contextlib.ExitStack, engine: Engine, top: int, json: str | None, csv: str | None) -> list[Write]:
    from vitrail.inference.output.writers import csv_rows, json_rows, text_lines

    writes: list[Write] = []
    if json is not None:
        writes.append(stack.enter_context(json_rows(json)))
    if csv is not None:
        writes.append(stack.enter_context(csv_rows(csv, engine.task, top, engine.familiarity is not None)))
    return writes or [text_lines(engine.task)]


def _summary(bar: ProgressBar, unreadable: int, backend: Backend) -> str:
    from vitrail.text import counted

    if not bar.done:
        return "vitrail: no images were found"
    seconds = bar.seconds
    text = f"{counted(bar.done, 'image')} in {seconds:.1f} s, {bar.done / max(seconds, 1e-9):.1f} a second"
    text += f", in {backend.precision}" + ("" if backend.name == "torch" else f" by {backend.name}")
    return f"{text}; {unreadable:,} could not be read" if unreadable else text
