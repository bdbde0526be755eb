"""Any number of labels an image: the loss against torch and by hand, every metric against scikit-learn."""

import math

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.tasks.multilabel.label_metrics import Ranking
from vitrail.tasks.registry import task_for
from vitrail.tasks.shared.intervals import draw
from vitrail.tasks.task import Mix


def multilabel(labels, class_weights="none"):
    return task_for("multilabel", [f"l{i}" for i in range(labels)], class_weights)


def drawn(seed, images=200, labels=6, ties=False):
    """Labels from frequent to rare, logits that know a little; with ties, logits are rounded."""
    rng = np.random.default_rng(seed)
    truth = rng.random((images, labels)) < np.geomspace(0.6, 0.02, labels)
    truth[0] = True  # so that each occurs
    logits = rng.normal(size=(images, labels)) + 1.5 * truth - 0.7
    return torch.from_numpy(np.round(logits) if ties else logits), torch.from_numpy(truth).float()


def test_targets_become_zeros_and_ones():
    encoded = multilabel(3).encode([(0, 2), (), (1,), (2, 2)])
    assert encoded.dtype == torch.float32
    assert encoded.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_images_without_any_label():
    assert multilabel(2).encode([(), ()]).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("bad", [[0, 1], [(0.5,)], [("cat",)]])
def test_targets_of_another_kind_are_refused(bad):
    with pytest.raises(VitrailError, match="list of label numbers an image"):
        multilabel(3).encode(bad)


@pytest.mark.parametrize("bad", [[(0, 3)], [(-1,)]])
def test_targets_out_of_range_are_refused(bad):
    with pytest.raises(VitrailError, match="3 labels have 0 to 2"):
        multilabel(3).encode(bad)


def test_loss_by_hand():
    """p = (3/4, 1/2): -log(3/4) for the label that is there, -log(1/2) for the one that is not."""
    loss = multilabel(2).loss(torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([[1.0, 0.0]]))
    assert float(loss) == pytest.approx(-(math.log(0.75) + math.log(0.5)) / 2)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("class_weights", ["none", "inverse", "sqrt"])
def test_loss_equals_torch(class_weights, smoothing):
    task = multilabel(3, class_weights)
    task.fit([(0,), (0,), (0, 1), (2,), (), (0,)])
    torch.manual_seed(0)
    outputs, y = torch.randn(10, 3), torch.randint(0, 2, (10, 3)).float()
    partner, ratio = torch.randperm(10), torch.rand(10)
    mixed = ratio[:, None] * y + (1 - ratio[:, None]) * y[partner]
    p = torch.sigmoid(outputs)
    smooth = (1 - smoothing) * mixed + smoothing / 2
    expected = -(task.weights * smooth * p.log() + (1 - smooth) * (1 - p).log()).mean()
    mix = Mix(partner, ratio)
    torch.testing.assert_close(task.loss(outputs, y, mix=mix, smoothing=smoothing), expected)
    plain = F.binary_cross_entropy_with_logits(outputs, y, pos_weight=task.weights)
    torch.testing.assert_close(task.loss(outputs, y), plain)


def test_loss_stays_finite_for_logits_that_are_far_out():
    assert float(multilabel(1).loss(torch.tensor([[-1e4]]), torch.tensor([[1.0]]))) == pytest.approx(1e4)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_metrics_equal_scikit_learn(seed, ties):
    logits, truth = drawn(seed, ties=ties)
    metrics = multilabel(6).evaluate(logits, truth, bootstrap=0)["metrics"]
    y, given, p = truth.numpy().astype(int), (logits > 0).numpy().astype(int), torch.sigmoid(logits).numpy()
    assert metrics["mAP"] == pytest.approx(sk.average_precision_score(y, p, average="macro"))
    assert metrics["micro_f1"] == pytest.approx(sk.f1_score(y, given, average="micro"))
    assert metrics["macro_f1"] == pytest.approx(sk.f1_score(y, given, average="macro", zero_division=0))
    assert metrics["exact_match"] == pytest.approx(sk.accuracy_score(y, given))
    assert metrics["log_loss"] == pytest.approx(
        np.mean([sk.log_loss(y[:, k], p[:, k], labels=[0, 1]) for k in range(6)])
    )


@pytest.mark.parametrize("ties", [False, True])
def test_per_label_numbers_equal_scikit_learn(ties):
    logits, truth = drawn(7, ties=ties)
    rows = multilabel(6).evaluate(logits, truth, bootstrap=0)["per_label"]
    y, given = truth.numpy().astype(int), (logits > 0).numpy().astype(int)
    precision, recall, f1, support = sk.precision_recall_fscore_support(y, given, zero_division=0)
    for k, row in enumerate(rows):
        ours = row["average_precision"], row["precision"], row["recall"], row["f1"]
        area = sk.average_precision_score(y[:, k], logits[:, k].numpy())
        assert ours == pytest.approx((area, precision[k], recall[k], f1[k]))
        assert row["support"] == support[k]


