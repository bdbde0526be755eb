"""How well a model tells pictures unlike those it learnt from, and by which distance.

    python -m benchmarks.familiarity DATA STRANGERS MODEL... [--leave-out WORD...] [--scratch MODEL...] [--write]

DATA: a folder with the parts train and test that the models were trained on. STRANGERS: a folder of pictures of other
things. --leave-out: strangers whose names hold one of these words, because they are what the models learnt.
--scratch: models that did not start from published weights; their rows say so. --side: the pixels a side of DATA's
pictures. Strangers are measured as they are and, so that they do not differ by their sharpness, shrunk to that size.

Every distance is fitted to the pictures that the run trained on and those that it held out. AUROC: how often a test
picture is nearer than a stranger. 'pass': test pictures with a familiarity of at least 0.05; 'caught': strangers below.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from vitrail.data.layouts.recognise import read_dataset
from vitrail.data.loading.rng import permutation
from vitrail.data.loading.split import digest_files, hold_out
from vitrail.inference.auto.machine import processor
from vitrail.inference.image_processor import ImageProcessor
from vitrail.training.distributed import Processes
from vitrail.training.validate import HeldOutImages, outputs_of
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.familiarity.kept_vectors import UNFAMILIAR
from vitrail.weights.familiarity.reference_vectors import fit_familiarity, most_vectors
from vitrail.weights.load import load

RESULTS = Path(__file__).parent / "results" / "familiarity.md"


@dataclass(frozen=True)
class Pictures:
    """What a model makes of some pictures."""

    outputs: Tensor  # (N, K)
    pooled: Tensor  # (N, D)

    def __getitem__(self, places: Tensor) -> Pictures:
        return Pictures(self.outputs[places], self.pooled[places])


@dataclass(frozen=True)
class Parts:
    """The pictures of a run, and strangers to it."""

    train: Pictures
    classes: Tensor  # (N,) of train
    held_out: Pictures
    test: Pictures
    strangers: Pictures
    shrunk: Pictures  # the same strangers, as small as the run's pictures


Distance = Callable[[Pictures], Tensor]  # of each picture


def run_all(checkpoint: Checkpoint, paths: list[Path]) -> Pictures:
    """One pass over the pictures, as `predict` reads them."""
    images = HeldOutImages(paths, ImageProcessor(checkpoint.preprocessing, checkpoint.config.is_dense), 1)
    pooled: list[Tensor] = []
    outputs = outputs_of(checkpoint.model, images, range(len(paths)), Processes(), pooled=pooled)
    return Pictures(outputs, torch.stack(pooled))


def shrink(paths: list[Path], folder: Path, side: int) -> list[Path]:
    """The same pictures at side x side pixels, as JPEG."""
    for path in paths:
        with Image.open(path) as image:
            image.convert("RGB").resize((side, side), Image.Resampling.LANCZOS).save(folder / path.name, quality=90)
    return [folder / path.name for path in paths]


def read_parts(checkpoint: Checkpoint, data: Path, strangers: list[Path], shrunk: list[Path]) -> Parts:
    """The data as the run divided it; of the training part as many as a model file keeps."""
    training = checkpoint.provenance["training"]
    dataset = read_dataset(data)
    if training["holdout"] is not None:
        digests = digest_files([item.path for item in dataset.items])
        dataset = hold_out(dataset, training["holdout"], training["seed"], digests)
    parts = {part: dataset.part(part) for part in ("train", "val", "test")}
    order = permutation(training["seed"], 1, len(parts["train"]))[: most_vectors(checkpoint.config.pooled_width)]
    parts["train"] = tuple(parts["train"][place] for place in order)
    train, held_out, test = (run_all(checkpoint, [item.path for item in parts[part]]) for part in parts)
    classes = torch.tensor([item.target for item in parts["train"]])
    return Parts(train, classes, held_out, test, run_all(checkpoint, strangers), run_all(checkpoint, shrunk))


# ---- distances


def neighbours(reference: Tensor, k: int, own: Tensor | None = None) -> Distance:
    """The mean cosine distance to the k nearest. own: vectors of the reference that are asked for again, and then do
    not count themselves."""
    rows = torch.nn.functional.normalize(reference, dim=1)

    def distance(pictures: Pictures) -> Tensor:
        similarity = torch.nn.functional.normalize(pictures.pooled, dim=1) @ rows.T
        if own is not None and pictures.pooled is own:
            similarity[similarity > 1 - 1e-6] = -torch.inf
        return 1 - similarity.topk(k, dim=1).values.mean(1)

    return distance


def gaussian(vectors: Tensor, classes: Tensor) -> Distance:
    """Mahalanobis to the nearest class mean, with one covariance for all (Lee et al. 2018)."""
    means = torch.stack([vectors[classes == one].mean(0) for one in classes.unique()])
    centred = vectors - means[torch.searchsorted(classes.unique(), classes)]
    covariance = centred.T @ centred / len(vectors)
    shrunk = covariance + 0.01 * covariance.diagonal().mean() * torch.eye(len(covariance))
    root = torch.linalg.cholesky(torch.linalg.inv(shrunk.double())).float()

    def distance(pictures: Pictures) -> Tensor:
        return torch.cdist(pictures.pooled @ root, means @ root).min(1).values

    return distance


def kept_distance(vectors: Tensor) -> Distance:
    """That of model files."""
    familiarity = fit_familiarity(vectors, vectors)
    assert familiarity is not None
    return lambda pictures: torch.from_numpy(familiarity.distances(pictures.pooled.numpy()))


def unsureness(pictures: Pictures) -> Tensor:
    """1 - the largest probability."""
    return 1 - pictures.outputs.softmax(1).max(1).values


def energy(pictures: Pictures) -> Tensor:
    """Minus the log-sum-exp of the logits (Liu et al. 2020)."""
    return -pictures.outputs.logsumexp(1)


def distances(parts: Parts) -> dict[str, Distance]:
    """By what they are called."""
    train, held_out = parts.train.pooled, parts.held_out.pooled
    both = torch.cat([train, held_out])
    found: dict[str, Distance] = {
        "1 - largest probability": unsureness,
        "energy": energy,
        "class means, shared covariance": gaussian(train, parts.classes),
        "one mean, covariance": gaussian(train, torch.zeros_like(parts.classes)),
        "one mean, covariance, unit vectors (what is kept)": kept_distance(train),
        "the same, of 300": kept_distance(train[:300]),
        "the same, of 100": kept_distance(train[:100]),
    }
    found |= {f"{k} nearest of {len(train):,} training pictures": neighbours(train, k) for k in (1, 5, 20, 50)}
    found |= {f"5 nearest of {count:,} training pictures": neighbours(train[:count], 5) for count in (100, 300, 1000)}
    found |= {f"{k} nearest held-out pictures": neighbours(held_out, k, held_out) for k in (1, 5, 20)}
    found["5 nearest training and held-out pictures"] = neighbours(both, 5, held_out)
    return found


# ---- measures


def auroc(inside: Tensor, outside: Tensor) -> float:
    """How often one of outside is farther than one of inside; half for a tie."""
    order = torch.cat([inside, outside]).double()
    ranks = (order[:, None] > order[None]).double().sum(1) + (order[:, None] == order[None]).double().sum(1) / 2
    count = len(outside)
    return float((ranks[len(inside) :].sum() - count * count / 2) / (len(inside) * count))


def familiarity_of(distance: Tensor, held_out: Tensor) -> Tensor:
    """The share of held-out pictures that are at least as far, counted with the picture itself."""
    return (1 + (held_out[None] >= distance[:, None]).double().sum(1)) / (1 + len(held_out))


def row(name: str, distance: Distance, parts: Parts) -> str:
    held_out, test = distance(parts.held_out), distance(parts.test)
    return f"| {name} | {cells(held_out, test, distance(parts.strangers), distance(parts.shrunk))} |"


def cells(held_out: Tensor, test: Tensor, strangers: Tensor, shrunk: Tensor) -> str:
    """The measures of one distance."""
    familiar = familiarity_of(test, held_out) >= UNFAMILIAR
    caught = [familiarity_of(one, held_out) < UNFAMILIAR for one in (strangers, shrunk)]
    shares = [f"{100 * float(one.double().mean()):.1f} %" for one in (familiar, *caught)]
    return f"{shares[0]} | {auroc(test, strangers):.3f} | {shares[1]} | {auroc(test, shrunk):.3f} | {shares[2]}"


def kept_row(name: str, checkpoint: Checkpoint, parts: Parts) -> str:
    """By what the model file keeps, or, where it is of an earlier version, by what a run would keep."""
    kept = checkpoint.familiarity or fit_familiarity(parts.train.pooled, parts.held_out.pooled)
    assert kept is not None
    pictures = [part.pooled.numpy() for part in (parts.test, parts.strangers, parts.shrunk)]
    held_out, test, strangers, shrunk = map(torch.from_numpy, (kept.held_out, *map(kept.distances, pictures)))
    return f"| {name} | {len(kept.vectors):,} | {cells(held_out, test, strangers, shrunk)} |"


HEADER = "pass | AUROC | caught | AUROC, shrunk | caught, shrunk"
PAGE = """# Pictures unlike those a model learnt from

