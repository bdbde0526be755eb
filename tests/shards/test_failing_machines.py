"""A machine where all fails is told from a shard that always fails."""

from __future__ import annotations

import pytest

from vitrail.shards.pools import failing_machines
from vitrail.shards.pools.failing_machines import FailingMachines
from vitrail.shards.pools.worker_pool import ShardFailure


def blamed(machines: FailingMachines, machine: str, *ready: str, starting: bool = False) -> bool:
    return machines.failed(machine, ShardFailure(3, "no space"), ready, starting).machine_to_blame


def test_one_on_which_shards_fail_in_a_row_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = FailingMachines()
    assert not blamed(machines, "bad", "bad", "good") and not machines.rests("bad")
    assert blamed(machines, "bad", "bad", "good")
    assert machines.rests("bad") and not machines.rests("good")
    machines.ended("bad")
    assert not machines.rests("bad") and not blamed(machines, "bad", "bad", "good")
    monkeypatch.setattr(failing_machines, "REST", 0.0)
    assert blamed(machines, "bad", "bad", "good") and not machines.rests("bad")


def test_where_all_fail_the_shards_are_to_blame() -> None:
    machines = FailingMachines()
    blames = [blamed(machines, machine, "one", "other") for machine in ("one", "other") * 3]
    assert blames == [False, False, True, False, False, False]


def test_a_machine_alone_does_not_rest_unless_others_come() -> None:
    machines = FailingMachines()
    assert not any(blamed(machines, "alone", "alone") for _ in range(5)) and not machines.rests("alone")
    assert not blamed(machines, "alone", "alone", starting=True) and machines.rests("alone")
