"""`vitrail train`: train, measure, and leave a report behind."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

from vitrail.commands.run_options import RUN_SETTINGS, RunOptions, exit_code_of, is_main, settings_of
from vitrail.commands.shared_options import DATA_OR_MANIFEST, DataOptions
from vitrail.commands.shell import Argument
from vitrail.options import Option, takes_options
from vitrail.terminal import print_text

if TYPE_CHECKING:
    from vitrail.training.stages.finish_run import Finished


class TrainOptions(RunOptions, DataOptions, total=False):
    start: Annotated[
        str | Path | None,
        Option("fine-tune this model; 'vitrail models' lists names", metavar="FILE|NAME|HUB-ID", flag="--from"),
    ]
    cnn: Annotated[
        str | None,
        Option("a pre-trained CNN whose features are the tokens, such as timm:resnet18.a1_in1k", metavar="NAME|FILE"),
    ]
    teacher: Annotated[
        str | Path | None,
        Option("a finished model of these classes whose answers are learnt too", metavar="FILE|NAME|HUB-ID|timm:NAME"),
    ]
    unlabelled: Annotated[
        str | Path | None,
        Option(
            "pictures without labels that join the run: the teacher answers about them, or hidden patches are painted",
            metavar="FOLDER",
        ),
    ]
    shard: Annotated[bool, Option("under torchrun: shard the model over the processes", default=False)]


SETTING_NAMES = RUN_SETTINGS | {
    "cnn": "model.cnn",
    "task": "data.task",
    "teacher": "train.teacher",
    "unlabelled": "data.unlabelled",
}


@takes_options(TrainOptions)
def train(data: str | Path, out: str | Path, **options: Unpack[TrainOptions]) -> Finished:
    """Train on the images of DATA into the folder OUT; what is not given is chosen, or stands in `settings`."""
    from vitrail.training.run_context import call_text

    return _train_and_report(data, out, options, call_text(data, out, options))


def _train_and_report(data: str | Path, out: str | Path, options: TrainOptions, command: str) -> Finished:
    """`command`: how the run was started, for its report."""
    import json

    from vitrail.files import write_text
    from vitrail.images.decode_limits import limit_decoding
    from vitrail.report.pages.run_page import page
    from vitrail.report.run_record import record
    from vitrail.report.samples import write_samples
    from vitrail.training.training_run import train as run

    settings, resume = settings_of(options, SETTING_NAMES), options["resume"]
    with limit_decoding(options["max_pixels"]):
        finished = run(data, out, settings, resume=resume, shard=options["shard"], command=command)
        if is_main():
            write_text(finished.folder.results, json.dumps(finished.results, indent=2) + "\n")
            write_text(finished.folder.report, page(record(finished)))
            bits = finished.checkpoint.preprocessing.bits
            write_samples(finished.items, finished.task.labels, finished.folder.samples, bits)
    return finished


@takes_options(TrainOptions)
def run_train(
    data: Annotated[str, Argument(DATA_OR_MANIFEST, "DATA")],
    out: Annotated[str, Option("the folder that the run is written to", metavar="RUN")],
    **options: Unpack[TrainOptions],
) -> int:
    """Trains a Vision Transformer on your images. What you do not give is chosen from the data, the time and the
    machine; every setting stands, explained, in RUN/settings.toml.
    """
    from vitrail.training.loop import Stopped

    try:
        finished = _train_and_report(data, out, options, shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]))
    except Stopped as stopped:
        return exit_code_of(stopped)
    if is_main():
        print_text("\n".join(summary(finished)))
    return 0


def summary(finished: Finished) -> list[str]:
    """The score with its interval, where the model and the report are, and what would have been a better start."""
    from vitrail.tasks.shared.metric_words import over_groups
    from vitrail.training.choices.starting_point import better_start, better_start_words
    from vitrail.training.run_log import clock

    results, task = finished.results, finished.task
    metric = results["main_metric"]
    value = task.show(metric, results["metrics"][metric])
    bounds = [task.show(metric, bound) for bound in results["intervals"].get(metric, ())]
    sureness = f" (95 % interval {' to '.join(bounds)}{over_groups(results)})" if bounds else ""
    where = f"{results['images']:,} {finished.part} images"
    spent = clock(finished.state.seconds)
    images = finished.checkpoint.provenance["training"]["images"]
    device = next(finished.checkpoint.model.parameters()).device.type
    start = better_start(finished.settings, task, images, device)
    return [
        f"{metric} {value}{sureness} on {where}, after {spent} of training",
        *(f"  {note}" for note in results.get("notes", ())),
        f"model:  {finished.folder.model}",
        f"report: {finished.folder.report}",
        *([] if start is None else [better_start_words(start, images)]),
    ]
