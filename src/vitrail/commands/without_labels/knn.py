"""`vitrail knn`: how much a model's frozen features tell about labelled images, without training it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from vitrail.commands.shared_options import DATA, MODEL, DataOptions
from vitrail.commands.shell import Argument
from vitrail.commands.without_labels.pile_options import EmbeddingsOptions, running_options
from vitrail.inference.running_options import RunningOptions
from vitrail.option_types import count, count_or_none
from vitrail.options import Option, takes_options

if TYPE_CHECKING:
    from vitrail.dataset import Dataset
    from vitrail.inference.engine import Engine
    from vitrail.weights.checkpoint import Checkpoint


class KnnOptions(DataOptions, RunningOptions, EmbeddingsOptions, total=False):
    k: Annotated[int, Option("neighbours that answer", metavar="N", parse=count, default=20)]
    bootstrap: Annotated[
        int, Option("resamples for the intervals; 0: none", metavar="N", parse=count_or_none, default=1000)
    ]


@takes_options(KnnOptions)
def knn(
    model: str | Path | Checkpoint | Engine, data: str | Path | Dataset, **options: Unpack[KnnOptions]
) -> dict[str, Any]:
    """k-NN and a linear probe of the model's frozen features: what the data's task measures, with 95 % intervals.

    Measured on the test part by train and val, else on val by train, else in 5 folds. Copies of an image, and images of
    one group, are on one side. The result has `knn`, `linear` (as `vitrail.evaluate` gives them), `by_k`, part,
    compared and measured (images), width, model, data, engine, precision, unreadable and notes.
    """
    from vitrail.data.layouts.recognise import read_dataset
    from vitrail.dataset import Dataset
    from vitrail.inference.evaluation import MEASURED_IN
    from vitrail.search.pile.image_vectors import open_embedder
    from vitrail.search.probe_dataset import check_probeable, probe_dataset

    dataset = data if isinstance(data, Dataset) else read_dataset(data, layout=options["layout"], task=options["task"])
    check_probeable(dataset)
    running = running_options(RunningOptions, options, [item.path for item in dataset.items])
    if options["precision"] == "auto":
        running["precision"] = MEASURED_IN
    embedder = open_embedder(model, options["embeddings"], **running)
    result = probe_dataset(embedder, dataset, options["k"], options["bootstrap"], options["embeddings"])
    return result | {"model": str(model) if isinstance(model, str | Path) else "the model"}


@takes_options(KnnOptions)
def run_knn(
    model: Annotated[str, Argument(MODEL, "MODEL")],
    data: Annotated[str, Argument(DATA, "DATA")],
    json: Annotated[bool, Option("print JSON")] = False,
    **options: Unpack[KnnOptions],
) -> None:
    """The quick test of a representation: what the nearest images say, and what one linear layer can read from the
    features. Classes, labels or numbers of whole images; the model's own head is not used.
    """
    from json import dumps

    from vitrail.search.probe_text import probe_text
    from vitrail.terminal import print_error, print_text
    from vitrail.text import counted

    result = knn(model, data, **options)
    if not json:
        print_text(probe_text(result))
        return
    print_text(dumps(result, indent=2))
    if result["unreadable"]:
        print_error(f"{counted(len(result['unreadable']), 'image')} could not be read and did not count")
