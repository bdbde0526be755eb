"""The check finds what is there, once, with its weight, and nothing in a clean set."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from vitrail.commands.check import check
from vitrail.data.checks.check_dataset import CheckReport
from vitrail.data.checks.examine import common_depth
from vitrail.data.layouts.recognise import read_dataset
from vitrail.data.loading.split import hold_out
from vitrail.findings import Finding

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL.TiffImagePlugin")  # see test_images.py

Photos = Callable[..., Path]


@pytest.fixture
def clean(photos: Photos) -> Path:
    return photos(*(f"{label}/{n}.jpg" for label in ("cat", "dog") for n in range(12)))


def found(report: CheckReport, kind: str) -> Finding:
    return next(finding for finding in report.findings if finding.kind == kind)


def kinds(report: CheckReport) -> set[str]:
    return {finding.kind for finding in report.findings}


def names(finding: Finding) -> list[str]:
    return [file.name for example in finding.examples for file in example.files]


@pytest.mark.parametrize("fast", [False, True])
def test_a_clean_set_has_no_findings(clean: Path, fast: bool) -> None:
    report = check(clean, fast=fast)
    assert report.findings == () and report.exit_code == 0 and report.broken == frozenset()
    assert report.broken is report.broken  # each image is looked up in it
    assert str(report).startswith("24 images in 2 classes (folders), no validation part: 20 % will be held out\n")
    assert "nothing to say" in str(report)


def test_the_zoo(zoo: Path, clean: Path) -> None:
    (zoo / "broken").rename(clean / "cat" / "broken")
    (zoo / "odd").rename(clean / "dog" / "odd")
    report = check(clean)
    broken = found(report, "broken")
    assert broken.severity == "error" and report.exit_code == 1
    assert set(names(broken)) == {path.name for path in (clean / "cat" / "broken").iterdir()} - {"channels.npy"}
    assert {example.note for example in broken.examples} >= {"is empty (0 bytes)", "is not an image"}
    assert names(found(report, "mixed-channels")) == ["channels.npy"]
    assert names(found(report, "turned")) == ["turned.jpg"]
    assert names(found(report, "wrong-ending")) == ["lies.jpg"]
    assert set(names(found(report, "several-frames"))) == {"moving.gif", "pages.tif"}
    assert names(found(report, "mixed-depths")) == ["12 bit in 16.png"]
    assert "one pixel.png" in names(found(report, "blank"))
    assert {"one pixel.png", "thin.png"} <= set(names(found(report, "tiny")))
    assert names(found(report, "odd-shape")) == ["thin.png"]
    assert {"grey.png", "cmyk.jpg", "alpha.png", "16 bit.tif", "one bit.png"} <= set(
        names(found(report, "mixed-kinds"))
    )
    assert report.broken == {clean / "cat" / "broken" / name for name in names(broken)}
    assert [finding.severity for finding in report.findings] == sorted(
        (finding.severity for finding in report.findings), key=("error", "warning", "note").index
    )


def test_the_fast_look_finds_what_needs_no_decoding(zoo: Path, clean: Path) -> None:
    (zoo / "broken").rename(clean / "cat" / "broken")
    report = check(clean, fast=True)
    certain = {
        "empty.jpg",
        "truncated.jpg",
        "truncated.png",
        "truncated.webp",
        "text.jpg",
        "web page.jpg",
        "enormous.png",
    }
    assert certain <= set(names(found(report, "broken")))
    assert report.fast and "looked at the headers of" in str(report)


def test_identical_images_in_one_class_are_a_warning(clean: Path) -> None:
    (clean / "cat" / "copy.jpg").write_bytes((clean / "cat" / "3.jpg").read_bytes())
    for fast in (False, True):
        report = check(clean, fast=fast)
        assert kinds(report) == {"copies"} and report.exit_code == 0
        assert sorted(names(found(report, "copies"))) == ["3.jpg", "copy.jpg"]


def test_identical_images_with_two_labels_are_an_error(clean: Path) -> None:
    (clean / "dog" / "copy.jpg").write_bytes((clean / "cat" / "3.jpg").read_bytes())
    report = check(clean)
    finding = found(report, "copies-with-different-labels")
    assert finding.severity == "error" and report.exit_code == 1
    assert finding.examples[0].note == "cat / dog"


def test_identical_images_in_train_and_val_are_an_error(photos: Photos) -> None:
    folder = photos(*(f"{part}/{label}/{n}.jpg" for part in ("train", "val") for label in "ab" for n in range(12)))
    assert check(folder).findings == ()
    (folder / "val" / "a" / "copy.jpg").write_bytes((folder / "train" / "a" / "3.jpg").read_bytes())
    finding = found(check(folder), "copies-across-parts")
    assert finding.severity == "error" and finding.examples[0].note == "train / val"


def test_near_copies_are_found_across_labels_and_parts(photos: Photos, make: SimpleNamespace) -> None:
    folder = photos(*(f"{part}/{label}/{n}.jpg" for part in ("train", "val") for label in "ab" for n in range(12)))
    with Image.open(folder / "train" / "a" / "3.jpg") as image:
        again = make.encoded(image, "JPEG", quality=90)
        smaller = make.encoded(image.resize((96, 80)), "PNG")
    make.put(folder / "train" / "a" / "again.jpg", again)
    report = check(folder)
    assert kinds(report) == {"near-copies"} and report.exit_code == 0
    make.put(folder / "val" / "a" / "smaller.png", smaller)
    report = check(folder)
    finding = found(report, "near-copies-across-parts")
    assert finding.severity == "warning" and sorted(names(finding)) == ["3.jpg", "again.jpg", "smaller.png"]
    make.put(folder / "val" / "b" / "smaller.png", smaller)
    assert "near-copies-with-different-labels" in kinds(check(folder))
    assert "near-copies-with-different-labels" not in kinds(check(folder, fast=True))


def test_near_copies_on_both_sides_of_the_automatic_split(clean: Path, make: SimpleNamespace) -> None:
    held = next(item.path for item in hold_out(read_dataset(clean)).items if item.split == "val")
    with Image.open(held) as image:
        for quality in range(80, 96):  # one of them falls into train
            make.put(held.with_name(f"again{quality}.jpg"), make.encoded(image, "JPEG", quality=quality))
    finding = found(check(clean), "near-copies-across-parts")
    assert "column 'group'" in finding.advice


def test_few_images_and_unequal_classes(photos: Photos) -> None:
    folder = photos(*(f"many/{n}.jpg" for n in range(60)), *(f"few/{n}.jpg" for n in range(4)))
    report = check(folder)
    assert {"few-images", "unequal-classes"} <= kinds(report) and report.exit_code == 0
    assert "15 times as many images as the smallest (many 60, few 4)" in found(report, "unequal-classes").title
    assert found(report, "few-images").title == "1 class has fewer than 10 images to learn from: few (4)"


def test_one_class_and_missing_parts_are_errors(photos: Photos) -> None:
    report = check(photos(*(f"only/{n}.jpg" for n in range(12))))
    assert found(report, "one-class").severity == "error" and report.exit_code == 1


def test_a_class_without_validation(photos: Photos) -> None:
    names = [f"train/{label}/{n}.jpg" for label in "ab" for n in range(12)]
    report = check(photos(*names, "val/a/1.jpg"))
    assert "1 class has no validation image: b" in found(report, "class-not-in-val").title


def test_a_file_type_that_gives_the_class_away(photos: Photos) -> None:
    folder = photos(*(f"cat/{n}.jpg" for n in range(12)), *(f"dog/{n}.png" for n in range(12)))
    finding = found(check(folder), "given-away")
    assert "the file type of a file tells its class in 100 of 100 cases" in finding.title
    assert {example.note for example in finding.examples} == {"cat: JPEG in 12 of 12", "dog: PNG in 12 of 12"}


def test_types_that_are_mixed_in_all_classes_give_nothing_away(photos: Photos) -> None:
    folder = photos(*(f"{label}/{n}.{'jpg' if n % 2 else 'png'}" for label in "ab" for n in range(24)))
    assert kinds(check(folder)) == set()


def test_regression_and_its_copies(photos: Photos) -> None:
    folder = photos(*(f"{n}.jpg" for n in range(14)))
    (folder / "13.jpg").write_bytes((folder / "12.jpg").read_bytes())
    rows = "\n".join(f"{n}.jpg,{n}" for n in range(14))
    (folder / "ages.csv").write_text(f"image,age\n{rows}\ngone.jpg,3\n")
    report = check(folder)
    assert found(report, "copies-with-different-labels").title.endswith("with different numbers")
    assert found(report, "copies-with-different-labels").examples[0].note == "12 / 13"
    assert found(report, "missing").count == 1
    assert report.to_dict()["targets"] == ["age"]


def test_many_channels_are_no_problem_where_all_have_them(tmp_path: Path, make: SimpleNamespace) -> None:
    random = np.random.default_rng(0)
    for label in "ab":
        for n in range(12):
            coarse = random.integers(0, 4096, (5, 5, 6), dtype=np.uint16)
            make.put(tmp_path / label / f"{n}.npy", make.npy(coarse.repeat(4, axis=0).repeat(4, axis=1)))
    report = check(tmp_path)
    assert report.findings == ()
    assert report.facts()["kinds"] == {"of 6 channels": 24}


def test_the_json_is_complete_and_the_text_is_short(clean: Path) -> None:
    for n in range(8):
        (clean / "cat" / f"empty{n}.jpg").write_bytes(b"")
    report = check(clean)
    data = json.loads(json.dumps(report.to_dict()))
    assert data["ok"] is False and data["images"] == 32 and data["task"] == "classify"
    assert [one["name"] for one in data["classes"]] == ["cat", "dog"]
    assert sum(data["parts"].values()) == 32
    (finding,) = data["findings"]
    assert len(finding["examples"]) == finding["count"] == 8
    assert finding["examples"][0] == {"files": ["cat/empty0.jpg"], "note": "is empty (0 bytes)"}
    assert "and 3 more" in str(report) and "empty6" not in str(report)


def test_a_collection_progress_and_workers(clean: Path) -> None:
    steps: list[tuple[int, int]] = []
    report = check(read_dataset(clean), workers=1, progress=lambda done, total: steps.append((done, total)))
    assert steps[-1] == (24, 24) and [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert [one.path for one in report.examined] == [item.path for item in report.dataset.items]
    assert hold_out(read_dataset(clean), digests=report.digests).items == report.dataset.items


def test_the_same_answer_twice(clean: Path) -> None:
    (clean / "cat" / "copy.jpg").write_bytes((clean / "cat" / "3.jpg").read_bytes())
    first, second = check(clean, workers=4), check(clean, workers=1)
    assert first.findings == second.findings and first.dataset == second.dataset


@pytest.mark.parametrize("fast", [False, True])
def test_one_file_with_more_bits_than_the_rest_is_found(photos: Photos, fast: bool) -> None:
    folder = photos(*(f"{label}/{n}.jpg" for label in ("cat", "dog") for n in range(3)))
    for place, file in enumerate(sorted(folder.rglob("*.jpg"))):
        values = np.random.default_rng(place).integers(0, 4000, (16, 16)).astype(np.uint16)
        values[0, 0] = 4096 if place == 4 else 4095
        Image.fromarray(values).save(file.with_suffix(".png"))
        file.unlink()
    report = check(folder, fast=fast)
    finding = found(report, "mixed-depths")
    assert finding.severity == "warning" and names(finding) == ["1.png"]
    assert finding.title == "images of more than 8 bits fill different ranges: 12 bits, 14 bits"
    assert "training reads all as 14 bits" in finding.advice
    assert common_depth(report.examined) == 14


def test_dark_pictures_are_no_reason_to_warn(photos: Photos) -> None:
    folder = photos("cat/0.jpg", "cat/1.jpg", "cat/2.jpg")
    for place, file in enumerate(sorted(folder.rglob("*.jpg"))):
        values = np.random.default_rng(place).integers(0, 900 if place == 0 else 4000, (16, 16)).astype(np.uint16)
        Image.fromarray(values).save(file.with_suffix(".png"))
        file.unlink()
    report = check(folder, fast=True)
    assert found(report, "mixed-depths").severity == "note" and common_depth(report.examined) == 12


@pytest.mark.parametrize("ending", [".tif", ".npy"])
@pytest.mark.parametrize("fast", [False, True])
def test_real_numbers_of_two_ranges(tmp_path: Path, ending: str, fast: bool) -> None:
    """A pixel of 1.01 instead of 1 makes a picture black that was grey: what is white is guessed file by file."""
    for number in range(6):
        (folder := tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        values = np.random.default_rng(number).random((16, 16)).astype(np.float32)
        values[0, 0] = 1.01 if number == 3 else 1.0
        path = folder / f"{number}{ending}"
        np.save(path, values) if ending == ".npy" else Image.fromarray(values).save(path)
    assert names(found(check(tmp_path, fast=fast), "mixed-real-ranges")) == [f"3{ending}"]
    (tmp_path / "b" / f"3{ending}").unlink()
    assert all(finding.kind != "mixed-real-ranges" for finding in check(tmp_path, fast=fast).findings)


@pytest.mark.parametrize("fast", [False, True])
def test_a_black_picture_of_real_numbers_is_black_in_every_range(tmp_path: Path, fast: bool) -> None:
    for number in range(4):
        (folder := tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        values = 200 * np.random.default_rng(number).random((16, 16)).astype(np.float32)
        Image.fromarray(values if number else 0 * values).save(folder / f"{number}.tif")
    assert all(finding.kind != "mixed-real-ranges" for finding in check(tmp_path, fast=fast).findings)


def test_values_below_zero_have_no_common_depth(photos: Photos) -> None:
    folder = photos("cat/0.jpg", "cat/1.jpg")
    for place, file in enumerate(sorted(folder.rglob("*.jpg"))):
        np.save(file.with_suffix(".npy"), np.full((16, 16, 1), 900, np.int16) - 1000 * place)
        file.unlink()
    assert common_depth(check(folder, fast=True).examined) is None
