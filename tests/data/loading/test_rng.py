"""Randomness depends on the seed, the epoch and the image, and on nothing else."""

import numpy as np

from vitrail.data.loading.rng import image_keys, permutation, step_seed, uniform


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


def test_every_step_has_its_own_seed():
    seeds = {step_seed(0, step) for step in range(1000)}
    assert len(seeds) == 1000 and max(seeds) < 2**63


def test_every_place_of_every_step_has_its_own_key_whatever_is_asked_with_it():
    keys = np.concatenate([image_keys(seed, step, np.arange(32)) for seed in (0, 1) for step in range(100)])
    assert keys.dtype == np.int32 and len(np.unique(keys)) > 6395  # of 6400: two of 32 bits may be equal
    assert np.array_equal(image_keys(1, 99, np.arange(8, 16)), keys[-32:][8:16])