{today}, {cpu}, {threads} threads, torch {torch}, float32. `{command}`

{counts}

Pass: test pictures that are called familiar, 95 % are to be. AUROC: how often a test picture is nearer than a stranger,
0.5 by chance. Caught: strangers that are called unfamiliar. Shrunk: strangers at {side} x {side} px as the run's own
pictures are, so that sharpness does not give them away. A model file of an earlier version keeps nothing: here it gets
what a run would keep. These strangers are far from what was learnt; a new class of the same kind is nearer.

## What model files keep

{kept}

## Other distances

{tables}
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("data", type=Path)
    arguments.add_argument("strangers", type=Path)
    arguments.add_argument("models", type=Path, nargs="+")
    arguments.add_argument("--leave-out", nargs="*", default=[], metavar="WORD")
    arguments.add_argument("--scratch", type=Path, nargs="*", default=[], metavar="MODEL")
    arguments.add_argument("--side", type=int, default=128)
    arguments.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = arguments.parse_args()
    found = [
        path
        for path in sorted(options.strangers.glob("*.jpg"))
        if not any(word in path.name for word in options.leave_out)
    ]
    folder = tempfile.TemporaryDirectory()
    shrunk = shrink(found, Path(folder.name), options.side)
    tables, kept, counts = [], [], ""
    for model in [*options.models, *options.scratch]:
        checkpoint = load(model)
        parts = read_parts(checkpoint, options.data, found, shrunk)
        scratch = model in options.scratch
        accuracy = checkpoint.provenance["training"]["metrics"]["accuracy"]
        name = f"{'from scratch' if scratch else 'fine-tuned'}, {100 * accuracy:.1f} % accuracy"
        rows = [row(which, distance, parts) for which, distance in distances(parts).items()]
        tables.append(f"### {name}\n\n| distance | {HEADER} |\n|---|---|---|---|---|---|\n" + "\n".join(rows))
        print(tables[-1], flush=True)
        kept.append(kept_row(name, checkpoint, parts))
        print(kept[-1], flush=True)
        counts = (
            f"{len(parts.train.pooled):,} training, {len(parts.held_out.pooled):,} held-out and "
            f"{len(parts.test.pooled):,} test pictures of {options.data.name}; {len(found):,} strangers of "
            f"{options.strangers.name}, without {', '.join(options.leave_out) or 'none left out'}."
        )
    if options.write:
        names = " ".join(path.parent.name for path in options.models)
        text = PAGE.format(
            today=datetime.datetime.now(tz=datetime.UTC).date(),
            cpu=processor()[0],
            threads=torch.get_num_threads(),
            torch=torch.__version__,
            command=f"python -m benchmarks.familiarity {options.data.name} {options.strangers.name} {names}",
            counts=counts,
            side=options.side,
            kept=f"| model | vectors | {HEADER} |\n|---|---|---|---|---|---|---|\n" + "\n".join(kept),
            tables="\n\n".join(tables),
        )
        RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
