"""`vitrail evaluate`: how good a model is on labelled images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from vitrail.commands.shared_options import DATA_OR_MANIFEST, MODEL, LayoutOptions
from vitrail.commands.shell import Argument
from vitrail.errors import VitrailError
from vitrail.inference.running_options import RunningOptions
from vitrail.option_types import count_or_none, whole_number
from vitrail.options import Option, takes_options
from vitrail.tasks.dense_options import DenseOptions
from vitrail.tasks.registry import task_names

if TYPE_CHECKING:
    from vitrail.dataset import Dataset
    from vitrail.inference.engine import Engine
    from vitrail.weights.checkpoint import Checkpoint

PARTS = ("auto", "train", "val", "test", "all")
AUTO = "auto: test, else val, else what training held out of this data, else all"


class EvaluateOptions(LayoutOptions, RunningOptions, total=False):
    part: Annotated[str, Option("which part of the data", choices=PARTS, default="auto", unset=AUTO)]
    task: Annotated[str | None, Option("what the labels are for", choices=task_names, unset="the model's")]
    bootstrap: Annotated[
        int, Option("resamples for the intervals; 0: none", metavar="N", parse=count_or_none, default=1000)
    ]
    dense: Annotated[DenseOptions | None, Option("what masks and boxes mean", unset="as in training", shell=False)]


@takes_options(EvaluateOptions)
def evaluate(
    model: str | Path | Checkpoint | Engine, data: str | Path | Dataset, **options: Unpack[EvaluateOptions]
) -> dict[str, Any]:
    """What the model's task measures, with 95 % intervals, on the readable images of a part of the data.

    Besides the metrics, the result has model, data, part, engine, precision, unreadable (images and why) and notes.
    """
    from vitrail.dataset import Dataset
    from vitrail.inference.engine import Engine
    from vitrail.inference.evaluation import MEASURED_IN, dataset_for, evaluate_dataset
    from vitrail.inference.predictor import Predictor
    from vitrail.weights.checkpoint import Checkpoint

    precision = MEASURED_IN if options["precision"] == "auto" else options["precision"]
    first = precision if options["engine"] == "torch" else MEASURED_IN  # the data is read before pictures are needed
    engine = Engine.open(model, device=options["device"], precision=first, batch_size=options["batch_size"])
    learned = engine.task.name
    if options["task"] not in (None, learned):
        raise VitrailError(f"the model's task is {learned}, not {options['task']}: give data for {learned}")
    dataset = data if isinstance(data, Dataset) else dataset_for(engine, data, options["layout"], options["dense"])
    if not isinstance(model, Engine) and (options["engine"] != engine.backend.name or options["merge_tokens"] != 0):
        pictures = options["calibration"] or [item.source for item in dataset.items]
        engine.use(options["engine"], precision, pictures, options["device"], options["merge_tokens"])
    predictor = Predictor(engine, workers=options["workers"])
    result = evaluate_dataset(predictor, dataset, part=options["part"], bootstrap=options["bootstrap"])
    return result | {"model": "the model" if isinstance(model, Checkpoint | Engine) else str(model)}


@takes_options(EvaluateOptions)
def run_evaluate(
    model: Annotated[str, Argument(MODEL, "MODEL")],
    data: Annotated[str, Argument(DATA_OR_MANIFEST, "DATA")],
    json: Annotated[bool, Option("print JSON")] = False,
    ignore: Annotated[
        int | None,
        Option("masks: the value of pixels that do not count", metavar="N", parse=whole_number, unset="as in training"),
    ] = None,
    **options: Unpack[EvaluateOptions],
) -> None:
    """Prints every metric with its 95 % interval, each label, the most confused pairs, and how far the probabilities
    can be trusted. Labels are matched by name.
    """
    from json import dumps

    from vitrail.inference.output.metrics_text import to_text
    from vitrail.terminal import print_error, print_text
    from vitrail.text import counted

    if ignore is not None:
        options["dense"] = DenseOptions(ignore=ignore)
    result = evaluate(model, data, **options)
    if not json:
        print_text(to_text(result))
        return
    print_text(dumps(result, indent=2))
    for note in result["notes"]:  # what was left out is said beside the JSON as well
        print_error(note)
    if result["unreadable"]:
        unreadable = counted(len(result["unreadable"]), "image")
        print_error(f"{unreadable} could not be read and did not count")
