"""Machines on which one shard after another fails, as where the disk is full: they rest, and say nothing about a shard.

Such a machine is free again at once. It would soon use up the attempts of all shards, while the others work.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from vitrail.shards.pools.worker_pool import ShardFailure

MOST_FAILED = 1  # shards in a row, before it is the machine that is to blame
REST = 30.0  # seconds that it is given nothing


class FailingMachines:
    """What failed in a row, by machine."""

    def __init__(self) -> None:
        self._failed: Counter[str] = Counter()
        self._rests_until: dict[str, float] = {}

    def rests(self, machine: str) -> bool:
        """Whether it is given nothing now."""
        return time.monotonic() < self._rests_until.get(machine, 0.0)

    def ended(self, machine: str) -> None:
        """A shard went well there."""
        self._failed[machine] = 0
        self._rests_until.pop(machine, None)

    def failed(self, machine: str, failure: ShardFailure, others: Collection[str], starting: bool) -> ShardFailure:
        """The failure, and whose it is. others: machines that are ready. starting: some are not yet."""
        self._failed[machine] += 1
        if self._failed[machine] <= MOST_FAILED:
            return failure
        better = any(self._failed[other] <= MOST_FAILED for other in others if other != machine)
        if better or starting:
            self._rests_until[machine] = time.monotonic() + REST
        if not better:  # all fail: so it is the shards after all
            return failure
        return replace(failure, why=f"{failure.why}; {machine} rests for {REST:.0f} s", machine_to_blame=True)
