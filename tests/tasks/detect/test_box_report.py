"""The part of a run's page about boxes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.report.pages.rendering import render
from vitrail.tasks.detect.box_report import ALARM, FOUND, MISSED, box_gallery, box_section, boxes_to_draw, pr_chart
from vitrail.tasks.detect.detect import Detect
from vitrail.tasks.report_part import MeasuredImages

LABELS = ["cell", "<b>platelet</b>", "never there"]
TRUTH = torch.tensor([[0, 10, 10, 40, 40, 0], [1, 60, 20, 90, 50, 0.0]])
ANSWER = torch.tensor([[0, 0.9, 11, 10, 41, 40], [1, 0.8, 5, 60, 20, 75], [1, 0.1, 60, 20, 90, 50.0]])


@pytest.fixture
def measured(tmp_path):
    """Results of two images, of which the second is right, with the files and what they show."""
    task = Detect(LABELS)
    right = torch.cat([TRUTH[:, :1], torch.full((2, 1), 0.95), TRUTH[:, 1:5]], dim=1)
    kept = torch.stack([task.compare(one, TRUTH) for one in (ANSWER, right)])
    results = task.evaluate(kept, task.encode([TRUTH, TRUTH]), bootstrap=20)
    files = [tmp_path / "a.png", tmp_path / "b.png"]
    for file in files:
        Image.fromarray(np.full((80, 100, 3), 200, np.uint8)).save(file)
    return results, files


def test_what_is_drawn_in_which_colour():
    boxes = boxes_to_draw(ANSWER.numpy(), TRUTH.numpy(), LABELS, threshold=0.4)
    assert [(colour, text) for _, colour, text in boxes] == [
        (FOUND, ""),
        (MISSED, "<b>platelet</b>"),
        (ALARM, "<b>platelet</b> 0.80"),
    ]
    assert boxes[1][0] == [60, 20, 90, 50]


def test_the_worst_pictures(measured, tmp_path):
    results, files = measured
    (one,) = box_gallery(results, MeasuredImages(files, tmp_path, [(ANSWER, TRUTH)]), LABELS)
    assert one["name"] == "a.png" and one["missed"] == "1 object missed" and one["alarms"] == "1 false alarm"
    assert one["picture"].startswith("data:image/jpeg;base64,") and one["size"] == (400, 320)


def test_a_picture_that_is_gone_is_said_to_be(measured, tmp_path):
    results, files = measured
    files[0].unlink()
    (one,) = box_gallery(results, MeasuredImages(files, tmp_path, [(ANSWER, TRUTH)]), LABELS)
    assert one["picture"] is None


def test_a_line_a_class_that_occurs(measured):
    results, _ = measured
    chart = pr_chart(results)
    assert [name for _, name in chart.key] == LABELS[:2]
    assert all(mark.path.startswith("M") for mark in chart.marks)


def test_many_classes_are_not_all_drawn():
    curves = [{"label": f"class {k}", "precision": [1.0] * 101} for k in range(30)]
    rows = [{"label": f"class {k}", "support": k} for k in range(30)]
    chart = pr_chart({"curves": curves, "per_label": rows})
    assert len(chart.marks) == 8 and chart.key[0][1] == "class 29" and chart.note == "The 8 commonest of 30 classes."


def test_the_section_names_all_and_escapes_names(measured, tmp_path):
    results, files = measured
    section = box_section(results, box_gallery(results, MeasuredImages(files, tmp_path, [(ANSWER, TRUTH)]), LABELS))
    assert section["counts"] == "Of 4 objects 3 were found and 1 missed; there was 1 false alarm."
    page = page_of(section)
    assert "&lt;b&gt;platelet&lt;/b&gt;" in page and "<b>platelet</b>" not in page
    assert page.count("<img") == 1 and "a.png" in page and "never there" in page


def test_a_model_without_fault(measured):
    results, _ = measured
    page = page_of(box_section({**results, "worst": []}, []))
    assert "There is none: every object was found" in page


def page_of(section):
    return render("box_report.html", part=section)


def test_the_style_sheet_has_the_colours_of_the_pictures():
    style = render("box_report.css")
    for colour in (FOUND, MISSED, ALARM):
        assert "#{:02x}{:02x}{:02x}".format(*colour) in style
