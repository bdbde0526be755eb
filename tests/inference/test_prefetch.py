"""Order is kept, little is in hand, and a pause lets out what is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from vitrail.inference.prefetch import PAUSE, batched, prefetch


def test_results_come_in_the_order_of_the_things_whoever_is_done_first() -> None:
    def work(number: int) -> int:
        time.sleep(0.02 if number % 3 == 0 else 0)
        return number * number

    assert list(prefetch(work, range(20), workers=4, limit=6)) == [(n, n * n) for n in range(20)]


def test_no_more_than_asked_is_in_hand() -> None:
    pulled = 0

    def numbers() -> Iterator[int]:
        nonlocal pulled
        for number in range(100):
            pulled += 1
            yield number

    for done, _ in enumerate(prefetch(lambda n: n, numbers(), workers=2, limit=7)):
        assert pulled - done <= 7
    assert pulled == 100


def test_a_pause_lets_out_everything_before_it() -> None:
    assert list(prefetch(lambda n: -n, [1, 2, PAUSE, 3], workers=2, limit=50)) == [(1, -1), (2, -2), PAUSE, (3, -3)]
    assert list(batched([1, 2, 3, PAUSE, PAUSE, 4, 5], 2)) == [[1, 2], [3], [4, 5]]
    assert list(batched([], 2)) == []


def test_whoever_stops_early_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    running = prefetch(lambda n: n, iter(range(10**9)), workers=3, limit=5)
    assert next(running) == (0, 0)
    running.close()
    assert threading.active_count() == before


def test_an_error_comes_where_its_thing_was() -> None:
    running = prefetch(lambda n: 1 // n, [1, 0, 1], workers=2, limit=2)
    assert next(running) == (1, 1)
    with pytest.raises(ZeroDivisionError):
        next(running)
