"""ECE and its table, and the temperature that mends it."""

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from torch.nn import functional as F

from vitrail.tasks.shared.labels.calibration import BINS, COLDEST, HOTTEST, fit_temperature, reliability


def slow_ece(confidence, right, bins):
    total = 0.0
    for i in range(bins):
        inside = (confidence > i / bins) & (confidence <= (i + 1) / bins)
        if inside.any():
            total += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    return total


@pytest.mark.parametrize("seed", range(3))
def test_ece_equals_the_definition(seed):
    rng = np.random.default_rng(seed)
    confidence, right = rng.random(500), rng.random(500) < 0.6
    assert reliability(confidence, right)["ece"] == pytest.approx(slow_ece(confidence, right, BINS), abs=1e-12)


def test_the_table_equals_scikit_learn():
    rng = np.random.default_rng(0)
    confidence, right = rng.random(400) ** 3, rng.random(400) < 0.5
    frequency, mean = calibration_curve(right, confidence, n_bins=BINS)
    filled = [row for row in reliability(confidence, right)["bins"] if row["count"]]
    assert [row["frequency"] for row in filled] == pytest.approx(frequency)
    assert [row["confidence"] for row in filled] == pytest.approx(mean)


def test_ece_by_hand():
    """Bins (0.5, 0.6] and (0.9, 1]: |0.55 - 0.5| for two of four images, |0.975 - 1| for the others."""
    result = reliability(np.array([0.55, 0.55, 1.0, 0.95]), np.array([True, False, True, True]), bins=10)
    assert result["ece"] == pytest.approx(0.5 * 0.05 + 0.5 * 0.025)
    assert [row["count"] for row in result["bins"]] == [0, 0, 0, 0, 0, 2, 0, 0, 0, 2]
    assert result["bins"][0] == {"low": 0.0, "high": 0.1, "count": 0, "confidence": None, "frequency": None}


def test_bins_own_their_upper_end_and_the_first_owns_zero():
    bins = reliability(np.array([0.0, 0.25, 0.5, 1.0]), np.zeros(4), bins=4)["bins"]
    assert [row["count"] for row in bins] == [2, 1, 0, 1]


def drawn_classes(seed, images=4000, classes=5):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(images, classes, generator=generator)
    return logits, torch.multinomial(torch.softmax(logits, 1), 1, generator=generator)[:, 0]


def drawn_labels(seed, images=4000, labels=5):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(images, labels, generator=generator)
    return logits, (torch.rand(images, labels, generator=generator) < torch.sigmoid(logits)).float()


@pytest.mark.parametrize("drawn", [drawn_classes, drawn_labels])
@pytest.mark.parametrize("true", [0.4, 1.0, 1.7, 6.0])
def test_a_known_temperature_is_found(drawn, true):
    logits, targets = drawn(seed=int(10 * true))
    assert fit_temperature(logits * true, targets) == pytest.approx(true, rel=0.06)


@pytest.mark.parametrize(
    "drawn, loss", [(drawn_classes, F.cross_entropy), (drawn_labels, F.binary_cross_entropy_with_logits)]
)
def test_no_other_temperature_is_less_surprised(drawn, loss):
    logits, targets = drawn(seed=3)
    logits = 3 * logits.double()
    targets = targets.double() if targets.dim() == 2 else targets
    found = fit_temperature(logits, targets)
    at_best = loss(logits / found, targets)
    for other in (0.9 * found, 0.98 * found, 1.02 * found, 1.1 * found):
        assert at_best < loss(logits / other, targets)


def test_calibrated_logits_have_a_smaller_ece():
    logits, targets = drawn_classes(seed=4)

    def ece(logits):
        confidence, guess = torch.softmax(logits, 1).max(1)
        return reliability(confidence.numpy(), (guess == targets).numpy())["ece"]

    assert ece(4 * logits) > 0.1
    assert ece(4 * logits / fit_temperature(4 * logits, targets)) < 0.03


def test_when_all_are_right_confidence_stays_below_certainty():
    """100 of 100 right: by the rule of succession a mistake in about 100 is to be expected, not one in 10^20."""
    targets = torch.arange(100) % 4
    logits = 3.0 * F.one_hot(targets, 4)
    temperature = fit_temperature(logits, targets)
    assert COLDEST < temperature < 1
    sure = float(torch.softmax(logits / temperature, 1).max(1).values.mean())
    assert 0.985 < sure < 0.999


def test_never_worse_than_leaving_it_alone():
    """Already surer than the softened targets allow: plain likelihood would rise, so nothing is changed."""
    targets = torch.arange(20) % 4
    assert fit_temperature(30.0 * F.one_hot(targets, 4), targets) == 1.0
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        logits = 3 * torch.randn(5, 3, generator=generator).double()
        targets = torch.randint(0, 3, (5,), generator=generator)
        after = F.cross_entropy(logits / fit_temperature(logits, targets), targets)
        assert after <= F.cross_entropy(logits, targets)


def test_always_wrong_stops_at_the_bound():
    targets = torch.arange(100) % 4
    assert fit_temperature(50.0 * F.one_hot((targets + 1) % 4, 4), targets) == pytest.approx(HOTTEST, rel=1e-3)


@pytest.mark.parametrize("logits", [torch.zeros(6, 3), torch.full((6, 3), 7.0), torch.ones(6, 1)])
def test_logits_that_tell_nothing_keep_their_temperature(logits):
    assert fit_temperature(logits, torch.zeros(6, dtype=torch.int64)) == 1.0


def test_one_image():
    assert COLDEST <= fit_temperature(torch.tensor([[2.0, 0.0]]), torch.tensor([1])) <= HOTTEST
