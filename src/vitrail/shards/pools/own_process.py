"""Shards one after another in this process."""

from __future__ import annotations

from vitrail.shards.pools.worker_pool import ShardFailure, WorkerPool, failure
from vitrail.shards.run_shard import OpenTask, ShardOutcome


class OwnProcess(WorkerPool):
    """The worker is here already, as it had to be opened to know its fingerprint."""

    size = 1

    def __init__(self, task: OpenTask) -> None:
        super().__init__()
        self._task = task

    def next(self) -> ShardOutcome | ShardFailure:
        number = self._waiting.popleft()
        try:
            return self._task.run(number)
        except Exception as error:
            return failure(number, error)

    def close(self) -> None:
        self._waiting.clear()
