"""Randomness depends on the seed, the epoch and the image, and on nothing else."""

import numpy as np

from vitrail.data.loading.rng import permutation, step_seed, uniform


def test_an_image_has_its_numbers_whatever_batch_it_comes_in():
    together = uniform(7, 3, np.arange(100), 5, "crop")
    assert np.array_equal(uniform(7, 3, np.array([42, 3]), 5, "crop"), together[[42, 3]])


def test_seed_epoch_index_and_stream_each_change_them():
    base = uniform(7, 3, np.arange(1000), 4, "crop")
    for other in (uniform(8, 3, np.arange(1000), 4, "crop"), uniform(7, 4, np.arange(1000), 4, "crop")):
        assert abs(np.corrcoef(base.ravel(), other.ravel())[0, 1]) < 0.06
    assert abs(np.corrcoef(base.ravel(), uniform(7, 3, np.arange(1000), 4, "flip").ravel())[0, 1]) < 0.06
    assert not np.array_equal(base[:-1], base[1:])


def test_the_numbers_are_uniform_and_independent():
    numbers = uniform(0, 0, np.arange(20000), 3, "x")
    assert numbers.min() >= 0 and numbers.max() < 1
    for column in numbers.T:
        counts = np.histogram(column, bins=20, range=(0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 50  # chi-squared with 19 degrees: 50 is beyond 1 in 5,000
    assert abs(np.corrcoef(numbers.T) - np.eye(3)).max() < 0.03


def test_an_epoch_visits_every_image_once_in_an_order_of_its_own():
    first, second = permutation(1, 0, 500), permutation(1, 1, 500)
    assert sorted(first) == list(range(500)) and not np.array_equal(first, second)
    assert np.array_equal(first, permutation(1, 0, 500))


def test_every_step_and_rank_has_its_own_seed():
    seeds = {step_seed(0, step, rank) for step in range(1000) for rank in range(4)}
    assert len(seeds) == 4000 and max(seeds) < 2**63
