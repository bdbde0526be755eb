"""Which shard is next: what a machine is to blame for costs a shard none of its attempts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shards.stub_job import stub_manifest
from vitrail.shards.pools.worker_pool import ShardFailure, WorkerPool
from vitrail.shards.run_shard import DONE, ShardOutcome
from vitrail.shards.scheduling import ATTEMPTS, schedule
from vitrail.shards.shard_progress import ShardProgress


class FailingPool(WorkerPool):
    """Each shard fails so many times, then it is done."""

    size = 1

    def __init__(self, failures: int, machine_to_blame: bool) -> None:
        super().__init__()
        self._failures, self._blame = dict.fromkeys(range(4), failures), machine_to_blame

    def next(self) -> ShardOutcome | ShardFailure:
        number = self._waiting.popleft()
        self._failures[number] -= 1
        if self._failures[number] >= 0:
            return ShardFailure(number, "no space", self._blame)
        return ShardOutcome(number, DONE, 3)

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("failures", "machine_to_blame", "given_up"),
    [(ATTEMPTS - 1, False, 0), (ATTEMPTS, False, 4), (3 * ATTEMPTS, True, 0)],
)
def test_attempts_that_count(tmp_path: Path, failures: int, machine_to_blame: bool, given_up: int) -> None:
    shards = stub_manifest(tmp_path).shards
    progress = ShardProgress(len(shards), 12)
    assert len(schedule(FailingPool(failures, machine_to_blame), shards, progress)) == given_up
    assert progress.done == 4 - given_up
