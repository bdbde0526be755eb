"""Which images a step sees of a large manifest: each once an epoch, by windows of shards, whatever was asked before."""

import numpy as np
import pytest

from vitrail.data.loading import window_sampler
from vitrail.data.loading.window_sampler import WindowSampler

BOUNDS = np.array([0, 10, 10, 17, 30, 40])  # of five shards, one of them without an image


def sampler(batch: int = 8, seed: int = 0, together: np.ndarray | None = None) -> WindowSampler:
    return WindowSampler(BOUNDS, np.zeros(40, np.bool_) if together is None else together, batch, seed)


def epoch_of(one: WindowSampler, epoch: int) -> np.ndarray:
    steps = range(epoch * one.steps_per_epoch, (epoch + 1) * one.steps_per_epoch)
    return np.concatenate([one.of_step(step).indices for step in steps])


@pytest.mark.parametrize("window", [1, 12, 25, 500_000])
def test_an_epoch_visits_every_image_once_in_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(window_sampler, "WINDOW", window)
    one = sampler()
    assert (one.count, one.steps_per_epoch) == (40, 5)
    epochs = [epoch_of(one, epoch) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(40)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert [one.of_step(step).epoch for step in (0, 4, 5, 14)] == [0, 0, 1, 2]


@pytest.mark.parametrize("window", [12, 500_000])
def test_a_step_is_the_same_whatever_was_asked_before(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(window_sampler, "WINDOW", window)
    forwards, backwards = sampler(batch=7), sampler(batch=7)
    ahead = [forwards.of_step(step).indices for step in range(12)]
    back = [backwards.of_step(step).indices for step in reversed(range(12))][::-1]
    np.testing.assert_array_equal(ahead, back)
    np.testing.assert_array_equal(ahead[9], sampler(batch=7).of_step(9).indices)
    assert not np.array_equal(ahead[0], sampler(batch=7, seed=1).of_step(0).indices)


def test_shards_are_shuffled_and_a_window_is_finished_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_sampler, "WINDOW", 1)  # a shard each
    one = sampler(batch=1)
    orders = set()
    for epoch in range(6):
        shards = np.searchsorted(BOUNDS, epoch_of(one, epoch), side="right") - 1
        changes = np.flatnonzero(np.diff(shards)) + 1
        assert len(changes) == 3  # four shards with images, each of them once
        orders.add(tuple(shards[[0, *changes]].tolist()))
    assert len(orders) > 1


def test_one_window_is_shuffled_as_a_whole() -> None:
    """Each shard's images come all through the epoch, as a class that lies in one shard alone must."""
    shards = np.searchsorted(BOUNDS, epoch_of(sampler(), 0), side="right") - 1
    assert all((shards[:20] == shard).any() and (shards[20:] == shard).any() for shard in (0, 2, 3, 4))


def test_row_groups_are_read_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of 100 rows, pools of 200 images: no image comes while those of other groups than two or three come."""
    monkeypatch.setattr(window_sampler, "POOL", 200)
    together = np.ones(2000, np.bool_)
    together[::100] = False
    one = WindowSampler(np.array([0, 1000, 2000]), together, 50, 0)
    order = epoch_of(one, 0)
    assert sorted(order) == list(range(2000))
    groups = order // 100
    assert all(len(set(groups[start : start + 200])) == 2 for start in range(0, 2000, 200))
    assert (np.diff(groups[:200]) != 0).sum() > 50  # mixed within the pool
    assert not np.array_equal(np.unique(groups[:200]), [0, 1])  # in an order of their own
