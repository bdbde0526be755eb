"""One label an image: the loss against torch and by hand, every metric against scikit-learn."""

import math
import warnings

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.tasks.classify.class_metrics import READABLE, rank_of_truth
from vitrail.tasks.registry import task_for
from vitrail.tasks.task import Mix


def classify(classes, class_weights="none"):
    return task_for("classify", [f"c{i}" for i in range(classes)], class_weights)


def drawn(seed, images=300, classes=8, ties=False):
    """Imbalanced classes, logits that know a little; with ties, logits are rounded."""
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(classes, 0.7))
    truth = rng.choice(classes, size=images, p=share)
    logits = rng.normal(size=(images, classes)) + 1.2 * np.eye(classes)[truth]
    return torch.from_numpy(np.round(logits) if ties else logits), torch.from_numpy(truth)


def batch(seed=0, images=16, classes=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(images, classes, generator=generator), torch.randint(0, classes, (images,), generator=generator)


def test_targets_become_class_indices():
    encoded = classify(3).encode([2, np.int64(0), 1])
    assert encoded.dtype == torch.int64
    assert encoded.tolist() == [2, 0, 1]


@pytest.mark.parametrize("bad", [[0.5, 1.0], [(0, 1)], ["cat"], [None]])
def test_targets_of_another_kind_are_refused(bad):
    with pytest.raises(VitrailError, match="one class number an image"):
        classify(3).encode(bad)


@pytest.mark.parametrize("bad", [[0, 3], [-1, 2]])
def test_targets_out_of_range_are_refused(bad):
    with pytest.raises(VitrailError, match="3 labels have 0 to 2"):
        classify(3).encode(bad)


def test_loss_by_hand():
    """p = (3/4, 1/4): -log(3/4) for class 0, -log(1/4) for class 1."""
    outputs = torch.tensor([[math.log(3.0), 0.0], [math.log(3.0), 0.0]])
    loss = classify(2).loss(outputs, torch.tensor([0, 1]))
    assert float(loss) == pytest.approx(-(math.log(0.75) + math.log(0.25)) / 2)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_loss_equals_torch_with_indices_and_smoothing(smoothing):
    outputs, targets = batch()
    expected = F.cross_entropy(outputs, targets, label_smoothing=smoothing)
    torch.testing.assert_close(classify(5).loss(outputs, targets, smoothing=smoothing), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_mixed_loss_equals_torch_with_probabilities(smoothing):
    outputs, targets = batch()
    partner, ratio = torch.randperm(16), torch.rand(16)
    y = F.one_hot(targets, 5).float()
    y = ratio[:, None] * y + (1 - ratio[:, None]) * y[partner]
    expected = F.cross_entropy(outputs, y, label_smoothing=smoothing)
    mix = Mix(partner, ratio)
    torch.testing.assert_close(classify(5).loss(outputs, targets, mix=mix, smoothing=smoothing), expected)


def test_weighted_loss_equals_torch_with_probabilities():
    task = classify(5, "inverse")
    task.fit([0] * 50 + [1] * 20 + [2] * 20 + [3] * 7 + [4] * 3)
    outputs, targets = batch()
    partner, ratio = torch.randperm(16), torch.rand(16)
    y = F.one_hot(targets, 5).float()
    y = ratio[:, None] * y + (1 - ratio[:, None]) * y[partner]
    expected = F.cross_entropy(outputs, y, weight=task.weights)
    torch.testing.assert_close(task.loss(outputs, targets, mix=Mix(partner, ratio)), expected)


def test_a_rare_class_does_not_collect_the_share_of_smoothing():
    """With smoothing, an image's whole loss is weighted by its own class."""
    task = classify(3, "inverse")
    task.fit([0] * 90 + [1] * 9 + [2])
    outputs, targets = batch(classes=3)
    own = task.weights[targets]
    expected = (own * F.cross_entropy(outputs, targets, label_smoothing=0.2, reduction="none")).mean()
    torch.testing.assert_close(task.loss(outputs, targets, smoothing=0.2), expected)


def test_loss_stays_finite_for_logits_that_are_far_apart():
    loss = classify(2).loss(torch.tensor([[1e4, -1e4]]), torch.tensor([1]))
    assert float(loss) == pytest.approx(2e4)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_metrics_equal_scikit_learn(seed, ties):
    logits, truth = drawn(seed, ties=ties)
    metrics = classify(8).evaluate(logits, truth, bootstrap=0)["metrics"]
    guess, p = logits.numpy().argmax(1), torch.softmax(logits, 1).numpy()
    present = np.unique(truth)
    assert metrics["accuracy"] == pytest.approx(sk.accuracy_score(truth, guess))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns of guesses that never occur
        assert metrics["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(truth, guess))
    f1 = sk.f1_score(truth, guess, labels=present, average="macro", zero_division=0)
    assert metrics["macro_f1"] == pytest.approx(f1)
    assert metrics["log_loss"] == pytest.approx(sk.log_loss(truth, p, labels=range(8)))
    if not ties:  # of equal logits scikit-learn takes the last class first, argmax and we the first
        assert metrics["top5_accuracy"] == pytest.approx(sk.top_k_accuracy_score(truth, p, k=5, labels=range(8)))


@pytest.mark.parametrize("seed", range(3))
def test_per_class_numbers_and_confusion_equal_scikit_learn(seed):
    logits, truth = drawn(seed)
    result = classify(8).evaluate(logits, truth, bootstrap=0)
    guess = logits.numpy().argmax(1)
    expected = sk.precision_recall_fscore_support(truth, guess, labels=range(8), zero_division=0)
    for i, row in enumerate(result["per_label"]):
        precision, recall, f1, support = (column[i] for column in expected)
        assert row["support"] == support
        assert row["precision"] == pytest.approx(precision)
        if support:
            assert (row["recall"], row["f1"]) == pytest.approx((recall, f1))
        else:
            assert (row["recall"], row["f1"]) == (None, None)
    assert result["confusion"] == sk.confusion_matrix(truth, guess, labels=range(8)).tolist()


def test_intervals_equal_a_loop_with_scikit_learn():
    logits, truth = drawn(5, images=60, classes=7)
    intervals = classify(7).evaluate(logits, truth, bootstrap=100, seed=3)["intervals"]
    guess, p, truth = logits.numpy().argmax(1), torch.softmax(logits, 1).numpy(), truth.numpy()
    samples = {name: [] for name in intervals}
    for rows in np.random.default_rng(3).integers(60, size=(100, 60)):
        t, g = truth[rows], guess[rows]
        recall = sk.recall_score(t, g, labels=np.unique(t), average="macro", zero_division=0)
        samples["accuracy"].append(sk.accuracy_score(t, g))
        samples["balanced_accuracy"].append(recall)
        samples["macro_f1"].append(sk.f1_score(t, g, labels=np.unique(t), average="macro", zero_division=0))
        samples["log_loss"].append(sk.log_loss(t, p[rows], labels=range(7)))
        samples["top5_accuracy"].append(sk.top_k_accuracy_score(t, p[rows], k=5, labels=range(7)))
    for name, values in samples.items():
        assert intervals[name] == pytest.approx(np.percentile(values, [2.5, 97.5]).tolist()), name


def test_top5_only_when_it_says_something():
    for classes, told in [(5, False), (6, True)]:
        logits, truth = drawn(0, classes=classes)
        assert ("top5_accuracy" in classify(classes).evaluate(logits, truth, bootstrap=0)["metrics"]) == told


def test_of_equal_logits_the_first_class_comes_first():
    logits = np.array([[1.0, 1.0, 1.0], [0.0, 2.0, 2.0], [3.0, 2.0, 1.0]])
    assert rank_of_truth(logits, np.array([2, 1, 2])).tolist() == [2, 0, 2]


def test_an_absent_class_is_left_out_of_the_averages():
    """Class 2 has no image: recalls are 1 and 1/2. Class 2 was told once, class 3 neither occurs nor is told."""
    logits = torch.eye(4)[[0, 0, 1, 2]] * 5
    result = classify(4).evaluate(logits, torch.tensor([0, 0, 1, 1]), bootstrap=50)
    assert result["metrics"]["balanced_accuracy"] == pytest.approx(0.75)
    assert result["metrics"]["macro_f1"] == pytest.approx((1 + 2 / 3) / 2)
    assert result["per_label"][2] == {"label": "c2", "precision": 0.0, "recall": None, "f1": None, "support": 0}
    assert result["per_label"][3]["precision"] == 0.0


def test_one_image():
    result = classify(3).evaluate(torch.tensor([[0.0, 4.0, 0.0]]), torch.tensor([1]), bootstrap=10)
    assert result["metrics"]["accuracy"] == 1.0
    assert result["intervals"]["accuracy"] == [1.0, 1.0]


def test_all_correct_has_no_mistakes_to_show():
    logits, truth = torch.eye(3).repeat(4, 1) * 9, torch.arange(3).repeat(4)
    result = classify(3).evaluate(logits, truth, bootstrap=10)
    assert result["metrics"]["accuracy"] == result["metrics"]["balanced_accuracy"] == 1.0
    assert result["metrics"]["macro_f1"] == 1.0
    assert (result["worst"], result["confused_pairs"]) == ([], [])
    assert result["confusion"] == [[4, 0, 0], [0, 4, 0], [0, 0, 4]]


def test_all_wrong():
    logits, truth = torch.eye(3) * 9, torch.tensor([1, 2, 0])
    metrics = classify(3).evaluate(logits, truth, bootstrap=10)["metrics"]
    assert (metrics["accuracy"], metrics["balanced_accuracy"], metrics["macro_f1"]) == (0.0, 0.0, 0.0)


def test_one_class():
    task = classify(1)
    outputs, targets = torch.randn(4, 1), torch.zeros(4, dtype=torch.int64)
    assert float(task.loss(outputs, targets, smoothing=0.1)) == 0.0
    metrics = task.evaluate(outputs, targets, bootstrap=10)["metrics"]
    assert metrics == {"accuracy": 1.0, "balanced_accuracy": 1.0, "macro_f1": 1.0, "log_loss": 0.0, "ece": 0.0}
    assert task.answer(outputs)[0] == {"label": "c0", "probability": 1.0, "top": [{"label": "c0", "probability": 1.0}]}


def test_a_matrix_that_no_one_can_read_is_left_out():
    classes = READABLE + 1
    result = classify(classes).evaluate(torch.randn(3, classes), torch.tensor([0, 5, 9]), bootstrap=0)
    assert result["confusion"] is None
    assert len(result["confused_pairs"]) == 3


def test_the_worst_mistakes_are_the_surest_ones():
    logits = torch.tensor([[5.0, 0.0], [1.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    worst = classify(2).evaluate(logits, torch.tensor([1, 1, 1, 1]), bootstrap=0)["worst"]
    assert [mistake["index"] for mistake in worst] == [0, 2, 1]
    first = worst[0]
    assert (first["truth"], first["answer"]) == ("c1", "c0")
    assert first["probability"] == pytest.approx(1 / (1 + math.exp(-5)))
    assert first["probability_of_truth"] == pytest.approx(1 / (1 + math.exp(5)))


def test_the_most_confused_pairs_come_first():
    truth = torch.tensor([0, 0, 0, 0, 1, 1, 2])
    logits = torch.eye(3)[[1, 1, 2, 0, 0, 1, 2]]
    pairs = classify(3).evaluate(logits, truth, bootstrap=0)["confused_pairs"]
    assert pairs[0] == {"truth": "c0", "answer": "c1", "count": 2, "share": 0.5}
    assert [(pair["truth"], pair["answer"]) for pair in pairs[1:]] == [("c0", "c2"), ("c1", "c0")]


def test_calibration_is_of_the_told_class():
    """Both images are told class 0 with 3/4, one is right: off by 1/4."""
    logits = torch.tensor([[math.log(3.0), 0.0]]).repeat(2, 1)
    result = classify(2).evaluate(logits, torch.tensor([0, 1]), bootstrap=0)
    assert result["metrics"]["ece"] == result["calibration"]["ece"] == pytest.approx(0.25)
    assert result["calibration"]["bins"][11]["count"] == 2


def test_answers_are_sorted_by_probability():
    outputs = torch.tensor([[0.0, math.log(6.0), math.log(3.0)]])
    task = classify(3)
    (answer,) = task.answer(outputs, top=2)
    assert answer["label"] == "c1"
    assert answer["probability"] == pytest.approx(0.6)
    assert [guess["label"] for guess in answer["top"]] == ["c1", "c2"]
    assert task.row(answer) == {
        "label": "c1",
        "probability": answer["probability"],
        "label_2": "c2",
        "probability_2": pytest.approx(0.3),
    }
    assert len(task.answer(outputs, top=9)[0]["top"]) == 3
