"""The coding rate and SimDINO's loss, computed by hand and by numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity, normalize

from vitrail.pretraining.methods.simdino_loss import SimDINOLoss, coding_rate


def test_coding_rate_of_orthogonal_features():
    """P = 2, B = 2, the unit vectors: Z^T Z = I, the scale is 2 / (2 * 0.5) = 2, ln det(3 I) / 2 = ln 3."""
    assert coding_rate(torch.eye(2)).item() == pytest.approx(math.log(3))


def test_coding_rate_of_one_direction_is_lower():
    """Both features are e1: Z^T Z = diag(2, 0), det(I + 2 diag(2, 0)) = 5."""
    assert coding_rate(torch.tensor([[1.0, 0], [1.0, 0]])).item() == pytest.approx(math.log(5) / 2)


def test_mixed_precision_does_not_round_the_gram_matrix():
    torch.manual_seed(0)
    features = normalize(torch.randn(2, 64, 32), dim=-1)
    expected = SimDINOLoss()(features, features)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(SimDINOLoss()(features, features), expected)


def test_loss_is_that_of_the_paper():
    torch.manual_seed(0)
    student, teacher = normalize(torch.randn(4, 6, 8), dim=-1), normalize(torch.randn(2, 6, 8), dim=-1)
    cosines = [
        cosine_similarity(teacher[t], student[s], dim=-1).mean().item() for t in range(2) for s in range(4) if s != t
    ]
    grams = [view.T @ view for view in student[:2].double().numpy()]
    rates = [np.linalg.slogdet(np.eye(8) + 8 / (6 * 0.5) * gram)[1] / 2 for gram in grams]
    expected = -np.mean(cosines) - 0.7 * (8 + 6) / (8 * 6) * np.mean(rates)
    assert SimDINOLoss(weight=0.7)(student, teacher).item() == pytest.approx(expected, rel=1e-5)


def test_gradient_spreads_features_that_are_all_alike():
    """From one direction, ln 9 / 2, to all four of them alike, where det(I + 2 I) is 81."""
    least, most = math.log(9) / 2, math.log(81) / 2
    features = normalize(
        torch.ones(3, 8, 4) + 0.01 * torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(1)), dim=-1
    )
    assert coding_rate(features[0]).item() == pytest.approx(least, rel=1e-2)
    features.requires_grad_()
    loss = SimDINOLoss()
    for _ in range(200):
        value = loss(normalize(features, dim=-1), normalize(features[:2], dim=-1).detach())
        (gradient,) = torch.autograd.grad(value, features)
        with torch.no_grad():
            features -= 0.5 * gradient
    assert coding_rate(normalize(features[0], dim=-1)).item() == pytest.approx(most, rel=1e-2)


def test_coding_rate_of_all_crops():
    torch.manual_seed(0)
    student, teacher = normalize(torch.randn(4, 6, 8), dim=-1), normalize(torch.randn(2, 6, 8), dim=-1)
    apart = SimDINOLoss(crops="all")(student, teacher) - SimDINOLoss()(student, teacher)
    rates = torch.stack([coding_rate(one) for one in student])
    torch.testing.assert_close(apart, (8 + 6) / (8 * 6) * (rates[:2].mean() - rates.mean()))


def test_without_a_teacher_crops_agree_with_their_mean():
    torch.manual_seed(0)
    student = normalize(torch.randn(4, 6, 8), dim=-1)
    expected = cosine_similarity(student, student.mean(0).expand_as(student), dim=-1).mean()
    torch.testing.assert_close(SimDINOLoss(weight=0.0)(student), -expected)
