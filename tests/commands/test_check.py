"""The command `vitrail check`, as the command line calls it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.commands.check import run_check
from vitrail.errors import VitrailError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "data" / label).mkdir(parents=True)
        for n in range(12):
            pixels = random.integers(0, 256, (5, 5, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((40, 40)).save(tmp_path / "data" / label / f"{n}.png")
    return tmp_path / "data"


def test_text_and_exit_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check(folder) == 0
    assert capsys.readouterr().out.startswith("24 images in 2 classes (folders)")
    (folder / "cat" / "1.png").write_bytes(b"")
    assert run_check(folder) == 1
    out = capsys.readouterr().out
    assert "cat/1.png  is empty (0 bytes)" in out and "mend the errors before training" in out


def test_json_is_all_that_is_printed(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check(folder, json=True, page=tmp_path / "page.html") == 0
    assert json.loads(capsys.readouterr().out)["images"] == 24
    assert (tmp_path / "page.html").read_text("utf-8").startswith("<!doctype html>")


def test_out_takes_the_place_of_printing(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_check(folder, json=True, out=tmp_path / "deep" / "report.json", fast=True)
    assert capsys.readouterr().out == ""
    assert json.loads((tmp_path / "deep" / "report.json").read_text())["fast"] is True


def test_an_unwritable_page_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(VitrailError, match="cannot write"):
        run_check(folder, page=tmp_path / "file" / "page.html")


def test_hopeless_data_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="holds no images"):
        run_check(tmp_path)


def test_a_name_that_is_no_text_can_be_printed_and_written(folder: Path, tmp_path: Path) -> None:
    import os

    (folder / "cat" / os.fsdecode(b"\xff\xfe.png")).write_bytes(b"")
    assert run_check(folder, page=tmp_path / "page.html", out=tmp_path / "out.txt") == 1
    assert run_check(folder, json=True, out=tmp_path / "out.json") == 1
    assert json.loads((tmp_path / "out.json").read_text())["ok"] is False


def test_the_bar_is_for_terminals(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    run_check(folder)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run_check(folder)
    assert "24 of 24" in capsys.readouterr().err
    run_check(folder, quiet=True)
    assert capsys.readouterr().err == ""


# ---- labels, by a model


def coloured(folder: Path, each: int = 25) -> Path:
    """Pictures of more red, or more blue; two of them in the other's folder."""
    random = np.random.default_rng(0)
    for channel, label in ((0, "red"), (2, "blue")):
        (folder / label).mkdir(parents=True)
        for n in range(each):
            pixels = random.integers(0, 90, (5, 5, 3), dtype=np.uint8)
            pixels[..., channel] += 120
            Image.fromarray(pixels).resize((40, 40)).save(folder / label / f"{n}.png")
    (folder / "red" / "3.png").rename(folder / "blue" / "is red.png")
    (folder / "blue" / "4.png").rename(folder / "red" / "is blue.png")
    return folder


def test_a_model_finds_wrong_labels(save, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = coloured(tmp_path / "data")
    table, page = tmp_path / "labels.csv", tmp_path / "page.html"
    assert run_check(data, model=save(), json=True, label_errors=table, page=page) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["label_errors"]) == 50
    worst = {(row["image"], row["label"], row["better"]) for row in result["label_errors"][:2]}
    assert worst == {("blue/is red.png", "blue", "red"), ("red/is blue.png", "red", "blue")}
    assert all(row["likely"] for row in result["label_errors"][:2])
    [finding] = [one for one in result["findings"] if one["kind"] == "label-errors"]
    assert (
        finding["severity"] == "warning"
        and "blue/is red.png" in finding["examples"][0]["files"] + finding["examples"][1]["files"]
    )
    rows = table.read_text("utf-8").splitlines()
    assert rows[0] == "image,label,better,quality,likely" and len(rows) == 51 and rows[1].endswith(",true")
    assert "fits better" in page.read_text("utf-8")
    assert "label_errors" not in json.loads(_printed(capsys, data, json=True))


def _printed(capsys: pytest.CaptureFixture[str], data: Path, **options: object) -> str:
    run_check(data, **options)
    return capsys.readouterr().out


def test_a_fast_check_finds_them_too(save, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "red fits better" in _printed(capsys, coloured(tmp_path / "data"), model=save(), fast=True)


def test_a_model_that_learnt_these_images_is_no_witness(save, tmp_path: Path, capsys) -> None:
    from vitrail.data.loading.split import digest_files

    data = coloured(tmp_path / "data")
    digests = sorted(digest.hex() for digest in digest_files(sorted(data.rglob("*.png"))))
    model = save(provenance={"training": {"sample": digests}})
    assert "learnt by heart stay hidden" in _printed(capsys, data, model=model)
    others = save(provenance={"training": {"sample": [digests[3], "f" * 64]}})  # one copy of what it was trained on
    assert "learnt by heart" not in _printed(capsys, data, model=others)


def test_what_makes_no_sense_with_a_model_is_one_sentence(save, folder: Path, tmp_path: Path) -> None:
    alike = tmp_path / "alike"
    for number in range(12):
        label = alike / ("cat" if number % 2 else "dog")
        label.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "cat" / "0.png", label / f"{number}.png")
    with pytest.raises(VitrailError, match="--label-errors needs a model"):
        run_check(folder, label_errors=tmp_path / "labels.csv")
    for path in sorted(folder.rglob("*.png"))[3:21]:
        path.unlink()
    with pytest.raises(VitrailError, match="6 readable images, too few to say which labels are wrong"):
        run_check(folder, model=save())
    with pytest.raises(VitrailError, match="look the same or are one group, so none speaks for another's label"):
        run_check(alike, model=save())
    table = tmp_path / "data" / "labels.csv"
    table.write_text("image,number\ncat/0.png,1\ncat/1.png,2\ndog/11.png,3\n")
    with pytest.raises(VitrailError, match="this data is for regression: leave out --model"):
        run_check(table, model=save())
