"""The part of a run's page about depth: pictures side by side, small ones enlarged pixel by pixel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.report.pages.rendering import render
from vitrail.tasks.depth.depth import Depth
from vitrail.tasks.report_part import MeasuredImages


@pytest.mark.parametrize(("height", "width", "enlarged"), [(24, 32, True), (300, 400, False)])
def test_pictures_side_by_side(tmp_path: Path, height: int, width: int, enlarged: bool) -> None:
    task = Depth(["depth (m)"])
    truth = torch.full((height, width), 2.0)
    truth[:, : width // 2] = 5.0
    answer = torch.full((height, width), 4.0)
    Image.fromarray(np.full((height, width, 3), 90, np.uint8)).save(tmp_path / "a.png")
    results = task.evaluate(task.compare(answer, truth)[None], torch.zeros(1, 0), bootstrap=0)
    images = MeasuredImages([tmp_path / "a.png"], tmp_path, [(answer, truth)])
    page = render("depth_report.html", part=task.report(results, images).values)
    assert page.count("<figure>") == page.count("<img") == 4
    assert page.count('width="256" height="192"') == 4
    assert page.count('class="crisp"') == (4 if enlarged else 0)
    assert "truth, 2 to 5 m" in page and "a.png" in page

    (tmp_path / "a.png").unlink()
    page = render("depth_report.html", part=task.report(results, images).values)
    assert page.count("<img") == 3 and page.count("no picture") == 1
