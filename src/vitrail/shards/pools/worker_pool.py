"""The contract of those who carry out shards: give it one whenever a worker is free, and ask what came of any."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass

from vitrail.shards.run_shard import ShardOutcome


@dataclass(frozen=True)
class ShardFailure:
    """A shard that did not come to its end: an error, or its process or machine is gone."""

    number: int
    why: str
    machine_to_blame: bool = False  # all fails there, and not elsewhere: it says nothing about the shard


class WorkerPool(ABC):
    """A shard a worker at a time: whoever is faster does more of them."""

    def __init__(self) -> None:
        self._waiting: deque[int] = deque()

    @property
    @abstractmethod
    def size(self) -> int:
        """How many shards it takes at a time."""

    def submit(self, number: int) -> None:
        """Begin with a shard. Only where fewer than `size` are under way."""
        self._waiting.append(number)
        self._hand_out()

    def _hand_out(self) -> None:  # noqa: B027  a pool without workers of its own has nobody to give it to
        """Give what waits to workers that are ready and free."""

    @abstractmethod
    def next(self) -> ShardOutcome | ShardFailure:
        """Wait until one of those under way has ended. VitrailError where no worker can do any: the model cannot be
        loaded, or differs from that of this process."""

    @abstractmethod
    def close(self) -> None:
        """End the workers, whatever they do."""


def failure(number: int, error: BaseException) -> ShardFailure:
    """An exception in a worker, in one line."""
    from vitrail.errors import VitrailError

    text = " ".join(str(error).split())
    return ShardFailure(number, text if isinstance(error, VitrailError) else f"{type(error).__name__}: {text}")
