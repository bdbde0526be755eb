"""Parts of the real data, as folders of links: fewer images a class, the same test part."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from training.places import REPOSITORY

DATA = REPOSITORY.parent / "shared" / "data"


def link_part(source: Path, target: Path, names: Sequence[str]) -> None:
    """Links to some files of a folder, by their paths in it."""
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).symlink_to((source / name).resolve())


def few_of_each(source: Path, target: Path, each: int, tested: int) -> None:
    """Of a folder {train,test}/<class>/, so many training images a class and so many to test on."""
    for part, count in (("train", each), ("test", tested)):
        for folder in sorted((source / part).iterdir()):
            files = sorted(path.name for path in folder.iterdir())
            random.Random(0).shuffle(files)
            link_part(source / part / folder.name, target / part / folder.name, files[:count])


def flowers(given: argparse.Namespace, target: Path, each: int = 10**6) -> None:
    """The photos of `given.data`, all or so many training photos a class, and the listed ones to test on."""
    tested = set((given.data / "flowers_test.txt").read_text().split("\n"))
    names = sorted(str(path.relative_to(given.data / "flowers")) for path in (given.data / "flowers").glob("*/*.jpg"))
    random.Random(0).shuffle(names)
    kept: dict[str, int] = {}
    for name in names:
        label = name.partition("/")[0]
        part = "test" if name in tested else "train"
        if part == "train" and kept.setdefault(label, 0) >= each:
            continue
        kept[label] = kept.get(label, 0) + (part == "train")
        link_part(given.data / "flowers", target / part, [name])
