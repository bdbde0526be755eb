"""The model's thread, with work that the test can hold up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest

from tests.serving.server import async_test
from vitrail.serving.batching import ModelThread


class Held:
    """A model that waits for `go`, and remembers its batches."""

    def __init__(self, batch_size: int = 3) -> None:
        self.batches: list[list[int]] = []
        self.go, self.begun = threading.Event(), threading.Event()
        self.thread: ModelThread[int] = ModelThread(self.run, batch_size)

    def run(self, parts: Sequence[int]) -> list[int]:
        self.batches.append(list(parts))
        self.begun.set()
        assert self.go.wait(60)
        if -1 in parts:
            raise ValueError("broken")
        return [part * 10 for part in parts]


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.go.set()  # a test that failed may have left it waiting
    held.thread.stop()


async def begun(held: Held, part: int) -> asyncio.Task:
    """One that is in the model, so that all that follow have to wait."""
    task = asyncio.create_task(held.thread.submit(part))
    await asyncio.to_thread(held.begun.wait, 60)
    return task


async def waiting(held: Held, number: int) -> None:
    await asyncio.sleep(0)  # a turn for the tasks: each puts its part into the queue before it waits
    assert held.thread.queue_length == number


@async_test
async def test_what_waits_goes_together_and_comes_back_apart(held: Held) -> None:
    first = await begun(held, 0)
    others = [asyncio.create_task(held.thread.submit(part)) for part in range(1, 6)]
    await waiting(held, 5)
    held.go.set()
    assert await asyncio.gather(first, *others) == [0, 10, 20, 30, 40, 50]
    assert held.batches == [[0], [1, 2, 3], [4, 5]]


@async_test
async def test_what_is_cancelled_while_it_waits_is_never_run(held: Held) -> None:
    first = await begun(held, 0)
    gone, stays = (asyncio.create_task(held.thread.submit(part)) for part in (1, 2))
    await waiting(held, 2)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert held.thread.queue_length == 1
    first.cancel()  # in the model already: it is run to its end, and nobody hears of it
    held.go.set()
    assert await stays == 20
    assert held.batches == [[0], [2]]


@async_test
async def test_an_error_is_that_of_its_batch_and_the_thread_goes_on(held: Held) -> None:
    held.go.set()
    with pytest.raises(ValueError, match="broken"):
        await held.thread.submit(-1)
    assert await held.thread.submit(4) == 40


@async_test
async def test_work_of_another_kind_has_its_turn(held: Held) -> None:
    first = await begun(held, 0)
    before = asyncio.create_task(held.thread.submit(1))
    await waiting(held, 1)
    alone = asyncio.create_task(held.thread.call(lambda: list(held.batches)))
    await waiting(held, 2)
    after = asyncio.create_task(held.thread.submit(2))
    await waiting(held, 3)
    held.go.set()
    assert await asyncio.gather(first, before, after) == [0, 10, 20]
    assert await alone == [[0], [1, 2]]  # the second batch was gathered around it; then it was its turn
