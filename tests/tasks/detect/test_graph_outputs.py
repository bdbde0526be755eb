"""Boxes decoded by operations of fixed shapes are those that `Detect.decode` gives by walking through them."""

from __future__ import annotations

import pytest
import torch

from vitrail.tasks.detect.detect import Detect
from vitrail.tasks.detect.nms import NEVER
from vitrail.tasks.letterbox import Letterbox


@pytest.mark.parametrize("nms_iou", [None, 0.3, NEVER])
@pytest.mark.parametrize("no_object", [0, 1])
def test_decoded_boxes_are_those_of_the_task(nms_iou: float | None, no_object: int) -> None:
    generator = torch.Generator().manual_seed(0)
    task = Detect(["cat", "dog", "owl"])
    task.nms_iou = nms_iou
    logits = 3 * torch.randn(2, 60, 3 + no_object, generator=generator)
    boxes = torch.rand(2, 60, 4, generator=generator) * torch.tensor([1.0, 1.0, 0.6, 0.6])
    boxes[:, :5, 2] = 0  # no area: never an object
    outputs = torch.cat([logits, boxes], dim=-1)
    named = task.graph_outputs(outputs, (64, 64))
    expected = task.decode(outputs, [Letterbox.whole((1, 1))] * 2)
    for image, rows in enumerate(expected):
        count = len(rows)
        assert 10 < count < 180
        assert torch.equal(named["labels"][image][:count].float(), rows[:, 0])
        torch.testing.assert_close(named["scores"][image][:count], rows[:, 1])
        torch.testing.assert_close(named["boxes"][image][:count], rows[:, 2:6])
        assert not named["scores"][image][count:].any()
