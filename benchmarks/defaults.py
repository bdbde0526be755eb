"""The default command on many sets: do the defaults hold on data that nobody tuned them for, and for how long they run?

    python benchmarks/defaults.py --minutes 2                        all sets, about 45 minutes on 2 cores
    python benchmarks/defaults.py --minutes 8 --sets camvid bccd     some of them
    python benchmarks/defaults.py --compare defaults-before.json     what changed since an earlier file of results

Each run is `vitrail train DATA --out RUN --minutes M` and nothing else, but for the task where a set has several, and
`--from` where it is fine-tuned. Then `vitrail evaluate` measures the same images again, and the score must be the run's
own. Rows are kept in benchmarks/results/defaults.json by set, minutes and the kind of CPU, the table in defaults.md.
A run that has little time measures itself on a sample; `evaluate` then takes all images, and the table says how many.
With `--compare`, a row that lost more than its interval is marked. Nothing else should run meanwhile.

`--work` holds what `benchmarks/train.py data` prepared (cifar10, drawings, fashion-mnist); the other sets come from the
folder of real data beside the repository (`--data`), from scikit-learn and from `vitrail make-data`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from training.places import BENCHMARKS, REPOSITORY, add_shared, dataset
from training.results import machine
from training.running import new_folder, vitrail_train
from training.subsets import DATA, few_of_each, flowers, link_part

RESULTS = BENCHMARKS / "results" / "defaults.md"


@dataclass(frozen=True)
class Row:
    """One run of the default command."""

    set: str
    minutes: float
    machine: str
    date: str
    commit: str
    metric: str
    score: float  # by the run itself
    low: float
    high: float
    evaluated: float  # by `vitrail evaluate` on all images of the part
    reported: float  # in the report's headline
    images: int  # measured on
    epochs: float
    evaluations: int
    taken: float  # seconds of the whole command
    evaluated_images: int = 0  # more than `images` where the run measured a sample, to end in time

    @property
    def key(self) -> tuple[str, float, str]:
        return self.set, self.minutes, self.machine


# ---- the sets: a function that makes the folder where it is not there, and the options besides --minutes


def digits(given: argparse.Namespace, target: Path) -> None:
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    for number, (pixels, digit) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
        folder = target / str(digit)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.round(pixels.reshape(8, 8) * 255 / 16).astype(np.uint8)).save(folder / f"{number:04d}.png")


def bccd(given: argparse.Namespace, target: Path, train: int = 10**6) -> None:
    """Pascal VOC; with fewer training images the list of them is shorter."""
    source = given.data / "bccd"
    for folder in ("Annotations", "JPEGImages"):
        link_part(source, target, [str(path.relative_to(source)) for path in (source / folder).iterdir()])
    lists = target / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    for part in ("train", "val", "test"):
        names = (source / "ImageSets" / "Main" / f"{part}.txt").read_text().split()
        (lists / f"{part}.txt").write_text("\n".join(names[: train if part == "train" else None]) + "\n")


def bccd_counts(given: argparse.Namespace, target: Path) -> None:
    """How many red cells a picture of 640 x 480 px has: a table of numbers from the boxes."""
    source = given.data / "bccd"
    lines = ["image,red_cells,split"]
    for part in ("train", "val", "test"):
        for name in (source / "ImageSets" / "Main" / f"{part}.txt").read_text().split():
            objects = ElementTree.parse(source / "Annotations" / f"{name}.xml").findall("object")
            lines.append(f"{name}.jpg,{sum(one.findtext('name') == 'RBC' for one in objects)},{part}")
            link_part(source / "JPEGImages", target, [f"{name}.jpg"])
    (target / "table.csv").write_text("\n".join(lines) + "\n")


def camvid(given: argparse.Namespace, target: Path) -> None:
    target.symlink_to((given.data / "camvid").resolve())


def shapes(given: argparse.Namespace, target: Path) -> None:
    subprocess.run([str(given.vitrail), "make-data", "shapes", str(target)], check=True, stdout=subprocess.DEVNULL)


def prepared(name: str) -> Callable[[argparse.Namespace, Path], None]:
    """What `benchmarks/train.py data` made."""

    def make(given: argparse.Namespace, target: Path) -> None:
        target.symlink_to(dataset(given.work, name).resolve())

    return make


def cifar10_few(given: argparse.Namespace, target: Path) -> None:
    few_of_each(dataset(given.work, "cifar10"), target, 100, 200)


def drawings_few(given: argparse.Namespace, target: Path) -> None:
    few_of_each(dataset(given.work, "drawings"), target, 30, 10**6)


Maker = Callable[[argparse.Namespace, Path], None]
TUNED = ("--from", DATA / "deit_tiny")
SETS: dict[str, tuple[str, Maker, tuple[object, ...]]] = {  # folder, its maker, options
    "digits": ("digits", digits, ()),
    "cifar10": ("cifar10", prepared("cifar10"), ()),
    "cifar10, 100 a class": ("cifar10-100", cifar10_few, ()),
    "fashion-mnist": ("fashion-mnist", prepared("fashion-mnist"), ()),
    "drawings": ("drawings", prepared("drawings"), ()),
    "drawings, 30 a class": ("drawings-30", drawings_few, ()),
    "flowers": ("flowers", flowers, ()),
    "flowers, 100 a class": ("flowers-100", lambda given, target: flowers(given, target, 100), ()),
    "flowers, 20 a class": ("flowers-20", lambda given, target: flowers(given, target, 20), ()),
    "flowers, fine-tuned": ("flowers", flowers, TUNED),
    "flowers, 100 a class, fine-tuned": ("flowers-100", lambda given, target: flowers(given, target, 100), TUNED),
    "flowers, 20 a class, fine-tuned": ("flowers-20", lambda given, target: flowers(given, target, 20), TUNED),
    "bccd": ("bccd", bccd, ()),
    "bccd, 40 images": ("bccd-40", lambda given, target: bccd(given, target, 40), ()),
    "bccd, red cells counted": ("bccd-counts", bccd_counts, ()),
    "camvid": ("camvid", camvid, ("--ignore", 11)),
    "shapes, classify": ("shapes", shapes, ("--task", "classify")),
    "shapes, regress": ("shapes", shapes, ("--task", "regress")),
    "shapes, segment": ("shapes", shapes, ("--task", "segment")),
    "shapes, detect": ("shapes", shapes, ("--task", "detect")),
    "shapes, depth": ("shapes", shapes, ("--task", "depth")),
}


# ---- one run


def measure(name: str, minutes: float, given: argparse.Namespace) -> Row:
    folder, make, options = SETS[name]
    data = given.work / "defaults" / folder
    if not data.exists():
        data.parent.mkdir(parents=True, exist_ok=True)
        make(given, data)
    words, settings = split_settings(options, given.work)
    out = new_folder(given.work, re.sub(r"\W+", "-", name))
    trained = vitrail_train(given.vitrail, data, out, ["--minutes", f"{minutes:g}", *words, *settings])
    results = json.loads((out / "results.json").read_text())
    metric = results["main_metric"]
    history = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    low, high = results["intervals"][metric]
    evaluated, evaluated_images = evaluate(out / "model.safetensors", data, given)
    return Row(
        set=name,
        minutes=minutes,
        machine=machine(),
        date=str(datetime.date.today()),
        commit=given.commit,
        metric=metric,
        score=results["metrics"][metric],
        low=low,
        high=high,
        evaluated=evaluated,
        evaluated_images=evaluated_images,
        reported=headline(out / "report.html"),
        images=results["images"],
        epochs=trained.rows[-1]["epoch"],
        evaluations=sum("validation" in row for row in history),
        taken=trained.seconds,
    )


def split_settings(options: Sequence[object], work: Path) -> tuple[list[object], list[object]]:
    """`--ignore` is a setting without an option: it goes through a file."""
    if "--ignore" not in options:
        return list(options), []
    path = work / "defaults" / "ignore.toml"
    path.write_text(f"[data]\nignore = {options[list(options).index('--ignore') + 1]}\n")
    return [], ["--settings", path]


def evaluate(model: Path, data: Path, given: argparse.Namespace) -> tuple[float, int]:
    """The main metric, and of how many images."""
    command = [str(given.vitrail), "evaluate", str(model), str(data), "--json"]
    results = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return results["metrics"][results["main_metric"]], results["images"]


def headline(report: Path) -> float:
    """The number at the top of the report, as a share where it is in per cent."""
    match = re.search(r'<p class="score">.*?<b>([\d.,-]+)\s*(%?)</b>', report.read_text())
    if match is None:
        return float("nan")
    return float(match[1].replace(",", "")) / (100 if match[2] else 1)


# ---- all of them


def show(row: Row, before: Row | None) -> str:
    changed = ""
    if before is not None:
        worse = row.high < before.score and row.score < before.low
        changed = f"{before.score:.3f} → {row.score - before.score:+.3f}{' **worse**' if worse else ''}"
    cells = [
        row.set, f"{row.minutes:g}", row.metric, f"**{row.score:.3f}** ({row.low:.3f} to {row.high:.3f})",
        f"{row.images:,}", agreement(row), f"{row.epochs:.1f}", str(row.evaluations), f"{row.taken / 60:.2f}",
        changed,
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def agreement(row: Row) -> str:
    """What `evaluate` and the report say. On the same images both must be the run's own score."""
    if row.evaluated_images > row.images:
        return f"{row.evaluated:.3f} of {row.evaluated_images:,}"
    same = abs(row.evaluated - row.score) < 5e-4 and abs(row.reported - row.score) < 1e-3
    return f"{row.evaluated:.3f}" + ("" if same else " **differs**")


