"""The linear probe, against scikit-learn's logistic and ridge regression."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from vitrail.search.linear_probe import fit_probe
from vitrail.tasks.registry import task_for

RNG = np.random.default_rng(0)
FEATURES = (RNG.normal(size=(150, 6)) * [1, 5, 0.2, 1, 1, 1] + 3).astype(np.float32)
NEW = (RNG.normal(size=(40, 6)) * [1, 5, 0.2, 1, 1, 1] + 3).astype(np.float32)
SCALER = StandardScaler().fit(FEATURES)
SCORES = SCALER.transform(FEATURES) @ RNG.normal(size=(6, 3)) + RNG.normal(size=(150, 3))
CLASSES, LABELS = SCORES.argmax(1), (SCORES > 0).astype(int)
PENALTY = 0.01  # ours: mean loss + penalty |w|^2; theirs: C sum of losses + |w|^2 / 2


def test_classes_are_logistic_regression() -> None:
    task = task_for("classify", ["a", "b", "c"])
    probe = fit_probe(torch.from_numpy(FEATURES), torch.from_numpy(CLASSES), task, penalties=[PENALTY], steps=200)
    reference = LogisticRegression(C=1 / (2 * PENALTY * len(FEATURES)), tol=1e-8).fit(
        SCALER.transform(FEATURES), CLASSES
    )
    found = task.meant(probe(torch.from_numpy(NEW))).softmax(1).numpy()
    np.testing.assert_allclose(found, reference.predict_proba(SCALER.transform(NEW)), atol=2e-3)


def test_labels_are_one_logistic_regression_each() -> None:
    task = task_for("multilabel", ["a", "b", "c"])
    targets = torch.from_numpy(LABELS).float()
    probe = fit_probe(torch.from_numpy(FEATURES), targets, task, penalties=[PENALTY], steps=200)
    found = task.meant(probe(torch.from_numpy(NEW))).sigmoid().numpy()
    for label in range(3):  # the loss is the mean over labels too
        reference = LogisticRegression(C=1 / (2 * 3 * PENALTY * len(FEATURES)), tol=1e-8)
        reference.fit(SCALER.transform(FEATURES), LABELS[:, label])
        np.testing.assert_allclose(found[:, label], reference.predict_proba(SCALER.transform(NEW))[:, 1], atol=2e-3)


def test_numbers_are_ridge_regression() -> None:
    numbers = (SCORES[:, :1] * 40 + 900).astype(np.float32)
    task = task_for("regress", ["weight"])
    task.fit(numbers.tolist())
    probe = fit_probe(torch.from_numpy(FEATURES), torch.from_numpy(numbers), task, penalties=[PENALTY], steps=200)
    reference = Ridge(alpha=2 * PENALTY * len(FEATURES)).fit(SCALER.transform(FEATURES), numbers)
    found = task.meant(probe(torch.from_numpy(NEW))).numpy().ravel()
    np.testing.assert_allclose(found, reference.predict(SCALER.transform(NEW)).ravel(), rtol=2e-4)


def test_a_probe_separates_what_can_be_separated() -> None:
    """Features of very different scales, one of which tells the class."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(200, 8, generator=generator) * torch.tensor([1000.0, 1, 1, 1, 1, 1, 1, 0.001]) + 50
    targets = (features[:, 7] > features[:, 7].median()).long()
    probe = fit_probe(features, targets, task_for("classify", ["low", "high"]))
    assert (probe(features).argmax(1) == targets).float().mean() > 0.95


def test_labels_without_a_pattern_give_a_probe_that_says_little() -> None:
    """The penalty is chosen by images that the probe was not fitted to."""
    generator = torch.Generator().manual_seed(0)
    features, targets = torch.randn(60, 50, generator=generator), torch.randint(2, (60,), generator=generator)
    probe = fit_probe(features, targets, task_for("classify", ["a", "b"]))
    assert probe(features).softmax(1).max() < 0.99 and probe.weight.norm() < 1


def test_the_penalty_is_chosen_on_the_images_that_are_named() -> None:
    """The class shows in one feature; in the images that choose, its sign is turned around, so that the largest penalty
    is the best."""
    features = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    targets, chooses = (features[:, 0] > 0).long(), torch.arange(200) >= 150
    targets[chooses] = 1 - targets[chooses]
    task = task_for("classify", ["a", "b"])
    assert fit_probe(features, targets, task, penalties=(1e-4, 10.0), held_out=chooses).penalty == 10.0
    assert fit_probe(features[:150], targets[:150], task, penalties=(1e-4, 10.0)).penalty == 1e-4
