"""Bootstrap intervals: equal to a slow loop, the same for the same seed, and as wide as they ought to be."""

import numpy as np
import pytest

from vitrail.tasks.shared.intervals import CELLS, bootstrap, draw, measure, plain, ratio, sums_by_group


def mean_of(values):
    return lambda weights: {"mean": values @ weights / weights.sum(0)}


def test_equal_to_a_loop_over_resamples():
    values = np.random.default_rng(1).normal(size=50)
    low, high = bootstrap(mean_of(values), images=50, resamples=300, seed=7)["mean"]
    drawn = np.random.default_rng(7).integers(50, size=(300, 50))
    means = [values[row].mean() for row in drawn]
    assert [low, high] == pytest.approx(np.percentile(means, [2.5, 97.5]).tolist(), abs=1e-12)


def test_work_in_parts_draws_as_many_resamples():
    images = CELLS // 2  # two resamples fit into a part, so five need three parts
    sizes = []

    def counting(weights):
        sizes.append(weights.shape)
        assert np.array_equal(weights.sum(0), np.full(weights.shape[1], images))
        return {"first": weights[0]}

    bootstrap(counting, images, resamples=5)
    assert sizes == [(images, 2), (images, 2), (images, 1)]


def test_draws_count_each_image_as_often_as_it_was_drawn():
    weights = draw(np.random.default_rng(3), images=40, resamples=6)
    drawn = np.random.default_rng(3).integers(40, size=(6, 40))
    for r in range(6):
        assert np.array_equal(weights[:, r], [(drawn[r] == i).sum() for i in range(40)])


def test_coverage_is_about_95_per_cent():
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(300):
        right = (rng.random(200) < 0.8).astype(float)
        low, high = bootstrap(mean_of(right), images=200, resamples=200, seed=trial)["mean"]
        covered += low <= 0.8 <= high
    assert 0.90 <= covered / 300 <= 0.985


def test_several_numbers_of_a_metric_get_an_interval_each():
    values = np.stack([np.zeros(30), np.arange(30.0)])
    intervals = bootstrap(mean_of(values), images=30, resamples=100)["mean"]
    assert intervals[0] == [0.0, 0.0]
    assert intervals[1][0] < 14.5 < intervals[1][1]


def test_one_image_has_no_width():
    assert bootstrap(mean_of(np.array([3.0])), images=1, resamples=10)["mean"] == [3.0, 3.0]


def test_plain_is_each_image_once():
    assert plain(mean_of(np.array([1.0, 2.0, 6.0])), images=3) == {"mean": 3.0}


def test_sums_by_group():
    weights = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    assert sums_by_group(weights, np.array([2, 0, 2]), 4).tolist() == [[2, 20], [0, 0], [4, 40], [0, 0]]


def test_a_ratio_to_nothing_is_zero():
    assert ratio(np.array([1.0, 3.0]), np.array([0.0, 2.0])).tolist() == [0.0, 1.5]


def test_groups_are_drawn_whole_as_counted_by_hand():
    """Two groups: the draws are AA, AB, BA and BB, with the means 0, 2/3, 2/3 and 1."""
    values, groups = np.array([0.0, 1.0, 1.0]), [4, 9, 9]
    measured = measure(mean_of(values), 3, resamples=4000, groups=groups)
    assert measured.values["mean"] == pytest.approx(2 / 3)  # the measure itself is that of the images
    assert measured.intervals["mean"] == [0.0, 1.0]
    seen = set()

    def collect(weights):
        seen.update(map(tuple, weights.T.tolist()))
        return {"mean": weights[0]}

    bootstrap(collect, 3, resamples=200, groups=groups)
    assert seen == {(2, 0, 0), (1, 1, 1), (0, 2, 2)}


def test_groups_of_one_image_each_are_no_groups():
    values = np.random.default_rng(1).normal(size=50)
    assert bootstrap(mean_of(values), 50, 100, groups=range(50)) == bootstrap(mean_of(values), 50, 100)


def test_one_single_group_tells_nothing_about_others():
    assert bootstrap(mean_of(np.arange(3.0)), 3, 100, groups=[0, 0, 0]) == {}


def test_coverage_holds_for_photos_of_the_same_objects():
    """30 objects, 20 photos of each that differ little: by photo, the interval of the mean is far too narrow."""
    covered = {"by photo": 0, "by object": 0}
    groups = np.repeat(np.arange(30), 20)
    for trial in range(200):
        rng = np.random.default_rng(trial)
        values = np.repeat(rng.normal(size=30), 20) + 0.3 * rng.normal(size=600)
        for name, some in (("by photo", None), ("by object", groups)):
            low, high = bootstrap(mean_of(values), 600, 300, seed=trial, groups=some)["mean"]
            covered[name] += low <= 0 <= high
    assert covered["by photo"] < 100  # of 200
    assert covered["by object"] > 175
