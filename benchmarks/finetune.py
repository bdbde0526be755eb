"""Fine-tuning published weights in a given time: the default against head only, LoRA, and timm's and transformers' way.

    python benchmarks/finetune.py --minutes 2                                      five sets, six methods
    python benchmarks/finetune.py --minutes 15 --sets flowers --methods default timm transformers

The weights are the trained DeiT-Ti/16 beside the repository. Every method has the same wall time on the same photos,
from the start of its process to the last step; Vitrail's time includes its own measuring. All are measured on the same
test part, in float32. The peers learn from all training photos, Vitrail holds some out. All rates of `--timm-lr` and
`--transformers-lr` are tried, each for the full time, and shown. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.places import BENCHMARKS, add_shared, dataset
from training.results import percent, table_row, write_section
from training.running import new_folder, run_peer, train_and_measure
from training.subsets import DATA, few_of_each, flowers, link_part

RESULTS = BENCHMARKS / "results" / "finetune.md"
HEADING = "# Fine-tuning in a given time\n\nEach section says when, where and by which command.\n"
SETS = ("flowers-20", "flowers-100", "flowers-500", "cifar10-2", "cifar10-100", "flowers")
PACKAGES = ("torch", "timm", "transformers")
PEERS = ("timm", "transformers")
METHODS = {  # settings of ours
    "default": {},
    "head": {"model.train_only": "head"},
    "lora": {"model.train_only": "lora"},
    "half the tokens": {"train.keep_tokens": 0.5},
}


def make_set(name: str, given: argparse.Namespace) -> Path:
    """The folder {train,test}/<class>/, made where it is not there."""
    folder: Path = given.work / "finetune" / name
    if folder.exists():
        return folder
    kind, _, number = name.partition("-")
    if kind == "flowers":
        flowers(given, folder, int(number or 10**6))
    elif number == "2":
        two_classes(dataset(given.work, "cifar10"), folder)
    else:
        few_of_each(dataset(given.work, "cifar10"), folder, int(number), 100)
    return folder


def two_classes(source: Path, target: Path) -> None:
    """Cats and dogs, 100 of each to learn from and 400 to test on."""
    for part, count in (("train", 100), ("test", 400)):
        for name in ("cat", "dog"):
            files = sorted(path.name for path in (source / part / name).iterdir())
            random.Random(0).shuffle(files)
            link_part(source / part / name, target / part / name, files[:count])


def ours(method: str, name: str, data: Path, given: argparse.Namespace) -> dict[str, Any]:
    settings = given.work / "finetune" / f"{method.replace(' ', '-')}.toml"
    settings.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in METHODS[method].items()))
    out = new_folder(given.work, f"finetune-{name}-{method.replace(' ', '-')}")
    options = ["--minutes", given.minutes, "--from", given.data / "deit_tiny", "--settings", settings]
    return train_and_measure(given.vitrail, data, out, options) | {"lr": ""}


def peer(library: str, lr: float, data: Path, given: argparse.Namespace) -> dict[str, Any]:
    weights = given.data / "deit_tiny"
    if library == "transformers":
        weights = given.work / "finetune" / "deit_tiny-transformers"
        if not weights.exists():
            command = [given.vitrail, "convert", given.data / "deit_tiny", weights, "--to", "transformers"]
            subprocess.run([str(part) for part in command], check=True)
    options = ["--library", library, "--data", data, "--weights", weights, "--minutes", given.minutes, "--lr", lr]
    return run_peer("finetune", [*options, "--precision", given.precision], given.work) | {"lr": f"{lr:g}"}


def rows(name: str, given: argparse.Namespace) -> Iterator[str]:
    data = make_set(name, given)
    for method in given.methods:
        if method in PEERS:
            rates = given.timm_lr if method == "timm" else given.transformers_lr
            results = [peer(method, lr, data, given) for lr in rates]
        else:
            results = [ours(method, name, data, given)]
        for result in results:
            score = percent(result["accuracy"], result["test_images"])
            yield table_row(method, result["lr"], score, f"{result['epochs']:.1f}", f"{result['wall'] / 60:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=SETS[:-1])
    parser.add_argument("--methods", nargs="*", choices=(*METHODS, *PEERS), default=("default", "head", "lora", *PEERS))
    parser.add_argument("--timm-lr", type=float, nargs="*", default=[5e-4])
    parser.add_argument("--transformers-lr", type=float, nargs="*", default=[5e-5])
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16", help="of the peers")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of real data")
    add_shared(parser)
    parser.set_defaults(results=RESULTS)
    given = parser.parse_args()
    given.work = given.work.expanduser().resolve()
    (given.work / "finetune").mkdir(parents=True, exist_ok=True)
    for name in given.sets:
        lines = ["| method | learning rate | test accuracy (95 % interval) | epochs | wall minutes |"]
        lines += ["|---|---|---|---|---|"]
        for row in rows(name, given):
            lines.append(row)
            print(row, flush=True)
        write_section(given.results, f"{name}, {given.minutes:g} minutes", lines, PACKAGES, HEADING)


if __name__ == "__main__":
    main()
