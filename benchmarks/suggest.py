"""Is `vitrail suggest` worth it? Labels for 50 suggested images against labels for 50 random ones.

    python benchmarks/suggest.py FLOWERS TEST.txt DEIT    folder of classes, list of test files, model; a minute or two

From 5 labelled images a class, a linear probe on the model's frozen features gives the first probabilities. Then 50
images of the rest get their labels: suggested ones (what `vitrail suggest` calls, with these probabilities), random
ones, those with the highest entropy, those farthest apart. The probe is fitted again and measured on the test images.
Every seed draws other first labels. The constants of `search/pile/suggestion.py` were chosen on seeds 1000 and up,
which are not measured here. The table is written to benchmarks/results/suggest.md.
"""

from __future__ import annotations

import argparse
import datetime
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.results import table_row
from vitrail.data.layouts.recognise import read_dataset
from vitrail.search.linear_probe import fit_probe
from vitrail.search.pile.image_vectors import image_vectors, open_embedder
from vitrail.search.pile.suggestion import choose_images
from vitrail.tasks.registry import task_for
from vitrail.tasks.task import Task

RESULTS = Path(__file__).parent / "results" / "suggest.md"
FIRST = 5  # labelled images a class to begin with
PENALTY = 0.01  # of the probe: there are too few labels to choose one by
Choose = Callable[[Tensor, NDArray[np.int64], NDArray[np.int64], Tensor, int, int], NDArray[np.int64]]


def suggested(features: Tensor, pile: NDArray, known: NDArray, unsure: Tensor, number: int, seed: int) -> NDArray:
    chosen = choose_images(features[pile].numpy(), number, unsure.numpy(), features[known].numpy(), seed)
    return pile[chosen]


def diverse(features: Tensor, pile: NDArray, known: NDArray, unsure: Tensor, number: int, seed: int) -> NDArray:
    """What a model without a head gets."""
    return pile[choose_images(features[pile].numpy(), number, None, features[known].numpy(), seed)]


def random(features: Tensor, pile: NDArray, known: NDArray, unsure: Tensor, number: int, seed: int) -> NDArray:
    return np.random.default_rng(seed).permutation(pile)[:number]


def uncertain(features: Tensor, pile: NDArray, known: NDArray, unsure: Tensor, number: int, seed: int) -> NDArray:
    return pile[np.argsort(-unsure.numpy(), kind="stable")[:number]]


def far_apart(features: Tensor, pile: NDArray, known: NDArray, unsure: Tensor, number: int, seed: int) -> NDArray:
    """k-centre: always the one that is farthest from all labelled ones."""
    unit = torch.nn.functional.normalize(features, dim=1)
    distance = 1 - (unit[pile] @ unit[known].T).amax(1)
    chosen = []
    for _ in range(number):
        chosen.append(int(distance.argmax()))
        distance = torch.minimum(distance, 1 - unit[pile] @ unit[pile[chosen[-1]]])
    return pile[chosen]


WAYS: dict[str, Choose] = {
    "random": random,
    "highest entropy": uncertain,
    "farthest apart (k-centre)": far_apart,
    "`vitrail suggest`, a model without a head": diverse,
    "`vitrail suggest`": suggested,
}


def accuracies(
    features: Tensor, targets: Tensor, test: NDArray, task: Task, number: int, seed: int
) -> dict[str, float]:
    """Test accuracy after labels for `number` more images, chosen each way; "before" is without them."""
    rng = np.random.default_rng(seed)
    train = rng.permutation(np.flatnonzero(~test))
    known = np.concatenate([train[targets[train] == label][:FIRST] for label in range(task.outputs)])
    pile = np.setdiff1d(train, known)
    first = probe(features, targets, known, task)
    unsure = task.uncertainty(first(features[pile]))
    assert unsure is not None
    found = {"before": accuracy(first, features, targets, test)}
    for name, choose in WAYS.items():
        more = choose(features, pile, known, unsure, number, seed)
        after = probe(features, targets, np.concatenate([known, more]), task)
        found[name] = accuracy(after, features, targets, test)
    return found


def probe(features: Tensor, targets: Tensor, places: NDArray, task: Task) -> Callable[[Tensor], Tensor]:
    return fit_probe(features[places], targets[places], task, penalties=(PENALTY,))


def accuracy(probe: Callable[[Tensor], Tensor], features: Tensor, targets: Tensor, test: NDArray) -> float:
    return float((probe(features[test]).argmax(1) == targets[test]).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("test")
    parser.add_argument("model")
    parser.add_argument("--embeddings", help="a file of `vitrail embed`, to begin at once")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--numbers", default="25,50,100")
    given = parser.parse_args()
    dataset = read_dataset(given.data)
    embedder = open_embedder(given.model, given.embeddings, precision="float32")
    vectors, places, _ = image_vectors(embedder, [item.path for item in dataset.items], given.embeddings)
    items = [dataset.items[place] for place in places]
    names = set(Path(given.test).read_text().split())
    test = np.array([item.path.relative_to(dataset.root).as_posix() in names for item in items])
    task = task_for(dataset.task, dataset.labels)
    targets, features = task.encode([item.target for item in items]), torch.from_numpy(vectors)
    lines = [table_row(*["images labelled", "how", "accuracy, mean", "standard error", "ahead of random", "better in"])]
    lines.append(table_row(*["---"] * 6))
    for number in map(int, given.numbers.split(",")):
        seeds = range(given.first_seed, given.first_seed + given.seeds)
        runs = [accuracies(features, targets, test, task, number, seed) for seed in seeds]
        lines += [row(number, name, runs) for name in WAYS]
        print("\n".join(lines[-len(WAYS) :]), flush=True)
    before = np.mean([run["before"] for run in runs])
    RESULTS.write_text(
        f"# Labels for suggested images against labels for random ones\n\n"
        f"{datetime.date.today()}, {platform.machine()}, torch {torch.__version__}. `python benchmarks/suggest.py`: "
        f"{len(items):,} photos of {task.outputs} flowers, {int(test.sum())} of them for the test, DeiT-Ti's frozen\n"
        f"features. {FIRST} labelled photos a class to begin with ({100 * before:.1f} % by a linear probe), then more "
        f"labels, then the probe again.\n{given.seeds} seeds draw the first labels. 'ahead' is in points of accuracy, "
        f"'better in' counts seeds.\n\n" + "\n".join(lines) + "\n",
        encoding="utf-8",
    )


def row(number: int, name: str, runs: list[dict[str, float]]) -> str:
    values = np.array([run[name] for run in runs])
    ahead = values - np.array([run["random"] for run in runs])
    error = values.std(ddof=1) / np.sqrt(len(values))
    better = "" if name == "random" else f"{int((ahead > 0).sum())} of {len(ahead)}"
    gain = "" if name == "random" else f"{100 * ahead.mean():+.1f}"
    accuracy = f"{100 * values.mean():.1f} %"
    return table_row(f"{FIRST} a class + {number}", name, accuracy, f"{100 * error:.1f}", gain, better)


if __name__ == "__main__":
    main()
