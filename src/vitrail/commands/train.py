"""`vitrail train`: train, measure, and leave a report behind."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

from vitrail.commands.shared_options import DATA, MAX_PIXELS, DataOptions
from vitrail.commands.shell import Argument
from vitrail.errors import VitrailError
from vitrail.option_types import count, positive, whole_number
from vitrail.options import Option, takes_options
from vitrail.terminal import print_text

if TYPE_CHECKING:
    from vitrail.training.settings import Settings
    from vitrail.training.stages.finish_run import Finished
else:
    Settings = object  # at run time a name for the annotation below is enough, and --help is faster


class TrainOptions(DataOptions, total=False):
    model: Annotated[str | None, Option("a preset such as S/16 or swin-T", metavar="NAME", unset="chosen")]
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
    epochs: Annotated[float | None, Option("passes over the training images", metavar="N", parse=positive)]
    minutes: Annotated[
        float | None,
        Option("time for everything, the measuring included, instead of --epochs", metavar="M", parse=positive),
    ]
    image_size: Annotated[int | None, Option("pixels a side", metavar="N", parse=count, unset="chosen")]
    batch_size: Annotated[int | None, Option("images a step", metavar="N", parse=count, unset="chosen")]
    lr: Annotated[float | None, Option("peak learning rate", metavar="RATE", parse=positive, unset="chosen")]
    seed: Annotated[
        int | None,
        Option("random seed of the split, the weights and the order", metavar="N", parse=whole_number, unset="0"),
    ]
    settings: Annotated[
        Settings | str | Path | None, Option("a file with any settings; options win over it", metavar="FILE.toml")
    ]
    resume: Annotated[bool, Option("resume the run in RUN where it stopped", default=False)]
    shard: Annotated[bool, Option("under torchrun: shard the model over the processes", default=False)]
    max_pixels: Annotated[int | None, MAX_PIXELS]


# Where an option stands among the settings of a run. All others say how the run is made.
SETTING_NAMES = {
    "model": "model.model",
    "start": "model.start",
    "cnn": "model.cnn",
    "teacher": "train.teacher",
    "unlabelled": "data.unlabelled",
    "epochs": "train.epochs",
    "minutes": "train.minutes",
    "image_size": "model.image_size",
    "batch_size": "train.batch_size",
    "lr": "train.lr",
    "seed": "train.seed",
    "layout": "data.layout",
    "task": "data.task",
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

    settings, resume = _settings(options), options["resume"]
    with limit_decoding(options["max_pixels"]):
        finished = run(data, out, settings, resume=resume, shard=options["shard"], command=command)
        if _is_main():
            write_text(finished.folder.results, json.dumps(finished.results, indent=2) + "\n")
            write_text(finished.folder.report, page(record(finished)))
            bits = finished.checkpoint.preprocessing.bits
            write_samples(finished.items, finished.task.labels, finished.folder.samples, bits)
    return finished


def _settings(options: TrainOptions) -> Settings:
    """The settings of a run: those of the file or object, and the options on top of them."""
    from vitrail.training.settings import Settings

    settings = options["settings"]
    values = {
        SETTING_NAMES[name]: value for name, value in options.items() if name in SETTING_NAMES and value is not None
    }
    for name in {"model.start", "train.teacher", "data.unlabelled"} & values.keys():
        values[name] = str(values[name])
    if options["resume"] and (values or settings is not None):
        named = ", ".join([*values, *(["--settings"] if settings is not None else [])])
        raise VitrailError(f"a resumed run keeps its settings, so leave out {named}, or start a new run")
    if settings is None:
        settings = Settings()
    elif not isinstance(settings, Settings):
        settings = Settings.read(settings)
    return settings.with_values(values)


def _is_main() -> bool:
    """Of several processes under torchrun one writes and prints."""
    return int(os.environ.get("RANK", "0")) == 0


@takes_options(TrainOptions)
def run_train(
    data: Annotated[str, Argument(DATA, "DATA")],
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
        return 128 + stopped.signal_number if stopped.signal_number else 128 + signal.SIGTERM
    if _is_main():
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
