"""Learning without labels in a given time: k-NN against lightly's SimCLR and DINO, and what it saves in labels.

    python benchmarks/train.py data cifar10                    once: the images
    pip install --no-deps lightly lightning-utilities                              once: the peers
    python benchmarks/pretrain.py knn --minutes 60             ours and both peers, the same encoder, the same time
    python benchmarks/pretrain.py labels --minutes 60 --tuning 15
    python benchmarks/pretrain.py attention
    python benchmarks/pretrain.py trials --settings a.toml b.toml --minutes 8 --cores 0 1

knn: CIFAR-10 without labels, one process after another, each on all cores it is given; then `vitrail knn` on the test
part, with the training part as neighbours. labels: 1, 10 and 100 % of the labels of CIFAR-10, fine-tuned for `--tuning`
minutes from a run of `--minutes` without labels, against training from scratch for the sum of both; what was measured
from scratch is kept, so other settings of the fine-tuning take only its own minutes. attention: generated scenes, the
Jaccard index of the 60 % mass mask of the last block's [CLS] attention, best head, with the true object, before and
after. trials: k-NN after a run by each of several files of settings. Nothing else should run meanwhile.

Rows are written as they come, and a second call adds to them (training/kept_table.py).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import subprocess
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from training.kept_table import KeptTable, keep, kept_value
from training.places import BENCHMARKS, add_shared, dataset
from training.results import percent
from training.running import Run, new_folder, run_peer, vitrail_evaluate, vitrail_train
from training.subsets import link_part

RESULTS = BENCHMARKS / "results" / "pretrain.md"
HEADING = "# Learning without labels\n\nEach section says when, where and by which command.\n"
MINUTES = {"knn": 60.0, "labels": 60.0, "attention": 10.0, "trials": 8.0}
KNN_HEAD = ("", "images/s", "epochs", "k-NN on 10,000 test images (95 % interval)", "linear probe", "wall")
TEST_IMAGES = 10_000
SCENE_SIDE = 96  # pixels
MASS = 0.6


# ---- k-NN against lightly


def run_knn(given: argparse.Namespace) -> None:
    """Ours by each of `--methods`, then the peers."""
    if given.peers:
        check_peers()
    data, model = dataset(given.work, "cifar10"), given.model
    table = new_table(given, f"CIFAR-10 without labels for {given.minutes:g} minutes", KNN_HEAD, bool(given.peers))
    for method in given.methods:
        out = new_folder(given.work, f"pretrain-{method}")
        run = vitrail_train(given.vitrail, data, out, ["--minutes", given.minutes, "--method", method], "pretrain")
        model = model or out / "model.safetensors"
        table.add(f"vitrail, {method}", *cells_of(run, data, given))
    for peer in given.peers:
        if model is None:
            raise SystemExit("the peers take the encoder of a run of ours: name its model file with --model")
        file = new_folder(given.work, f"lightly-{peer}").with_suffix(".safetensors")
        options = ["--method", peer, "--data", data, "--model", model, "--out", file, "--minutes", given.minutes]
        options += [] if given.bf16 is None else ["--bf16" if given.bf16 else "--no-bf16"]
        result = run_peer("lightly_ssl", [*options, "--lr", given.peer_lr], given.work)
        seen = result["steps"] * result["batch"]
        name = f"lightly, {peer}, {result['precision']}, lr {given.peer_lr:g}"
        table.add(name, *row_of(seen, result["epochs"], result["wall"], measured(file, data, given)))


def check_peers() -> None:
    """Rather now than after the first hour."""
    try:
        importlib.import_module("peers.lightly_ssl")
        importlib.import_module("lightly.transforms")
    except ImportError as error:
        raise SystemExit(f"{error}: pip install --no-deps lightly lightning-utilities") from error


def new_table(given: argparse.Namespace, title: str, head: tuple[str, ...], peers: bool = False) -> KeptTable:
    """The rows of earlier calls, and those that come."""
    packages = ("torch", "lightly") if peers else ("torch",)
    return KeptTable(given.results, given.work / "pretrain-rows.json", title, head, packages, HEADING)


def cells_of(run: Run, data: Path, given: argparse.Namespace) -> tuple[str, ...]:
    """The cells of a run of ours."""
    last = run.rows[-1]
    settings = tomllib.loads((run.folder / "settings.toml").read_text())
    seen = last["step"] * settings["train"]["batch_size"]
    return row_of(seen, last["epoch"], run.seconds, measured(run.folder / "model.safetensors", data, given))


def row_of(seen: float, epochs: float, wall: float, scores: tuple[float, float]) -> tuple[str, ...]:
    """seen: images. Their rate is that of the whole run, imports and decoding included."""
    knn, linear = scores
    return (
        f"{seen / wall:,.0f}", f"{epochs:.1f}", percent(knn, TEST_IMAGES), f"{100 * linear:.2f} %", f"{wall:.0f} s"
    )  # fmt: skip


def measured(model: Path, data: Path, given: argparse.Namespace) -> tuple[float, float]:
    """k-NN and linear probe of the test part."""
    command = [str(given.vitrail), "knn", str(model), str(data), "--json", "--bootstrap", "0"]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return result["knn"]["metrics"]["accuracy"], result["linear"]["metrics"]["accuracy"]


# ---- how many labels it saves


def run_labels(given: argparse.Namespace) -> None:
    """Fine-tuning from a run without labels against from scratch, both in the same total time."""
    if len(given.settings) > 1:
        raise SystemExit("labels takes one file of --settings, for its fine-tuning")
    data, total = dataset(given.work, "cifar10"), given.minutes + given.tuning
    start = given.model
    if start is None:
        start = new_folder(given.work, "pretrain-for-labels")
        vitrail_train(given.vitrail, data, start, ["--minutes", given.minutes], "pretrain")
    before = f"{given.minutes:g} minutes without labels, then {given.tuning:g} with"
    head = ("labels", before, f"{total:g} minutes from scratch", "ahead")
    table = new_table(given, f"Few labels of CIFAR-10, {given.minutes:g} and {given.tuning:g} minutes", head)
    for share in given.shares:
        part = labelled_part(data, given.work / f"cifar10-{share:g}", share)
        own = [word for file in given.settings for word in ("--settings", file)]
        tuned = accuracy(f"{share:g}-tuned", part, ["--minutes", given.tuning, "--from", start, *own], given)
        name = f"{share:g} %" + "".join(f", {file.stem}" for file in given.settings)
        table.add(name, percent(tuned, TEST_IMAGES), "", "")
        scratch = kept_value(table.kept, head[2], f"{share:g} %")
        if scratch is None:
            scratch = accuracy(f"{share:g}-scratch", part, ["--minutes", total], given)
            keep(table.kept, head[2], f"{share:g} %", scratch)
        ahead = f"{100 * (tuned - scratch):+.1f}"
        table.add(name, percent(tuned, TEST_IMAGES), percent(scratch, TEST_IMAGES), ahead)


def accuracy(name: str, data: Path, options: list[Any], given: argparse.Namespace) -> float:
    """Of a `vitrail train`, on the test part."""
    out = new_folder(given.work, f"labels-{name}")
    vitrail_train(given.vitrail, data, out, options)
    return vitrail_evaluate(given.vitrail, out / "model.safetensors", data)["metrics"]["accuracy"]


def labelled_part(source: Path, target: Path, share: float) -> Path:
    """CIFAR-10 with so many per cent of each class to learn from, and the same test part; links."""
    if share >= 100:
        return source
    if target.exists():
        return target
    for folder in sorted((source / "train").iterdir()):
        files = sorted(path.name for path in folder.iterdir())
        random.Random(0).shuffle(files)
        link_part(folder, target / "train" / folder.name, files[: round(share / 100 * len(files))])
    (target / "test").symlink_to((source / "test").resolve())
    return target


# ---- does it attend to the object?


def run_attention(given: argparse.Namespace) -> None:
    """Generated scenes: learnt without labels, then measured on scenes that it has not seen."""
    from training.scene_attention import measure_attention, write_scenes

    data = given.work / f"scenes-{given.scenes}"
    if not data.exists():
        write_scenes(data, given.scenes, SCENE_SIDE)
    title = f"Attention on generated scenes after {given.minutes:g} minutes"
    table = new_table(given, title, ("method", "random weights", "after", "ratio"))
    for method in given.methods:
        out = new_folder(given.work, f"attention-{method}")
        options: list[Any] = ["--minutes", given.minutes, "--method", method]
        vitrail_train(given.vitrail, data, out, options, "pretrain")
        before, after = measure_attention(out, SCENE_SIDE, MASS, given.picture)
        table.add(method, f"{before:.3f}", f"**{after:.3f}**", f"{after / before:.2f}")


# ---- which settings are better?


def run_trials(given: argparse.Namespace) -> None:
    """A run by each file of settings; with `--cores`, as many at once, each on a core of its own."""
    if not given.settings:
        raise SystemExit("trials takes files of --settings; an empty one is the defaults")
    data, cores = dataset(given.work, "cifar10"), SimpleQueue[int]()
    for core in given.cores:
        cores.put(core)
    where = f", each on one of {len(given.cores)} cores" if given.cores else ""
    table = new_table(given, f"Trials on CIFAR-10, {given.minutes:g} minutes{where}", KNN_HEAD)
    pinned = partial(pin, cores) if given.cores else None
    with ThreadPoolExecutor(max(1, len(given.cores)), initializer=pinned) as pool:
        names = {pool.submit(trial, data, file, given): file.stem for file in given.settings}
        for done in as_completed(names):
            try:
                table.add(names[done], *done.result())
            except (SystemExit, subprocess.CalledProcessError) as error:  # the others go on
                print(f"{names[done]}: {error}", flush=True)


def pin(cores: SimpleQueue[int]) -> None:
    """This thread, and so each process that it starts, to the next core."""
    os.sched_setaffinity(0, {cores.get()})


def trial(data: Path, settings: Path, given: argparse.Namespace) -> tuple[str, ...]:
    """The cells of a run by these settings."""
    out = new_folder(given.work, f"trial-{settings.stem}")
    options = ["--minutes", given.minutes, "--settings", settings]
    return cells_of(vitrail_train(given.vitrail, data, out, options, "pretrain"), data, given)


def main() -> None:
    """One measurement of four."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=tuple(MINUTES))
    parser.add_argument("--minutes", type=float, help="without labels (default: 60; attention 10, trials 8)")
    parser.add_argument("--tuning", type=float, default=15.0, help="labels: minutes of fine-tuning")
    parser.add_argument("--methods", nargs="*", default=["auto"], help="of vitrail pretrain")
    parser.add_argument("--peers", nargs="*", default=["simclr", "dino"], choices=("simclr", "dino"))
    parser.add_argument("--peer-lr", type=float, default=1e-3, help="of their AdamW")
    parser.add_argument("--shares", nargs="*", type=float, default=[1.0, 10.0, 100.0], help="labels: per cent")
    parser.add_argument("--settings", nargs="*", type=Path, default=[], help="trials: a run each; labels: its tuning")
    parser.add_argument("--cores", nargs="*", type=int, default=[], help="trials: their numbers, a run on each")
    parser.add_argument("--model", type=Path, help="a run that is there already, instead of a new one of ours")
    parser.add_argument(
        "--bf16", action=argparse.BooleanOptionalAction, help="peers (default: where the CPU computes in it, as ours)"
    )
    parser.add_argument("--scenes", type=int, default=4000, help="attention: how many to learn from")
    parser.add_argument("--picture", type=Path, help="attention: write a picture of some scenes here")
    add_shared(parser)
    parser.set_defaults(results=RESULTS)
    given = parser.parse_args()
    given.minutes = given.minutes or MINUTES[given.what]
    given.work = given.work.expanduser().resolve()  # the peers run in another folder
    given.model = given.model.resolve() if given.model else None
    {"knn": run_knn, "labels": run_labels, "attention": run_attention, "trials": run_trials}[given.what](given)


if __name__ == "__main__":
    main()
