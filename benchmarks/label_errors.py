"""How many wrong labels are found: labels are flipped at random, and the list is read from the top.

    python -m benchmarks.label_errors MODEL DATA [--share 0.05] [--seeds 5] [--write]

MODEL: whose vectors are looked at; it is not trained on the data. DATA: a folder of classes whose labels are taken to
be right, though some are not: what is found of them counts as wrong here. Recall: of the flipped labels, how many are
within the first share * 1.5 of the list.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from vitrail.data.layouts.recognise import read_dataset
from vitrail.dataset import Dataset, Item
from vitrail.inference.auto.machine import processor
from vitrail.search.embeddings import Embedder
from vitrail.search.labels.label_errors import label_errors
from vitrail.search.labels.out_of_fold import knn_probabilities, out_of_fold_probabilities, probe_probabilities
from vitrail.search.pile.image_vectors import image_vectors
from vitrail.search.probe_dataset import LabelledVectors

RESULTS = Path(__file__).parent / "results" / "label_errors.md"
LENGTH = 1.5  # of the list that is read, times the number of flipped labels
METHODS: dict[str, Callable[[LabelledVectors], np.ndarray]] = {
    "k-NN, leave one out": knn_probabilities,
    "linear probe in folds": probe_probabilities,
    "the mean of both (what `check` does)": out_of_fold_probabilities,
}


def flipped(data: LabelledVectors, share: float, seed: int) -> tuple[LabelledVectors, set[Path]]:
    """The same with so many labels changed to another class at random, and the files that were."""
    generator = np.random.default_rng(seed)
    chosen = set(generator.permutation(len(data.items))[: round(share * len(data.items))].tolist())
    classes = data.task.outputs
    items = [
        dataclasses.replace(item, target=(item.target + int(generator.integers(1, classes))) % classes)
        if place in chosen
        else item
        for place, item in enumerate(data.items)
    ]
    return dataclasses.replace(data, items=items), {items[place].path for place in chosen}


def measure(data: LabelledVectors, wrong: set[Path], probabilities: np.ndarray) -> tuple[float, float, float]:
    """Recall of the first part of the list; recall and precision of what confident learning calls an error."""
    listed = label_errors(data.task.name, data.items, data.task.labels, probabilities)
    first = listed[: round(LENGTH * len(wrong))]
    likely = [error for error in listed if error.likely]
    hits = sum(error.item.path in wrong for error in likely)
    found = sum(error.item.path in wrong for error in first)
    return found / len(wrong), hits / len(wrong), hits / max(1, len(likely))


def embedded(model: Path, dataset: Dataset, kept: Path | None) -> tuple[np.ndarray, list[Item]]:
    """The vectors (N, D) of the readable images, and these. Embedding takes minutes, all else seconds."""
    paths = [item.path for item in dataset.items]
    if kept is not None and kept.exists():
        with np.load(kept) as file:
            vectors, places = file["vectors"], file["places"].tolist()
    else:
        vectors, places, _ = image_vectors(Embedder(model), paths)
        if kept is not None:
            np.savez(kept, vectors=vectors, places=np.array(places))
    return vectors, [dataset.items[place] for place in places]


PAGE = """# Wrong labels found

{today}, {cpu}, {threads} threads, torch {torch}. `{command}`

{model} on {count:,} pictures of {data}, {share:g} % of their labels changed to another class at random, {seeds} seeds
(mean, lowest to highest). 'first {first:g} %': flipped labels within that part of the list. 'called an error': by
confident learning; its precision counts labels that were wrong before as false alarms.

| probabilities | flipped within the first {first:g} % | flipped, called an error | called an error, flipped |
|---|---|---|---|
{rows}
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model", type=Path)
    arguments.add_argument("data", type=Path)
    arguments.add_argument("--share", type=float, default=0.05)
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument(
        "--vectors", type=Path, metavar="FILE.npz", help="keep the vectors there, or take them from it"
    )
    arguments.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = arguments.parse_args()
    dataset = read_dataset(options.data)
    data = LabelledVectors.of(*embedded(options.model, dataset, options.vectors), dataset)
    rows = []
    for name, method in METHODS.items():
        measured = []
        for seed in range(options.seeds):
            changed, wrong = flipped(data, options.share, seed)
            measured.append(measure(changed, wrong, method(changed)))
        columns = np.array(measured).T
        cells = [f"{100 * one.mean():.1f} % ({100 * one.min():.1f} to {100 * one.max():.1f})" for one in columns]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
        print(rows[-1], flush=True)
    if options.write:
        text = PAGE.format(
            today=datetime.datetime.now(tz=datetime.UTC).date(),
            cpu=processor()[0],
            threads=torch.get_num_threads(),
            torch=torch.__version__,
            command=f"python -m benchmarks.label_errors {options.model.name} {options.data.name} --write",
            model=options.model.name,
            data=options.data.name,
            count=len(data.items),
            share=100 * options.share,
            seeds=options.seeds,
            first=100 * LENGTH * options.share,
            rows="\n".join(rows),
        )
        RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
