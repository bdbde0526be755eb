"""Text for people: every task's measures, in the width of a terminal."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vitrail.inference.output.metrics_text import ROWS, to_text
from vitrail.tasks.registry import task_for
from vitrail.terminal import table


def measured(task: str, labels: list[str], images: int = 60, bootstrap: int = 50, **more: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    meaning = task_for(task, labels)
    outputs = torch.randn(images, len(labels))
    targets = {
        "classify": torch.arange(images) % max(1, len(labels) - 1),
        "multilabel": (torch.rand(images, len(labels)) > 0.7).float(),
        "regress": 100 * outputs + torch.randn(images, len(labels)),
    }[task]
    result = meaning.evaluate(100 * outputs if task == "regress" else outputs, targets, bootstrap=bootstrap)
    rest = {"model": "m.safetensors", "data": "photos", "part": "all", "unreadable": [], "notes": []}
    return result | rest | more


def test_classes() -> None:
    text = to_text(measured("classify", ["cat", "dog", "owl", "a class with quite a long name, longer than is shown"]))
    assert text.startswith("m.safetensors on 60 images of photos\n\naccuracy ")
    headline = text.splitlines()[2]
    assert " %  (95 % interval " in headline
    for words in ("balanced accuracy", "macro F1", "calibration error (ECE)", "most confused", "cat "):
        assert words in text
    assert "1 label has no image here" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(("task", "words"), [("multilabel", "mAP"), ("regress", "RMSE")])
def test_other_tasks(task: str, words: str) -> None:
    text = to_text(measured(task, ["age", "weight"]))
    assert words in text and "worst first" in text and "most confused" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_worst_come_first_and_long_tables_are_cut() -> None:
    text = to_text(measured("classify", [f"class {n}" for n in range(60)], images=600))
    block = next(part for part in text.split("\n\n") if part.lstrip().startswith("worst first"))
    scores = [float(line.split()[-2]) for line in block.splitlines()[1 : ROWS + 1]]
    assert scores == sorted(scores) and len(scores) == ROWS
    assert "and 19 better ones: --json has them all" in text


def test_no_intervals_without_resamples() -> None:
    text = to_text(measured("classify", ["cat", "dog"], bootstrap=0))
    assert "interval" not in text


def test_what_was_left_out_is_said() -> None:
    broken = [{"image": f"{n}.jpg", "error": "x"} for n in range(5)]
    text = to_text(measured("classify", ["cat", "dog"], unreadable=broken, notes=["left out 3 images"], part="val"))
    assert text.splitlines()[0] == "m.safetensors on 60 images of photos (part: val)"
    assert "5 images could not be read and did not count: 0.jpg, 1.jpg, 2.jpg and 2 more" in text
    assert "  left out 3 images\n" in text


def test_columns_line_up_for_wide_letters() -> None:
    assert table([["猫", "1"], ["dog", "22"]]) == "  猫     1\n  dog   22"
