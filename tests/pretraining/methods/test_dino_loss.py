"""DINO's loss and centre, computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from vitrail.pretraining.methods.dino_loss import DINOLoss
from vitrail.training.distributed import Processes


def test_loss_of_given_logits():
    """K = 2, both temperatures 1. The teacher's softmax of (ln 3, 0) is (3/4, 1/4). The student's other crop gives
    (1/2, 1/2): cross-entropy ln 2. The local crop gives (1/4, 3/4): 3/4 ln 4 + 1/4 ln 4/3."""
    loss = DINOLoss(2, student_temperature=1.0)
    teacher = torch.tensor([[[math.log(3), 0.0]], [[math.log(3), 0.0]]])  # (G, B, K)
    student = torch.tensor([[[0.0, 0.0]], [[0.0, 0.0]], [[0.0, math.log(3)]]])  # (V, B, K)
    of_local = 0.75 * math.log(4) + 0.25 * math.log(4 / 3)
    pairs = [math.log(2), of_local, math.log(2), of_local]  # each global crop with the other one and with the local one
    assert loss(student, teacher, 1.0).item() == pytest.approx(sum(pairs) / 4)


def test_a_crop_is_not_compared_with_itself():
    torch.manual_seed(0)
    loss, teacher, student = DINOLoss(5), torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    expected = 0.0
    for one, other in ((0, 1), (1, 0)):
        target = (teacher[one] / 0.04).softmax(-1)
        expected += torch.nn.functional.cross_entropy(student[other] / 0.1, target).item() / 2
    assert loss(student, teacher, 0.04).item() == pytest.approx(expected, rel=1e-5)


def test_temperature_sharpens_and_centre_shifts():
    """((0.2, 0.1) - (0.1, 0.1)) / 0.05 = (2, 0): the softmax of it is 1 / (1 + e^-2)."""
    loss = DINOLoss(2)
    loss.centre.fill_(0.1)
    target = loss.targets(torch.tensor([0.2, 0.1]), 0.05)
    assert target[0].item() == pytest.approx(1 / (1 + math.exp(-2)))


def test_centre_after_three_steps():
    """Of outputs that are always (1, 3) it is (1 - 0.9^3) of them; parts of a step count as one."""
    loss, processes = DINOLoss(2, centre_momentum=0.9), Processes()
    outputs = torch.tensor([1.0, 3.0]).expand(2, 4, 2)
    for _ in range(3):
        loss.observe(outputs[:, :1])
        loss.observe(outputs[:, 1:])
        loss.update_centre(processes)
    torch.testing.assert_close(loss.centre, (1 - 0.9**3) * torch.tensor([1.0, 3.0]))


def test_a_uniform_teacher_leaves_the_loss_at_ln_k():
    loss = DINOLoss(4096)
    assert loss.resting_loss == pytest.approx(8.3178, abs=1e-4)
    flat = torch.zeros(2, 3, 4096)
    assert loss(flat, flat, 0.04).item() == pytest.approx(loss.resting_loss, rel=1e-5)


def test_the_centre_is_part_of_the_state_and_what_was_observed_is_not():
    assert set(DINOLoss(2).state_dict()) == {"centre"}
