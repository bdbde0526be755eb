"""Which images a step sees, and that it depends on nothing but seed and step."""

import numpy as np

from vitrail.data.loading.sampler import Sampler


def test_an_epoch_visits_every_image_once_in_an_order_of_its_own():
    sampler = Sampler(12, 4, seed=3)
    assert sampler.steps_per_epoch == 3
    epochs = [np.concatenate([sampler.of_step(3 * epoch + k).indices for k in range(3)]) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert [sampler.of_step(step).epoch for step in range(7)] == [0, 0, 0, 1, 1, 1, 2]


def test_a_rest_smaller_than_a_batch_is_left_to_another_epoch():
    sampler = Sampler(10, 4, seed=0)
    assert sampler.steps_per_epoch == 2
    seen = {place for step in range(40) for place in sampler.of_step(step).indices}
    assert seen == set(range(10))


def test_a_step_is_the_same_whatever_was_asked_before():
    forwards, backwards = Sampler(20, 5, seed=1), Sampler(20, 5, seed=1)
    ahead = [forwards.of_step(step).indices for step in range(12)]
    back = [backwards.of_step(step).indices for step in reversed(range(12))][::-1]
    np.testing.assert_array_equal(ahead, back)
    assert not np.array_equal(ahead[0], Sampler(20, 5, seed=2).of_step(0).indices)


def test_balanced_draws_classes_equally_and_gives_a_repeated_image_a_key_of_its_own():
    classes = [0] * 90 + [1] * 10
    sampler = Sampler(100, 20, seed=0, classes=classes)
    drawn = [sampler.of_step(step) for step in range(100)]
    places = np.concatenate([one.indices for one in drawn])
    rare = np.mean(places >= 90)
    assert 0.45 < rare < 0.55
    epoch = drawn[:5]
    keys = np.concatenate([one.keys for one in epoch])
    assert len(set(keys)) == len(keys) == 100
    assert all(key % 100 == place for key, place in zip(keys, np.concatenate([e.indices for e in epoch]), strict=True))
    assert set(places) == set(range(100))
