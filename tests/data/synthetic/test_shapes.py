"""The generated set: its truth is exact, every task reads it, and the same seed gives the same bytes."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.cli import main
from vitrail.commands.check import check
from vitrail.data.description import trainable
from vitrail.data.layouts.recognise import read_dataset
from vitrail.data.synthetic.scenes import MAIN, SEEN, make_scene
from vitrail.errors import VitrailError
from vitrail.tasks.detect.boxes import Boxes
from vitrail.tasks.segment.mask_files import Mask
from vitrail.tasks.shared.scene import SHAPES


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "shapes"
    vitrail.make_data("shapes", out, images=60, size=64, seed=3)
    return out


def digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    whole = b"".join(str(path.relative_to(folder)).encode() + path.read_bytes() for path in files)
    return hashlib.sha256(whole).hexdigest()


def test_the_truth_of_one_scene_agrees_with_itself() -> None:
    for index in range(30):
        scene = make_scene(index % 5, 96, 0, index)
        areas = [int(shape.pixels.sum()) for shape in scene.shapes]
        assert scene.picture.shape == (96, 96, 3) and 1 <= len(scene.shapes) <= 3
        assert scene.shapes[0].number == index % 5 and scene.shapes[0].radius == max(s.radius for s in scene.shapes)
        assert MAIN[0] * 96 <= scene.shapes[0].radius <= MAIN[1] * 96
        assert sum(areas) == (scene.mask > 0).sum()  # no pixel has two shapes
        for shape in scene.shapes:
            left, top, right, bottom = shape.box
            assert shape.pixels[top:bottom, left:right].sum() == shape.pixels.sum()
            assert shape.pixels[top].any() and shape.pixels[bottom - 1].any()
            assert shape.pixels[:, left].any() and shape.pixels[:, right - 1].any()
            assert max(right - left, bottom - top) <= 2 * shape.radius + 1
            assert (scene.mask[shape.pixels] == shape.number + 1).all()


def test_most_of_every_shape_is_seen() -> None:
    area = {"circle": np.pi, "square": 2.0, "triangle": 3 * 3**0.5 / 4}
    for index in range(40):
        for shape in make_scene(index % 5, 96, 1, index).shapes:
            whole = area.get(SHAPES[shape.number], 0.0) * shape.radius**2
            assert shape.pixels.sum() >= SEEN * whole * 0.9  # the pixels of a small shape are few and square


def test_all_tasks_read_one_folder(made: Path) -> None:
    collections = {task: read_dataset(made, task=task) for task in ("classify", "regress", "segment", "detect")}
    assert collections["classify"].labels == tuple(sorted(SHAPES))
    assert collections["regress"].labels == ("count", "size")
    assert collections["segment"].labels == ("background", *SHAPES)
    assert collections["detect"].labels == SHAPES
    for dataset in collections.values():
        assert [len(dataset.part(part)) for part in ("train", "val", "test")] == [51, 5, 4]
        assert not dataset.findings and trainable(dataset) is dataset
    assert read_dataset(made) == collections["classify"]
    assert [{item.path for item in one.items} for one in collections.values()].count(
        {item.path for item in collections["detect"].items}
    ) == 4


def test_the_truths_agree_with_each_other(made: Path) -> None:
    boxes = {item.path: item.target for item in read_dataset(made, task="detect").items}
    drawn = {item.path: item.target for item in read_dataset(made / "annotations/train.json", task="segment").items}
    rows = {made / row["image"]: row for row in csv.DictReader((made / "table.csv").open())}
    for item in read_dataset(made, task="segment").items:
        own, row = boxes[item.path], rows[item.path]
        assert isinstance(item.target, Mask) and isinstance(own, Boxes)
        mask = item.target.read()
        assert int(row["count"]) == len(own) and SHAPES[own.classes[0]] == row["label"]
        main = int((mask == 1 + SHAPES.index(row["label"])).sum())  # small ones may be of the same class
        assert int(row["size"]) == main if len(own) == 1 else 0 < int(row["size"]) <= main
        for number in range(len(SHAPES)):
            inside = np.zeros(mask.shape, dtype=bool)
            for (left, top, right, bottom), other in zip(own.corners, own.classes, strict=True):
                if other == number:
                    inside[int(top) : int(bottom), int(left) : int(right)] = True
            assert inside[mask == number + 1].all()
        if item.split == "train":
            outlined = drawn[item.path]
            assert isinstance(outlined, Mask) and (outlined.read() == mask).all()


def test_masks_show_as_colours(made: Path) -> None:
    with Image.open(next((made / "masks/train").iterdir())) as mask:
        assert mask.mode == "P" and len(set(mask.convert("RGB").get_flattened_data())) > 1


def test_nothing_is_wrong_with_it(made: Path) -> None:
    for task in ("classify", "regress", "segment", "detect"):
        report = check(made, task=task)
        assert report.exit_code == 0 and {one.kind for one in report.findings} <= {"class-shares", "few-images"}


def test_the_same_seed_gives_the_same_bytes(made: Path, tmp_path: Path) -> None:
    vitrail.make_data("shapes", tmp_path / "again", images=60, size=64, seed=3, workers=1)
    vitrail.make_data("shapes", tmp_path / "other", images=60, size=64, seed=4)
    assert digest(tmp_path / "again") == digest(made) != digest(tmp_path / "other")


@pytest.mark.parametrize(
    ("task", "files"),
    [
        ("classify", {"images", "table.csv"}),
        ("regress", {"images", "table.csv"}),
        ("segment", {"images", "masks", "classes.txt"}),
        ("detect", {"images", "annotations"}),
    ],
)
def test_one_task_only(task: str, files: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "set"
    out.mkdir()  # an empty folder is as good as none
    assert main(["make-data", "shapes", str(out), "--images", "12", "--size", "40", "--task", task]) == 0
    assert {path.name for path in out.iterdir()} == files
    assert read_dataset(out).task == task and not list(tmp_path.glob(".*"))
    assert f"vitrail train {out} --out runs/{task} --minutes 4" in capsys.readouterr().out


def test_what_is_refused(tmp_path: Path, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = digest(made)
    assert main(["make-data", "shapes", str(made)]) == 2
    assert "is there already: name a new folder, or remove it first" in capsys.readouterr().err
    assert digest(made) == before
    for wrong, words in (
        ({"images": 5}, "make at least 10"),
        ({"size": 16}, "at least 32 pixels"),
        ({"task": "sort"}, "task is 'sort'; choose one of all, classify"),
    ):
        with pytest.raises(VitrailError, match=words):
            vitrail.make_data("shapes", tmp_path / "x", **wrong)
    with pytest.raises(VitrailError, match="kind is 'forms'; choose one of shapes"):
        vitrail.make_data("forms", tmp_path / "x")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(VitrailError, match="cannot write"):
        vitrail.make_data("shapes", tmp_path / "file" / "x", images=10)


def test_annotations_are_coco(made: Path) -> None:
    content = json.loads((made / "annotations/val.json").read_text())
    assert {one["image_id"] for one in content["annotations"]} == {one["id"] for one in content["images"]}
    assert all(one["area"] <= one["bbox"][2] * one["bbox"][3] for one in content["annotations"])
