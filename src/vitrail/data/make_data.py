"""`vitrail make-data shapes OUT`: a set of pictures with exact truth for every task, to try one without data."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.names import counted, shown
from vitrail.data.scenes import SHAPES, Scene, make_scene
from vitrail.data.threads import Progress, in_threads
from vitrail.errors import VitrailError

KINDS = ("shapes",)
TASKS = ("classify", "regress", "segment", "detect")
LEAST = 32  # pixels a side, so that a small shape is one
_PARTS = (("train", 0.84), ("val", 0.92), ("test", 1.0))  # up to which share of the images
_PALETTE = (20, 20, 20, 230, 80, 60, 60, 140, 230, 90, 180, 70, 240, 190, 50, 160, 90, 200)  # ground, then SHAPES
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


def make_data(
    kind: str,
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
    _check(kind, images, size, task)
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise VitrailError(f"{shown(out)} is there already: name a new folder, or remove it first")
    tasks = TASKS if task == "all" else (task,)
    root = _beside(out)
    try:
        names = _names(images)
        for part, _ in _PARTS:
            for folder in ("images", *(["masks"] if "segment" in tasks else [])):
                (root / folder / part).mkdir(parents=True)
        rows = in_threads(lambda index: _one(root, names[index], index, size, seed, tasks), range(images), workers,
                          progress)  # fmt: skip
        _write_truth(root, rows, size, tasks)
        if out.is_dir():
            out.rmdir()
        os.replace(root, out)
    except OSError as error:
        raise VitrailError(f"cannot write {shown(out)}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return Made(out, images, tuple(_command(out, one, task) for one in tasks))


# ---- one picture


@dataclass(frozen=True)
class _Row:
    part: str
    name: str
    label: str
    count: int
    size: int
    objects: tuple[dict[str, Any], ...]


def _one(root: Path, name: tuple[str, str], index: int, size: int, seed: int, tasks: Sequence[str]) -> _Row:
    part, stem = name
    scene = make_scene(index % len(SHAPES), size, seed, index)
    path = root / "images" / part / f"{stem}.jpg"
    Image.fromarray(scene.picture).save(path, quality=_QUALITY, subsampling=0)
    if "segment" in tasks:
        mask = Image.fromarray(scene.mask)
        mask.putpalette(_PALETTE)
        mask.save(root / "masks" / part / f"{stem}.png")
    main = scene.shapes[0]
    objects = tuple(_coco(scene)) if "detect" in tasks else ()
    return _Row(part, path.name, SHAPES[main.number], len(scene.shapes), int(main.pixels.sum()), objects)


def _coco(scene: Scene) -> Iterable[dict[str, Any]]:
    for shape in scene.shapes:
        left, top, right, bottom = shape.box
        runs = {"size": list(shape.pixels.shape), "counts": _runs(shape.pixels)}
        yield {
            "category_id": shape.number + 1,
            "bbox": [left, top, right - left, bottom - top],
            "area": int(shape.pixels.sum()),
            "iscrowd": 0,
            "segmentation": runs,
        }


def _runs(pixels: NDArray[np.bool_]) -> list[int]:
    """COCO's run lengths: outside, inside, outside, ..., column by column."""
    flat = np.concatenate([[False], pixels.T.ravel()])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    return np.diff(np.concatenate([[0], changes, [pixels.size]])).tolist()


# ---- the truth of all


def _write_truth(root: Path, rows: list[_Row], size: int, tasks: Sequence[str]) -> None:
    columns = [*(["label"] if "classify" in tasks else []), *(["count", "size"] if "regress" in tasks else [])]
    if columns:
        (root / "table.csv").write_text(_table(rows, columns), encoding="utf-8")
    if "segment" in tasks:
        (root / "classes.txt").write_text("\n".join(["background", *SHAPES]) + "\n", encoding="utf-8")
    if "detect" in tasks:
        (root / "annotations").mkdir()
        for part, _ in _PARTS:
            content = _annotations([row for row in rows if row.part == part], size)
            (root / "annotations" / f"{part}.json").write_text(json.dumps(content), encoding="utf-8")


def _table(rows: list[_Row], columns: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", *columns, "split"])
    for row in rows:
        values = {"label": row.label, "count": row.count, "size": row.size}
        writer.writerow([f"images/{row.part}/{row.name}", *(values[column] for column in columns), row.part])
    return text.getvalue()


def _annotations(rows: list[_Row], size: int) -> dict[str, Any]:
    images = [{"id": n, "file_name": row.name, "width": size, "height": size} for n, row in enumerate(rows, 1)]
    objects = [(n, one) for n, row in enumerate(rows, 1) for one in row.objects]
    return {
        "images": images,
        "categories": [{"id": n, "name": name} for n, name in enumerate(SHAPES, 1)],
        "annotations": [{"id": m, "image_id": n, **one} for m, (n, one) in enumerate(objects, 1)],
    }


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


def _command(out: Path, task: str, asked: str) -> str:
    name = str(out) if " " not in str(out) else f"'{out}'"
    which = f" --task {task}" if asked == "all" else ""
    return f"vitrail train {name}{which} --out runs/{task} --minutes 4"


def _check(kind: str, images: int, size: int, task: str) -> None:
    for name, value, choices in (("kind", kind, KINDS), ("task", task, ("all", *TASKS))):
        if value not in choices:
            raise VitrailError(f"{name} is {value!r}; choose one of {', '.join(choices)}")
    if images < 2 * len(SHAPES):
        raise VitrailError(f"images is {images}: make at least {2 * len(SHAPES)}, so that every part has some")
    if size < LEAST:
        raise VitrailError(f"size is {size}: make pictures of at least {LEAST} pixels")
