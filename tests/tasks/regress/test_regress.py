"""Numbers: the loss by hand, every metric against scikit-learn, and units that come out as they went in."""

import numpy as np
import pytest
import sklearn.metrics as sk
import torch

from vitrail.dataset import Dataset, Item
from vitrail.errors import VitrailError
from vitrail.tasks.registry import task_data, task_for
from vitrail.tasks.task import Mix


def regress(*names):
    return task_for("regress", names)


def drawn(seed, images=150):
    """Three numbers of very different units."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(images, 3)) * [1, 50, 0.01] + [0, 1000, -3]
    return torch.from_numpy(true + rng.normal(size=true.shape) * [0.5, 10, 0.02]), torch.from_numpy(true)


def test_targets_become_floats():
    encoded = regress("a", "b").encode([(1, 2.5), (3.0, -4)])
    assert encoded.dtype == torch.float32
    assert encoded.tolist() == [[1.0, 2.5], [3.0, -4.0]]


@pytest.mark.parametrize("bad", [[(1.0,)], [1.0], [(1.0, 2.0), (1.0,)], [("x", "y")], [(None, 1.0, 2.0)]])
def test_targets_of_another_shape_are_refused(bad):
    with pytest.raises(VitrailError, match="2 numbers an image"):
        regress("a", "b").encode(bad)


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([1.7e9, 1.7e9 + 40, 1.7e9 + 90], 128),  # seconds since 1970
        ([-1.7e9, -1.7e9 - 40], 128),
        ([2000.0, 2015.0], None),
        ([5_400_000.0, 5_400_050.0], None),  # metres to the north
        ([1e-9, 2e-9, 5e-9], None),
        ([0.0, 1.0], None),
        ([1.7e9, 1.8e9], None),
    ],
)
def test_numbers_that_answers_cannot_tell_apart_are_refused(tmp_path, values, step):
    """Trained on seconds since 1970 that differ by a minute, a run said R2 0.28 and `evaluate` -0.40: both truth and
    answers were rounded to 128 seconds, in two different orders."""
    items = tuple(Item(tmp_path / f"{n}.png", (value,), "train") for n, value in enumerate(values))
    findings = task_data("regress").obstacles(Dataset(tmp_path, "table", "regress", ("when",), items))
    assert [finding.kind for finding in findings] == (["coarse-target"] if step else [])
    if step:
        said = f"'when' has numbers of about {values[0]:g}, where 32-bit answers come in steps of 128"
        assert findings[0].title == said
        assert f"subtract {min(values):.0f} from all" in findings[0].advice


@pytest.mark.parametrize("values", [[0.5, 0.5000001], [52.5200066, 52.520007], [1.7e12 + 1, 1.7e12 + 90]])
def test_what_is_to_be_subtracted_is_enough(tmp_path, values):
    """Of numbers between 0 and 1 it was 0."""
    items = tuple(Item(tmp_path / f"{n}.png", (value,), "train") for n, value in enumerate(values))
    dataset = Dataset(tmp_path, "table", "regress", ("when",), items)
    (finding,) = task_data("regress").obstacles(dataset)
    less = float(finding.advice.split()[1])
    smaller = tuple(Item(item.path, (item.target[0] - less,), "train") for item in items)
    assert not task_data("regress").obstacles(dataset.replace(items=smaller))


@pytest.mark.parametrize("values", [[1e200, 2e200, 5e200], [1.7e308, -1.7e308, 1.7e308]])
def test_numbers_beyond_measure_are_left_to_the_sentence_of_the_training(tmp_path, values):
    """Their squares are no numbers: `check` and `train` ended in a traceback."""
    items = tuple(Item(tmp_path / f"{n}.png", (value,), "train") for n, value in enumerate(values))
    assert not task_data("regress").obstacles(Dataset(tmp_path, "table", "regress", ("when",), items))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e39, None])
def test_targets_that_are_not_numbers_are_refused(bad):
    with pytest.raises(VitrailError, match="missing, infinite"):
        regress("a").encode([(bad,)])


def test_fit_learns_mean_and_spread():
    task = regress("a", "b")
    task.fit([(1.0, 7.0), (3.0, 7.0), (5.0, 7.0)])
    assert task.mean.tolist() == [3.0, 7.0]
    assert task.std.tolist() == pytest.approx([np.sqrt(8 / 3), 1.0])


def test_a_number_that_never_changes_is_not_blown_up():
    task = regress("a")
    task.fit([(0.1,)] * 1000)
    assert (task.mean.tolist(), task.std.tolist()) == ([0.1], [1.0])


def test_nothing_to_fit():
    with pytest.raises(VitrailError, match="no training target"):
        regress("a").fit([])


def test_loss_by_hand():
    """Mean 10, spread 2: targets 12 and 8 are 1 and -1. Half of (0 - 1)^2 and of (1 + 1)^2, averaged."""
    task = regress("a")
    task.fit([(8.0,), (12.0,)])
    loss = task.loss(torch.tensor([[0.0], [1.0]]), torch.tensor([[12.0], [8.0]]))
    assert float(loss) == pytest.approx((0.5 + 2.0) / 2)


def test_without_fit_the_loss_is_that_of_the_lecture():
    """1/2 (y' - y)^2"""
    assert float(regress("a").loss(torch.tensor([[3.0]]), torch.tensor([[5.0]]))) == 2.0


def test_mixed_targets_are_weighted_means():
    """0.25 of 12 and 0.75 of 8 is 9, which is -1/2 in standard units."""
    task = regress("a")
    task.fit([(8.0,), (12.0,)])
    mix = Mix(torch.tensor([1, 1]), torch.tensor([0.25, 1.0]))
    loss = task.loss(torch.tensor([[0.0], [-1.0]]), torch.tensor([[12.0], [8.0]]), mix=mix)
    assert float(loss) == pytest.approx(0.5 * 0.25 / 2)


def test_there_is_nothing_to_smooth():
    task, (outputs, targets) = regress("a", "b", "c"), drawn(0)
    assert torch.equal(task.loss(outputs, targets, smoothing=0.3), task.loss(outputs, targets))


@pytest.mark.parametrize("seed", range(3))
def test_metrics_equal_scikit_learn(seed):
    predicted, true = drawn(seed)
    result = regress("a", "b", "c").evaluate(predicted, true, bootstrap=0)
    for metric, function in [
        ("MAE", sk.mean_absolute_error),
        ("RMSE", sk.root_mean_squared_error),
        ("R2", sk.r2_score),
    ]:
        each = function(true, predicted, multioutput="raw_values")
        assert [row[metric] for row in result["per_label"]] == pytest.approx(each.tolist())
        assert result["metrics"][metric] == pytest.approx(each.mean())
    error = (predicted - true).numpy()
    for k, row in enumerate(result["per_label"]):
        assert row["bias"] == pytest.approx(error[:, k].mean())
        assert list(row["residual_quantiles"]) == ["0", "0.05", "0.25", "0.5", "0.75", "0.95", "1"]
        expected = np.quantile(error[:, k], [float(q) for q in row["residual_quantiles"]])
        assert list(row["residual_quantiles"].values()) == pytest.approx(expected.tolist())


def test_quick_metrics_of_standardised_outputs_are_in_real_units():
    task = regress("a", "b", "c")
    predicted, true = drawn(1)
    task.fit(true.tolist())
    quick = task.quick_metrics((predicted - task.mean) / task.std, true)
    assert quick["MAE"] == pytest.approx(sk.mean_absolute_error(true, predicted))
    assert quick["R2"] == pytest.approx(sk.r2_score(true, predicted))


def test_intervals_equal_a_loop_with_scikit_learn():
    predicted, true = drawn(2, images=40)
    result = regress("a", "b", "c").evaluate(predicted, true, bootstrap=80, seed=9)
    samples = {"MAE": [], "RMSE": [], "R2": []}
    for rows in np.random.default_rng(9).integers(40, size=(80, 40)):
        p, t = predicted[rows], true[rows]
        samples["MAE"].append(sk.mean_absolute_error(t, p, multioutput="raw_values"))
        samples["RMSE"].append(sk.root_mean_squared_error(t, p, multioutput="raw_values"))
        samples["R2"].append(sk.r2_score(t, p, multioutput="raw_values"))
    for name, values in samples.items():
        values = np.array(values)  # (80, 3)
        assert result["intervals"][name] == pytest.approx(np.percentile(values.mean(1), [2.5, 97.5]).tolist()), name
        for k, row in enumerate(result["per_label"]):
            assert row["intervals"][name] == pytest.approx(np.percentile(values[:, k], [2.5, 97.5]).tolist()), name


@pytest.mark.parametrize("targets", [[[0.1]] * 7, [[5.0]]])
def test_r2_of_constant_targets_is_one_or_zero(targets):
    true = torch.tensor(targets, dtype=torch.float64)
    task = regress("a")
    assert task.evaluate(true, true, bootstrap=20)["metrics"]["R2"] == 1.0
    result = task.evaluate(true + 0.5, true, bootstrap=20)
    assert result["metrics"] == {"R2": 0.0, "MAE": pytest.approx(0.5), "RMSE": pytest.approx(0.5)}
    assert result["intervals"]["R2"] == [0.0, 0.0]


def test_resamples_of_one_value_do_not_spoil_the_interval():
    """One of three targets differs: resamples without it are constant, their R2 is 0 and not minus infinity."""
    true = torch.tensor([[0.2], [0.2], [0.9]], dtype=torch.float64)
    low, high = regress("a").evaluate(true + 0.01, true, bootstrap=500)["intervals"]["R2"]
    assert low == 0.0
    assert 0.99 < high < 1.0


def test_a_large_offset_does_not_cost_precision():
    predicted, true = drawn(4)
    task = regress("a", "b", "c")
    near, far = (task.evaluate(predicted + d, true + d, bootstrap=50) for d in (0.0, 1e6))
    assert far["metrics"]["R2"] == pytest.approx(near["metrics"]["R2"], rel=1e-6)
    assert far["intervals"]["R2"] == pytest.approx(near["intervals"]["R2"], rel=1e-6)


def test_all_correct_has_no_misses_to_show():
    true = drawn(5)[1]
    result = regress("a", "b", "c").evaluate(true, true, bootstrap=20)
    assert result["metrics"] == {"R2": 1.0, "MAE": 0.0, "RMSE": 0.0}
    assert result["worst"] == []


def test_the_worst_misses_do_not_depend_on_units():
    """Spread 1 and 1000: an error of 3 in the first is worse than one of 300 in the second."""
    true = torch.tensor([[0.0, 0.0], [2.0, 2000.0], [0.0, 0.0], [2.0, 2000.0]])
    predicted = true + torch.tensor([[0.0, 300.0], [-3.0, 0.0], [0.1, 0.0], [0.0, 0.0]])
    worst = regress("a", "b").evaluate(predicted, true, bootstrap=0)["worst"]
    assert [(miss["index"], miss["label"]) for miss in worst] == [(1, "a"), (0, "b"), (2, "a")]
    assert (worst[0]["true"], worst[0]["predicted"], worst[0]["error"]) == (2.0, -1.0, -3.0)
    assert (worst[0]["truth"], worst[0]["answer"]) == ("a 2", "a -1")


def test_points_pair_true_with_predicted():
    predicted, true = drawn(6, images=1200)
    points = regress("a", "b", "c").evaluate(predicted, true, bootstrap=0)["per_label"][1]["points"]
    assert len(points) == 1000
    pairs = set(zip(true[:, 1].tolist(), predicted[:, 1].tolist(), strict=True))
    assert set(map(tuple, points)) <= pairs


def test_answers_are_numbers_by_name():
    task = regress("age", "height")
    (answer,) = task.answer(torch.tensor([[31.5, 1.75]]))
    assert answer == {"values": {"age": 31.5, "height": 1.75}}
    assert task.row(answer) == {"age": 31.5, "height": 1.75}
