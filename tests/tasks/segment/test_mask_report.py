"""The part of a run's page about masks: what stands in it, and that names are never more than text."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.report.pages.rendering import render
from vitrail.tasks.report_part import MeasuredImages
from vitrail.tasks.segment.mask_report import errors_shown, mask_gallery, mask_section, pixel_confusion
from vitrail.tasks.segment.segment import Segment
from vitrail.tasks.shared.report_pictures import AT_ONCE, SIDE
from vitrail.visuals.palette import palette

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def measured(tmp_path):
    """A task of four classes, of which one never occurs, its results on 12 images, and the images."""
    rng = np.random.default_rng(0)
    task = Segment(["background", "disc", EVIL, "never"])
    files, decoded, truths = [], [], []
    for i in range(12):
        truth = np.zeros((40 + i, 60), np.uint8)
        truth[10:30, 10:30], truth[5:20, 35:50] = 1, 2
        truth[:3] = 255
        answer = np.where(truth == 255, 0, truth)
        answer[10:30, 10 : 11 + i] = 2
        files.append(tmp_path / f"{i}{'&' if i == 3 else ''}.png")
        Image.fromarray(rng.integers(0, 255, (*truth.shape, 3), np.uint8)).save(files[-1])
        decoded.append(torch.from_numpy(answer))
        truths.append(torch.from_numpy(truth))
    kept = torch.stack([task.compare(a, t) for a, t in zip(decoded, truths, strict=True)])
    return task, task.evaluate(kept, torch.zeros(12, 0), bootstrap=20), files, decoded, truths


def gallery_of(measured, root=Path()):
    task, results, files, decoded, truths = measured
    worst = [(decoded[row["index"]], truths[row["index"]]) for row in results["worst"]]
    return mask_gallery(results, MeasuredImages(files, root, worst), task.labels)


def rendered(section):
    return render("mask_report.html", part=section)


def opened(uri):
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def test_gallery_has_four_pictures_of_the_same_size(measured, tmp_path):
    gallery = gallery_of(measured, tmp_path)
    assert len(gallery) == 12
    assert gallery[0]["name"] == "11.png"  # the worst
    for one in gallery:
        sizes = {opened(one[key]).size for key in ("image", "truth", "answer", "errors")}
        assert sizes == {one["size"]}
        assert max(one["size"]) == SIDE
        assert one["remark"].startswith(f"disc taken for {EVIL}")


def test_masks_are_shown_in_their_colours(measured):
    task, *_ = measured
    one = gallery_of(measured)[-1]
    truth = np.asarray(opened(one["truth"]).convert("RGB")).reshape(-1, 3)
    colours = {tuple(colour) for colour in palette(task.labels)[:3].tolist()} | {(0, 0, 0)}
    assert {tuple(colour) for colour in truth.tolist()} == colours


def test_an_image_that_is_gone_has_no_picture(measured):
    measured[2][11].unlink()
    first = gallery_of(measured)[0]
    assert first["image"] is None
    assert opened(first["errors"]).size == first["size"]


def test_errors_are_coloured_and_unknown_pixels_are_not_errors():
    truth = np.zeros((20, 20), np.uint8)
    truth[:10] = 255
    answer = np.zeros_like(truth)
    answer[:, 10:] = 1
    shown = errors_shown(np.full((20, 20, 3), 100, np.uint8), answer, truth).astype(int)
    redness = shown[..., 0] - shown[..., 2]
    assert (redness[10:, 10:] > 60).all()
    assert (redness[:10] == 0).all()
    assert (redness[10:, :10] == 0).all()


def test_confusion_is_in_per_cent_of_the_row(measured):
    _, results, *_ = measured
    table = pixel_confusion(results)
    disc = table["rows"][1]
    shares = [int(cell["text"] or 0) for cell in disc["cells"]]
    assert sum(shares) == pytest.approx(100, abs=2)
    assert shares[2] > 0
    assert disc["total"].endswith(" %")
    assert all(cell["text"] == "" for cell in table["rows"][3]["cells"])  # never there


def test_the_page_tells_it_all_and_escapes_names(measured, tmp_path):
    _, results, *_ = measured
    text = rendered(mask_section(results, gallery_of(measured, tmp_path)))
    assert EVIL not in text
    assert "&lt;script&gt;" in text
    for words in ("Each class", "What is taken for what", "Worst pictures", "IoU", "Boundary F1", "0.75 %"):
        assert words in text
    assert text.count("<figure>") == 4 * 12
    assert f"{12 - AT_ONCE} more" in text
    assert not re.search(r'src="(?!data:)', text)
    assert text.index("disc") < text.index("never")  # classes that never occur come last


def test_without_a_mistake_there_is_no_picture():
    task = Segment(["a", "b"])
    truth = torch.tensor([[0, 1]], dtype=torch.uint8)
    results = task.evaluate(task.compare(truth, truth)[None], torch.zeros(1, 0), bootstrap=0)
    text = rendered(mask_section(results, []))
    assert "every pixel is right" in text


def test_many_classes_unfold():
    task = Segment([f"c{i}" for i in range(60)])
    truth = torch.arange(60, dtype=torch.uint8).repeat(4, 1)
    results = task.evaluate(task.compare(truth.flip(1), truth)[None], torch.zeros(1, 0), bootstrap=0)
    section = mask_section(results, [])
    assert [len(part) for part in section["classes"]] == [30, 30]
    assert "30 more" in rendered(section)
