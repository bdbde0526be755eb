"""Weights against imbalance, and when they are learned."""

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from vitrail.tasks.registry import task_for


def weights(name, targets, class_weights, labels="abc"):
    task = task_for(name, list(labels), class_weights)
    task.fit(targets)
    return task.weights.tolist()


def test_inverse_weights_are_scikit_learns_balanced_ones():
    targets = [0] * 80 + [1] * 15 + [2] * 5
    balanced = compute_class_weight("balanced", classes=np.arange(3), y=targets)
    assert weights("classify", targets, "inverse") == pytest.approx(balanced.tolist())


@pytest.mark.parametrize("kind", ["inverse", "sqrt"])
def test_a_training_image_weighs_one_on_average(kind):
    targets = [0] * 64 + [1] * 16 + [2] * 4
    each = weights("classify", targets, kind)
    assert sum(each[t] for t in targets) / len(targets) == pytest.approx(1)


def test_sqrt_weights_go_with_the_root():
    each = weights("classify", [0] * 64 + [1] * 16 + [2] * 4, "sqrt")
    assert each[1] / each[0] == pytest.approx(2)
    assert each[2] / each[0] == pytest.approx(4)


def test_a_class_without_images_leaves_the_others_as_they_are():
    with_empty = weights("classify", [0] * 6 + [1] * 2, "inverse", labels="abc")
    assert with_empty[:2] == pytest.approx(weights("classify", [0] * 6 + [1] * 2, "inverse", labels="ab"))
    assert with_empty[2] < float("inf")


def test_positive_weights_are_the_odds_within_bounds():
    targets = [(0, 1)] * 2 + [(0,)] * 6 + [(0,)] * 2  # all ten have a, two have b, none has c
    assert weights("multilabel", targets, "inverse") == pytest.approx([0.01, 4.0, 1.0])
    assert weights("multilabel", targets, "sqrt") == pytest.approx([0.01, 2.0, 1.0])
    rare = [(0,)] + [()] * 999
    assert weights("multilabel", rare, "inverse") == pytest.approx([100.0, 1.0, 1.0])


def test_weights_need_the_training_targets_first():
    task = task_for("classify", ["a", "b"], "inverse")
    with pytest.raises(RuntimeError, match="fit"):
        task.loss(torch.zeros(1, 2), torch.tensor([0]))


def test_loaded_state_weighs_the_same():
    task = task_for("classify", ["a", "b"], "inverse")
    task.fit([0, 0, 0, 1])
    other = task_for("classify", ["a", "b"], "inverse")
    other.load_state_dict(task.state_dict())
    assert torch.equal(other.weights, task.weights)
    assert not torch.equal(other.weights, torch.ones(2))


def test_fitting_anew_forgets_the_temperature():
    task = task_for("classify", ["a", "b"])
    task.temperature = 3.0
    task.fit([0, 1])
    assert task.temperature == 1.0


def test_calibrating_divides_the_logits():
    task = task_for("classify", ["a", "b"])
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2000, 2, generator=generator)
    targets = torch.multinomial(torch.softmax(logits, 1), 1, generator=generator)[:, 0]
    task.calibrate(5 * logits, targets)
    assert task.temperature == pytest.approx(5, rel=0.15)
    torch.testing.assert_close(task.meant(5 * logits), 5 * logits.double() / task.temperature)
