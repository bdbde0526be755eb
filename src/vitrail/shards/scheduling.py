"""Which shard is worked on next: those that are not done, the failed ones again, those of others when they are left."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence

from vitrail.data.manifest.manifest_file import Shard
from vitrail.shards.pools.worker_pool import ShardFailure, WorkerPool
from vitrail.shards.run_shard import CLAIMED, DONE, ShardOutcome
from vitrail.shards.shard_progress import ShardProgress

ATTEMPTS = 5  # of one shard: workers and machines go, and so do connections
POLL = 2.0  # seconds between two looks at shards that another process works on


def schedule(pool: WorkerPool, shards: Sequence[Shard], progress: ShardProgress) -> list[ShardFailure]:
    """Until each of the shards is done, or failed too often; those are the result."""
    return _Schedule(pool, shards, progress).run()


class _Schedule:
    def __init__(self, pool: WorkerPool, shards: Sequence[Shard], progress: ShardProgress) -> None:
        self.pool, self.progress = pool, progress
        self.waiting = deque(shard.number for shard in shards)
        self.others: deque[int] = deque()  # shards that another process works on
        self.attempts: Counter[int] = Counter()
        self.failures: list[ShardFailure] = []
        self.under_way = 0
        self.said_waiting = False

    def run(self) -> list[ShardFailure]:
        while self.waiting or self.under_way or self.others:
            if not self.waiting and not self.under_way:
                time.sleep(POLL)
                self.waiting, self.others = self.others, deque()
            while self.waiting and self.under_way < self.pool.size:
                self.pool.submit(self.waiting.popleft())
                self.under_way += 1
            outcome = self.pool.next()
            self.under_way -= 1
            if isinstance(outcome, ShardFailure):
                self.failed(outcome)
            else:
                self.ended(outcome)
        return self.failures

    def ended(self, outcome: ShardOutcome) -> None:
        if outcome.state == CLAIMED:
            self.others.append(outcome.number)
            if not self.waiting and not self.said_waiting:
                self.said_waiting = True
                self.progress.line(f"waiting for what others work on: shard {outcome.number}, {outcome.owner}")
        elif outcome.state == DONE:
            self.progress.ended(outcome.images, outcome.errors)
        else:
            self.progress.skipped(outcome.images, outcome.errors)

    def failed(self, failure: ShardFailure) -> None:
        if failure.machine_to_blame:
            self.waiting.append(failure.number)
            self.progress.tried_again()
            self.progress.line(f"shard {failure.number}: {failure.why}")
            return
        self.attempts[failure.number] += 1
        if self.attempts[failure.number] < ATTEMPTS:
            self.waiting.append(failure.number)  # after the others: what ails it may have passed by then
            self.progress.tried_again()
        else:
            self.failures.append(failure)
            self.progress.gave_up()
        self.progress.line(f"shard {failure.number}, attempt {self.attempts[failure.number]}: {failure.why}")
