"""Learning without labels in a given time: k-NN against lightly's SimCLR and DINO, and what it saves in labels.

    python benchmarks/train.py data cifar10                    once: the images
    pip install --no-deps lightly lightning-utilities                              once: the peers
    python benchmarks/pretrain.py knn --minutes 60             ours and both peers, the same encoder, the same time
    python benchmarks/pretrain.py labels --minutes 60 --tuning 15
    python benchmarks/pretrain.py attention --minutes 10

knn: CIFAR-10 without labels, one process after another, each on all cores it is given; then `vitrail knn` on the test
part, with the training part as neighbours. labels: 1, 10 and 100 % of the labels of CIFAR-10, fine-tuned for `--tuning`
minutes from a run of `--minutes` without labels, against training from scratch for the sum of both. attention:
generated scenes, the Jaccard index of the 60 % mass mask of the last block's [CLS] attention, best head, with the true
object, before and after. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
from pathlib import Path
from typing import Any

from training.places import BENCHMARKS, add_shared, dataset
from training.results import percent, table_row, write_section
from training.running import new_folder, run_peer, vitrail_evaluate, vitrail_train
from training.subsets import link_part

RESULTS = BENCHMARKS / "results" / "pretrain.md"
HEADING = "# Learning without labels\n\nEach section says when, where and by which command.\n"
PACKAGES = ("torch", "lightly")
TEST_IMAGES = 10_000
SCENE_SIDE = 96  # pixels
MASS = 0.6


# ---- k-NN against lightly


def run_knn(given: argparse.Namespace) -> None:
    """Ours by each of `--methods`, then the peers."""
    data, rows = dataset(given.work, "cifar10"), []
    model = given.model
    for method in given.methods:
        out = new_folder(given.work, f"pretrain-{method}")
        run = vitrail_train(given.vitrail, data, out, ["--minutes", given.minutes, "--method", method], "pretrain")
        model = model or out / "model.safetensors"
        speed = run.rows[-1]["images_per_second"]
        rows.append((f"vitrail, {method}", speed, run.rows[-1]["epoch"], measured(out, data, given), run.seconds))
    for peer in given.peers:
        if model is None:
            raise SystemExit("the peers take the encoder of a run of ours: name its model file with --model")
        file = new_folder(given.work, f"lightly-{peer}").with_suffix(".safetensors")
        options = ["--method", peer, "--data", data, "--model", model, "--out", file, "--minutes", given.minutes]
        result = run_peer("lightly_ssl", [*options, *(["--bf16"] if given.bf16 else [])], given.work)
        epochs = result["images_per_second"] * result["seconds"] / 50_000
        rows.append(
            (f"lightly, {peer}", result["images_per_second"], epochs, measured(file, data, given), result["wall"])
        )
    lines = [
        "| | images/s | epochs | k-NN on 10,000 test images (95 % interval) | linear probe | wall |",
        "|---|---|---|---|---|---|",
    ]
    for name, speed, epochs, (knn, linear), wall in rows:
        cells = (f"{speed:,.0f}", f"{epochs:.1f}", percent(knn, TEST_IMAGES), f"{100 * linear:.2f} %", f"{wall:.0f} s")
        lines.append(table_row(name, *cells))
    title = f"CIFAR-10 without labels for {given.minutes:g} minutes"
    write_section(given.results, title, lines, PACKAGES, HEADING)


def measured(model: Path, data: Path, given: argparse.Namespace) -> tuple[float, float]:
    """k-NN and linear probe of the test part."""
    command = [str(given.vitrail), "knn", str(model), str(data), "--json", "--bootstrap", "0"]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return result["knn"]["metrics"]["accuracy"], result["linear"]["metrics"]["accuracy"]


# ---- how many labels it saves


def run_labels(given: argparse.Namespace) -> None:
    """Fine-tuning from a run without labels against from scratch, both in the same total time."""
    data = dataset(given.work, "cifar10")
    start = given.model
    if start is None:
        start = new_folder(given.work, "pretrain-for-labels")
        vitrail_train(given.vitrail, data, start, ["--minutes", given.minutes], "pretrain")
    lines = [
        f"| labels | {given.minutes:g} minutes without labels, then {given.tuning:g} with | "
        f"{given.minutes + given.tuning:g} minutes from scratch | ahead |",
        "|---|---|---|---|",
    ]
    for share in given.shares:
        part = labelled_part(data, given.work / f"cifar10-{share:g}", share)
        scores = []
        for name, options in (
            ("tuned", ["--minutes", given.tuning, "--from", start]),
            ("scratch", ["--minutes", given.minutes + given.tuning]),
        ):
            out = new_folder(given.work, f"labels-{share:g}-{name}")
            vitrail_train(given.vitrail, part, out, options)
            scores.append(vitrail_evaluate(given.vitrail, out / "model.safetensors", part)["metrics"]["accuracy"])
        ahead = f"{100 * (scores[0] - scores[1]):+.1f}"
        lines.append(table_row(f"{share:g} %", *(percent(score, TEST_IMAGES) for score in scores), ahead))
    write_section(given.results, f"Few labels of CIFAR-10, {given.minutes:g} minutes", lines, PACKAGES, HEADING)


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
    lines = ["| method | random weights | after | ratio |", "|---|---|---|---|"]
    for method in given.methods:
        out = new_folder(given.work, f"attention-{method}")
        options: list[Any] = ["--minutes", given.minutes, "--method", method]
        vitrail_train(given.vitrail, data, out, options, "pretrain")
        before, after = measure_attention(out, SCENE_SIDE, MASS, given.picture)
        lines.append(table_row(method, f"{before:.3f}", f"**{after:.3f}**", f"{after / before:.2f}"))
    title = f"Attention on generated scenes after {given.minutes:g} minutes"
    write_section(given.results, title, lines, ("torch",), HEADING)


def main() -> None:
    """One measurement of three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("knn", "labels", "attention"))
    parser.add_argument("--minutes", type=float, default=60.0, help="without labels")
    parser.add_argument("--tuning", type=float, default=15.0, help="labels: minutes of fine-tuning")
    parser.add_argument("--methods", nargs="*", default=["auto"], help="of vitrail pretrain")
    parser.add_argument("--peers", nargs="*", default=["simclr", "dino"], choices=("simclr", "dino"))
    parser.add_argument("--shares", nargs="*", type=float, default=[1.0, 10.0, 100.0], help="labels: per cent")
    parser.add_argument("--model", type=Path, help="a run that is there already, instead of a new one of ours")
    parser.add_argument("--bf16", action="store_true", help="peers: bfloat16, as ours where the CPU computes in it")
    parser.add_argument("--scenes", type=int, default=4000, help="attention: how many to learn from")
    parser.add_argument("--picture", type=Path, help="attention: write a picture of some scenes here")
    add_shared(parser)
    parser.set_defaults(results=RESULTS)
    given = parser.parse_args()
    given.work = given.work.expanduser()
    {"knn": run_knn, "labels": run_labels, "attention": run_attention}[given.what](given)


if __name__ == "__main__":
    main()