@pytest.mark.parametrize("levels", [2, 4, 1000])
def test_weighted_average_precision_equals_that_of_repeated_images(levels):
    rng = np.random.default_rng(levels)
    scores, truth = rng.integers(levels, size=80).astype(float), rng.random(80) < 0.3
    weights = draw(np.random.default_rng(0), images=80, resamples=20)
    areas = Ranking(scores, truth).average_precision(weights)
    for r in range(20):
        rows = np.repeat(np.arange(80), weights[:, r].astype(int))
        assert areas[r] == pytest.approx(sk.average_precision_score(truth[rows], scores[rows]))


def test_intervals_equal_a_loop_with_scikit_learn():
    logits, truth = drawn(3, images=80, labels=3)
    intervals = multilabel(3).evaluate(logits, truth, bootstrap=60, seed=5)["intervals"]
    y, scores = truth.numpy().astype(int), logits.numpy()
    samples = {name: [] for name in intervals}
    for rows in np.random.default_rng(5).integers(80, size=(60, 80)):
        t, s = y[rows], scores[rows]
        there = t.any(0)
        samples["mAP"].append(np.mean([sk.average_precision_score(t[:, k], s[:, k]) for k in np.flatnonzero(there)]))
        samples["micro_f1"].append(sk.f1_score(t, s > 0, average="micro"))
        samples["macro_f1"].append(sk.f1_score(t[:, there], s[:, there] > 0, average="macro", zero_division=0))
        samples["exact_match"].append(sk.accuracy_score(t, s > 0))
        samples["log_loss"].append(float(F.binary_cross_entropy_with_logits(torch.tensor(s), torch.tensor(t).double())))
    for name, values in samples.items():
        assert intervals[name] == pytest.approx(np.percentile(values, [2.5, 97.5]).tolist()), name


def test_a_label_that_does_not_occur_is_left_out_of_the_averages():
    logits = torch.tensor([[2.0, 3.0], [-1.0, -1.0]])
    result = multilabel(2).evaluate(logits, torch.tensor([[1.0, 0.0], [0.0, 0.0]]), bootstrap=20)
    assert result["metrics"]["mAP"] == 1.0
    assert result["metrics"]["macro_f1"] == 1.0
    assert result["metrics"]["micro_f1"] == pytest.approx(2 / 3)
    absent = result["per_label"][1]
    assert (absent["average_precision"], absent["precision"], absent["recall"], absent["f1"]) == (None, 0.0, None, None)


def test_no_label_at_all():
    result = multilabel(2).evaluate(torch.full((3, 2), -4.0), torch.zeros(3, 2), bootstrap=20)
    assert result["metrics"]["mAP"] == 0.0
    assert result["metrics"]["exact_match"] == 1.0
    assert result["worst"] == []


def test_one_image_all_correct():
    result = multilabel(2).evaluate(torch.tensor([[3.0, -3.0]]), torch.tensor([[1.0, 0.0]]), bootstrap=20)
    metrics = result["metrics"]
    assert (metrics["mAP"], metrics["micro_f1"], metrics["macro_f1"], metrics["exact_match"]) == (1.0,) * 4
    assert result["intervals"]["mAP"] == [1.0, 1.0]


def test_calibration_pools_all_labels():
    """Four times told 3/4, true once: off by 1/2; label 0 is off by 1/4, label 1 by 3/4."""
    logits = torch.full((2, 2), math.log(3.0))
    result = multilabel(2).evaluate(logits, torch.tensor([[1.0, 0.0], [0.0, 0.0]]), bootstrap=0)
    assert result["metrics"]["ece"] == pytest.approx(0.5)
    assert [row["ece"] for row in result["per_label"]] == pytest.approx([0.25, 0.75])
    assert result["calibration"]["bins"][11]["count"] == 4


def test_the_worst_are_the_most_surprising_mistakes():
    logits = torch.tensor([[1.0, -5.0], [5.0, -5.0], [6.0, 4.0], [-0.1, -9.0]])
    truth = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    worst = multilabel(2).evaluate(logits, truth, bootstrap=0)["worst"]
    assert [mistake["index"] for mistake in worst] == [2, 0, 3]
    assert (worst[0]["truth"], worst[0]["answer"]) == ("l1", "l0, l1")
    assert (worst[1]["truth"], worst[1]["answer"]) == ("", "l0")


def test_answers_name_all_labels_above_a_half():
    task = multilabel(4)
    given, none, exactly_half = task.answer(torch.tensor([[1.0, 3.0, -2.0, 2.0], [-1.0] * 4, [0.0] * 4]), top=1)
    assert given["labels"] == ["l1", "l3", "l0"]
    assert [guess["label"] for guess in given["top"]] == ["l1", "l3", "l0"]
    assert given["top"][2]["probability"] == pytest.approx(1 / (1 + math.exp(-1)))
    assert (none["labels"], len(none["top"])) == ([], 1)
    assert exactly_half["labels"] == []
    assert task.row(given) == {"labels": "l1|l3|l0", "probabilities": "0.9526|0.8808|0.7311"}
    assert task.row(none) == {"labels": "", "probabilities": ""}
