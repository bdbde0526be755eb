"""The check knows masks and boxes: what is wrong with them is found, once, and a clean set has nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from vitrail.cli import main
from vitrail.commands.check import check
from vitrail.data.checks.check_dataset import CheckReport
from vitrail.findings import Finding
from vitrail.report.pages.check_page import page
from vitrail.tasks.segment.mask_checks import pixel_shares

Photos = Callable[..., Path]


def found(report: CheckReport, kind: str) -> Finding:
    return next(finding for finding in report.findings if finding.kind == kind)


def kinds(report: CheckReport) -> set[str]:
    return {finding.kind for finding in report.findings}


@pytest.fixture
def masks(photos: Photos, make: SimpleNamespace) -> Path:
    """Twelve pictures with masks of three classes, of which the last has the lower half."""
    folder = photos(*(f"images/{n}.png" for n in range(12)))
    values = np.zeros((40, 48), np.uint8)
    values[20:] = 2
    values[:10, :24] = 1
    for n in range(12):
        make.put(folder / f"masks/{n}.png", make.encoded(Image.fromarray(values), "PNG"))
    make.put(folder / "classes.txt", b"sky\ntree\nroad\n")
    return folder


def put_mask(path: Path, values: np.ndarray) -> None:
    Image.fromarray(values.astype(np.uint8)).save(path)


def test_clean_masks(masks: Path) -> None:
    report = check(masks, fast=True)
    shares = pixel_shares(report.looks, len(report.dataset.labels))
    assert not report.findings and report.exit_code == 0 and shares == []
    report = check(masks)
    assert kinds(report) == {"class-shares"} and report.exit_code == 0
    assert found(report, "class-shares").title == "pixels by class: road 50 %, sky 37.5 %, tree 12.5 %"
    data = json.loads(json.dumps(report.to_dict()))
    assert data["task"] == "segment" and data["layout"] == "masks"
    assert [one["pixels"] for one in data["classes"]] == pytest.approx([0.375, 0.125, 0.5])
    assert "Pixels of each class" in page(report) and "37.5 %" in page(report)
    assert "Pixels of each class" not in page(check(masks, fast=True))


def test_masks_with_faults(masks: Path) -> None:
    put_mask(masks / "masks/0.png", np.full((40, 48), 7))
    put_mask(masks / "masks/1.png", np.full((40, 48), 255))
    whole = (masks / "masks/2.png").read_bytes()
    (masks / "masks/2.png").write_bytes(whole[: len(whole) // 2])
    put_mask(masks / "masks/3.png", np.zeros((48, 40)))
    (masks / "masks/4.png").unlink()
    (masks / "classes.txt").write_text("sky\ntree\nroad\nsnow\n")
    report = check(masks)
    assert report.exit_code == 1
    unknown = found(report, "unknown-class-index")
    assert unknown.title == "1 mask cannot be used: it holds the index 7, no class of classes.txt"
    assert [file.name for example in unknown.examples for file in example.files] == ["0.png"]
    assert found(report, "all-ignored").examples[0].files[0].name == "1.png"
    assert found(report, "broken-masks").examples[0].files[0].name == "2.png"
    assert found(report, "sizes-differ").severity == found(report, "no-mask").severity == "error"
    assert found(report, "class-never-there").title == "1 class is in no mask: snow"
    assert {path.name for path in report.broken} == {"0.png", "2.png"}
    assert "no class of classes.txt" in page(report)
    assert {"sizes-differ", "no-mask"} == kinds(check(masks, fast=True))


def test_a_class_that_is_in_no_training_mask(masks: Path, photos: Photos, make: SimpleNamespace) -> None:
    for part, value in (("train", 0), ("val", 1)):
        for n in range(3):
            photos(f"parts/images/{part}/{n}.png")
            values = np.full((40, 48), value, np.uint8)
            make.put(masks / f"parts/masks/{part}/{n}.png", make.encoded(Image.fromarray(values), "PNG"))
    report = check(masks / "parts")
    assert found(report, "class-not-in-train").title == "1 class is in no training mask: 1"
    assert found(report, "class-not-in-train").severity == "error"


def test_every_mask_with_an_index_that_nobody_declared(masks: Path) -> None:
    (masks / "classes.txt").write_text("sky\ntree\n")
    for fast in (False, True):
        report = check(masks, fast=fast)
        assert kinds(report) == {"unknown-class-index"} and report.exit_code == 1
        assert "ignore 2" in found(report, "unknown-class-index").advice
    assert kinds(check(masks, ignore=2)) == {"class-shares"}


def test_rare_classes(masks: Path) -> None:
    for n in range(12):
        values = np.zeros((40, 48))
        values[0, 0] = n == 0
        values[20:] = 2
        put_mask(masks / f"masks/{n}.png", values)
    assert found(check(masks), "rare-classes").title.startswith("1 class has hardly any pixels: tree 0.004")


def test_the_same_picture_with_two_masks(masks: Path) -> None:
    (masks / "images/1.png").write_bytes((masks / "images/0.png").read_bytes())
    assert "copies" in kinds(check(masks))
    put_mask(masks / "masks/1.png", np.zeros((40, 48)))
    finding = found(check(masks), "copies-with-different-labels")
    assert finding.title.endswith("with different masks") and finding.severity == "error"


def yolo(folder: Path, n: int, *lines: str) -> None:
    (folder / "labels").mkdir(exist_ok=True)
    (folder / f"labels/{n}.txt").write_text("\n".join(lines))


@pytest.fixture
def boxes(photos: Photos) -> Path:
    folder = photos(*(f"images/{n}.png" for n in range(12)))
    for n in range(12):
        yolo(folder, n, "0 0.5 0.5 0.2 0.2", f"1 0.3 0.{n + 10} 0.2 0.1")
    (folder / "classes.txt").write_text("cat\ndog\n")
    return folder


@pytest.mark.parametrize("fast", [False, True])
def test_clean_boxes(boxes: Path, fast: bool) -> None:
    report = check(boxes, fast=fast)
    assert not report.findings and report.exit_code == 0
    assert str(report).startswith("12 images with 24 boxes of 2 classes (YOLO), no validation part")
    data = report.to_dict()
    assert [sum(one[part] for part in ("train", "val", "test")) for one in data["classes"]] == [12, 12]
    assert "Boxes of each class" in page(report)


def test_boxes_with_faults(boxes: Path) -> None:
    yolo(boxes, 0, "0 0.5 0.5 0.01 0.01", "1 0.5 0.5 0.2 0.2", "0 0.5 0.5 0.2 0.2")
    yolo(boxes, 1, "0 0.5 0.5 -0.2 0.2", "0 3 3 0.2 0.2", "0 0.5 0.5 0 0.2", "9 0.5 0.5 0.2 0.2")
    yolo(boxes, 2)
    report = check(boxes, fast=True)
    expected = {"tiny-boxes", "doubtful-boxes", "inverted-boxes", "outside-boxes", "empty-boxes", "no-objects"}
    assert kinds(report) == {*expected, "unknown-class-boxes"} and report.exit_code == 1
    assert found(report, "tiny-boxes").examples[0].note.startswith("cat: 23.76 19.8")
    assert found(report, "doubtful-boxes").severity == "warning"
    assert found(report, "no-objects").count == 2
    assert "so small that little of it" in page(report)


def test_few_and_unequal_boxes(boxes: Path) -> None:
    for n in range(12):
        yolo(boxes, n, *(f"0 0.5 0.{m} 0.2 0.1" for m in range(10, 30)), *(["1 0.2 0.2 0.1 0.1"] if n < 3 else []))
    report = check(boxes)
    assert found(report, "few-images").title == "1 class has fewer than 10 boxes to learn from: dog (3)"
    assert "80 times as many boxes as the smallest" in found(report, "unequal-classes").title


def test_a_class_of_boxes_that_is_not_in_train(boxes: Path) -> None:
    for kind in ("images", "labels"):
        for part in ("train", "val"):
            (boxes / kind / part).mkdir(parents=True)
        for path in list((boxes / kind).glob("*.*")):
            path.rename(boxes / kind / ("val" if int(path.stem) < 2 else "train") / path.name)
    for path in (boxes / "labels/train").iterdir():
        path.write_text("0 0.5 0.5 0.2 0.2")
    finding = found(check(boxes), "class-not-in-train")
    assert finding.title == "1 class has no training box: dog" and finding.severity == "warning"


def test_the_command(masks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (masks / "classes.txt").rename(masks / "mine.txt")
    (masks / "mine.txt").write_text("sky\ntree\n")
    assert main(["check", str(masks), "--classes", "mine.txt"]) == 1
    assert "say ignore 2" in capsys.readouterr().out
    assert main(["check", str(masks), "--classes", "mine.txt", "--ignore", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["task"] == "segment"
    (masks / "masks").rename(masks / "truth")
    pairs = ["--pairs", "images:truth", "--page", str(tmp_path / "page.html")]
    assert main(["check", str(masks), *pairs]) == 0
    assert "<html" in (tmp_path / "page.html").read_text()
    assert main(["check", str(masks), "--task", "detect"]) == 2
    assert "nothing to learn detect from" in capsys.readouterr().err