def table(rows: Sequence[Row], earlier: dict[tuple[str, float, str], Row]) -> list[str]:
    lines = [
        "# The default command on many sets",
        "",
        "`python benchmarks/defaults.py`: `vitrail train DATA --minutes M`.",
    ]
    lines += [
        "The score is of the test part where there is one, else of what was held out; `evaluate` measured it again."
    ]
    for place in sorted({row.machine for row in rows}):
        here = [row for row in rows if row.machine == place]
        dates = ", ".join(sorted({f"{row.date} at {row.commit}" for row in here}))
        lines += ["", f"## {place}", "", f"{dates}.", ""]
        lines += ["| set | minutes | metric | score (95 % interval) | images | evaluate | epochs | evaluations "]
        lines[-1] += "| minutes taken | before |"
        lines += ["|" + "---|" * 10]
        lines += [show(row, earlier.get(row.key)) for row in sorted(here, key=lambda row: (row.minutes, order(row)))]
    return lines


def order(row: Row) -> int:
    return list(SETS).index(row.set) if row.set in SETS else len(SETS)


def read_rows(path: Path) -> dict[tuple[str, float, str], Row]:
    values: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return {row.key: row for row in (Row(**value) for value in values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, nargs="*", default=[2.0, 8.0])
    parser.add_argument("--sets", nargs="*", choices=tuple(SETS), default=tuple(SETS))
    parser.add_argument("--compare", type=Path, help="a file of results from before")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of real data")
    add_shared(parser)
    parser.set_defaults(results=RESULTS)
    given = parser.parse_args()
    given.work = given.work.expanduser().resolve()
    describe = ["git", "describe", "--always", "--dirty"]
    given.commit = subprocess.run(describe, cwd=REPOSITORY, capture_output=True, text=True).stdout.strip()
    kept = given.results.with_suffix(".json")
    earlier = read_rows(given.compare) if given.compare else {}
    for minutes in given.minutes:
        for name in given.sets:
            row = measure(name, minutes, given)
            rows = read_rows(kept) | {row.key: row}
            kept.write_text(json.dumps([asdict(one) for one in rows.values()], indent=1) + "\n")
            given.results.write_text("\n".join(table(list(rows.values()), earlier)) + "\n")
            print(show(row, earlier.get(row.key)), flush=True)


if __name__ == "__main__":
    main()
