"""A small student with a teacher, and with pictures without labels, against the same student alone in the same time.

    python benchmarks/distil.py labels --minutes 10       all flowers: alone, soft, hard
    python benchmarks/distil.py few --minutes 10          a tenth of the labels, all photos as the pile
    python benchmarks/distil.py labels --minutes 2 --settings train.distillation_weight=0.9

The student is what `vitrail train` chooses from scratch. The teacher is the trained DeiT-Ti/16 beside the repository,
fine-tuned on the same photos with the same labels; its own training is not counted in the student's time, what it takes
at each step of the student is. All are measured on the same test part. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from training.places import BENCHMARKS, add_shared
from training.results import percent, table_row, write_section
from training.running import new_folder, train_and_measure, vitrail_evaluate, vitrail_train
from training.subsets import DATA, flowers, link_part

RESULTS = BENCHMARKS / "results" / "distil.md"
HEADING = "# A teacher, and pictures without labels\n\nEach section says when, where and by which command.\n"
FEW = 0.1  # of the labels
METHODS = {  # options beside the data; TEACHER and PILE stand for their places
    "labels": {
        "alone": [],
        "soft": ["--teacher", "TEACHER"],
        "hard": ["--teacher", "TEACHER", "train.distillation=hard"],
    },
    "few": {
        "alone": [],
        "pile": ["--unlabelled", "PILE"],
        "teacher": ["--teacher", "TEACHER"],
        "teacher and pile": ["--teacher", "TEACHER", "--unlabelled", "PILE"],
    },
}


def make_data(given: argparse.Namespace) -> Path:
    """{train,test}/<class>/ with all labels, or with a few of each class and the same test part; made once."""
    whole: Path = given.work / "distil" / "labels"
    if not whole.exists():
        flowers(given, whole)
    if given.part == "labels":
        return whole
    few: Path = given.work / "distil" / "few"
    if not few.exists():
        for folder in sorted((whole / "train").iterdir()):
            names = sorted(path.name for path in folder.iterdir())
            random.Random(0).shuffle(names)
            link_part(folder, few / "train" / folder.name, names[: round(FEW * len(names))])
        (few / "test").symlink_to(whole / "test")
    return few


def make_pile(given: argparse.Namespace) -> Path:
    """All training photos in one folder, without their classes."""
    pile: Path = given.work / "distil" / "pile"
    if not pile.exists():
        pile.mkdir(parents=True)
        for photo in sorted((given.work / "distil" / "labels" / "train").rglob("*.jpg")):
            (pile / f"{photo.parent.name[0]}{photo.name}").symlink_to(photo.resolve())
    return pile


def teacher_of(data: Path, given: argparse.Namespace) -> Path:
    """The fine-tuned DeiT-Ti, trained once on these labels and kept."""
    out: Path = given.work / "distil" / f"teacher-{given.part}-{given.teacher_minutes:g}"
    if not (out / "model.safetensors").exists():
        options = ["--from", given.data / "deit_tiny", "--minutes", given.teacher_minutes]
        vitrail_train(given.vitrail, data, out, options)
    return out / "model.safetensors"


def student(method: str, data: Path, places: dict[str, Path], given: argparse.Namespace) -> dict[str, Any]:
    words = METHODS[given.part][method]
    own = [word for word in words if "=" in word] + (given.settings if "--teacher" in words else [])
    settings = given.work / "distil" / "settings.toml"
    settings.write_text("".join(toml_line(word) for word in own))
    out = new_folder(given.work, f"distil-{given.part}-{method.replace(' ', '-')}")
    options = [places.get(word, word) for word in words if "=" not in word]
    options = ["--minutes", given.minutes, "--seed", given.seed, "--settings", settings, *options]
    return train_and_measure(given.vitrail, data, out, options)


def toml_line(word: str) -> str:
    """train.distillation=hard as a line of TOML."""
    name, _, value = word.partition("=")
    try:
        return f"{name} = {json.dumps(json.loads(value))}\n"
    except json.JSONDecodeError:
        return f"{name} = {json.dumps(value)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=tuple(METHODS))
    parser.add_argument("--minutes", type=float, default=10.0, help="for each student")
    parser.add_argument("--teacher-minutes", type=float, default=10.0)
    parser.add_argument("--methods", nargs="*", help="some of them only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--settings", nargs="*", default=[], help="of the taught students: train.distillation_weight=0.9"
    )
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of real data")
    add_shared(parser)
    parser.set_defaults(results=RESULTS)
    given = parser.parse_args()
    given.work = given.work.expanduser().resolve()
    (given.work / "distil").mkdir(parents=True, exist_ok=True)
    data = make_data(given)
    methods = given.methods or list(METHODS[given.part])
    places = {"PILE": make_pile(given)}
    lines = ["| student | test accuracy (95 % interval) | epochs | wall minutes |", "|---|---|---|---|"]
    if any("TEACHER" in METHODS[given.part][method] for method in methods):
        places["TEACHER"] = teacher_of(data, given)
        measured = vitrail_evaluate(given.vitrail, places["TEACHER"], data)
        score = percent(measured["metrics"]["accuracy"], measured["images"])
        lines.append(table_row(f"the teacher, {given.teacher_minutes:g} minutes of its own", score, "", ""))
    for method in methods:
        result = student(method, data, places, given)
        score = percent(result["accuracy"], result["test_images"])
        lines.append(table_row(method, score, f"{result['epochs']:.1f}", f"{result['wall'] / 60:.2f}"))
        print(lines[-1], flush=True)
    title = f"{given.part}, {given.minutes:g} minutes, seed {given.seed}"
    write_section(given.results, title, lines, ("torch", "timm"), HEADING)


if __name__ == "__main__":
    main()
