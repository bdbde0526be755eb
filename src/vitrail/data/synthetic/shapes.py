"""`vitrail make-data shapes OUT`: a set of pictures with exact truth for every task, to try one without data."""

from __future__ import annotations

import csv
import io
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from vitrail.data.synthetic.scenes import make_scene
from vitrail.errors import VitrailError
from vitrail.progress import Progress
from vitrail.tasks.registry import synthetic_task_names, task_data
from vitrail.tasks.shared.scene import SHAPES, Scene
from vitrail.tasks.task_data import TaskData
from vitrail.text import counted, shown
from vitrail.threads import in_threads

LEAST = 32  # pixels a side, so that a small shape is one
_PARTS = (("train", 0.84), ("val", 0.92), ("test", 1.0))  # up to which share of the images
_QUALITY = 92  # of the pictures, which are JPEG as photos are


@dataclass(frozen=True)
class Made:
    """Where the set is, and what to try with it."""

    root: Path
    images: int
    commands: tuple[str, ...]

    def __str__(self) -> str:
        tries = "\n".join(f"  {command}" for command in self.commands)
        return f"{shown(self.root)}: {counted(self.images, 'image')} with their truth; try\n{tries}"


def make_shapes(
    out: str | Path,
    *,
    images: int = 5000,
    size: int = 64,
    seed: int = 0,
    task: str = "all",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Made:
    """Write pictures of `size` x `size` pixels, in the parts train, val and test, with the truth for a task or for all.

    images/<part>/*.jpg, and: table.csv (label, count, size), masks/<part>/*.png with classes.txt,
    annotations/<part>.json (COCO). The same seed gives the same set.
    """
    _check(images, size, task)
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise VitrailError(f"{shown(out)} is there already: name a new folder, or remove it first")
    names_of_tasks = synthetic_task_names() if task == "all" else (task,)
    tasks = [task_data(name) for name in names_of_tasks]
    root = _beside(out)
    try:
        names = _names(images)
        for part, _ in _PARTS:
            (root / "images" / part).mkdir(parents=True)

        def make_one(index: int) -> _Row:
            return _write_one(root, names[index], make_scene(index % len(SHAPES), size, seed, index), tasks)

        _write_truth(root, in_threads(make_one, range(images), workers, progress), size, tasks)
        if out.is_dir():
            out.rmdir()
        os.replace(root, out)
    except OSError as error:
        raise VitrailError(f"cannot write {shown(out)}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return Made(out, images, tuple(_command(out, name, task) for name in names_of_tasks))


# ---- one picture


@dataclass(frozen=True)
class _Row:
    part: str
    name: str  # of the image's file
    columns: dict[str, Any]  # of table.csv
    truths: dict[str, Any]  # what each task keeps of the scene (`TaskData.write_scene`)


def _write_one(root: Path, name: tuple[str, str], scene: Scene, tasks: Sequence[TaskData]) -> _Row:
    part, stem = name
    path = root / "images" / part / f"{stem}.jpg"
    Image.fromarray(scene.picture).save(path, quality=_QUALITY, subsampling=0)
    columns = {column: value for data in tasks for column, value in data.scene_columns(scene).items()}
    return _Row(part, path.name, columns, {data.name: data.write_scene(root, part, stem, scene) for data in tasks})


# ---- the truth of all


def _write_truth(root: Path, rows: list[_Row], size: int, tasks: Sequence[TaskData]) -> None:
    if rows[0].columns:
        (root / "table.csv").write_text(_table(rows), encoding="utf-8")
    for data in tasks:
        by_part = {part: [(row.name, row.truths[data.name]) for row in rows if row.part == part] for part, _ in _PARTS}
        data.write_scenes(root, by_part, size)


def _table(rows: list[_Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", *rows[0].columns, "split"])
    for row in rows:
        writer.writerow([f"images/{row.part}/{row.name}", *row.columns.values(), row.part])
    return text.getvalue()


# ---- parts


def _names(images: int) -> list[tuple[str, str]]:
    """Part and name of each. Main shapes take turns, so every part has as many of each."""
    width = max(4, len(str(images - 1)))
    parts = [next(part for part, end in _PARTS if index < end * images) for index in range(images)]
    return [(part, f"{index:0{width}}") for index, part in enumerate(parts)]


def _beside(out: Path) -> Path:
    """A folder that becomes OUT when all is written: a set is whole or not there."""
    try:
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        root = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.absolute().parent))
        root.chmod(0o755)
    except OSError as error:
        raise VitrailError(f"cannot write {shown(out)}: {error.strerror or error}") from None
    return root


def _command(out: Path, task: str, chosen: str) -> str:
    name = str(out) if " " not in str(out) else f"'{out}'"
    which = f" --task {task}" if chosen == "all" else ""
    return f"vitrail train {name}{which} --out runs/{task} --minutes 4"


def _check(images: int, size: int, task: str) -> None:
    choices = ("all", *synthetic_task_names())
    if task not in choices:
        raise VitrailError(f"task is {task!r}; choose one of {', '.join(choices)}")
    if images < 2 * len(SHAPES):
        raise VitrailError(f"images is {images}: make at least {2 * len(SHAPES)}, so that every part has some")
    if size < LEAST:
        raise VitrailError(f"size is {size}: make pictures of at least {LEAST} pixels")
