"""Shards on a Ray cluster: an actor a worker, with a model of its own. Ray schedules; what is done, the files say.

Paths go to the actors and counts come back. Pixels are decoded in the actor and never enter Ray's object store.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
import sys
import time
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from vitrail.errors import VitrailError
from vitrail.shards.claims import in_words
from vitrail.shards.pools.failing_machines import FailingMachines
from vitrail.shards.pools.process_pool import check_fingerprint
from vitrail.shards.pools.worker_pool import ShardFailure, WorkerPool, failure
from vitrail.shards.run_shard import ShardOutcome, ShardTask
from vitrail.text import listing

LOCAL = "local"  # the address that starts a Ray of our own
MOST_LOST = 20  # actors in a row that are gone before they are ready


def import_ray(address: str = LOCAL) -> Any:
    """Ray, told before it is imported that it sends no usage reports. One of our own has a token that is forgotten with
    it: nobody else on this machine can use it, and Ray writes none into the home folder."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if address == LOCAL and "ray" not in sys.modules and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError:
        raise VitrailError("--ray needs one more package: pip install 'vitrail[ray]'") from None
    return ray


@dataclass
class _Slot:
    """One worker: its actor, and what was asked of it last."""

    actor: Any
    asked: Any  # Ray's reference to the answer
    opened: Opened | None = None  # once it is ready
    number: int | None = None


class RayPool(WorkerPool):
    """Actors of a cluster, or of a Ray that is started here and ended with it.

    workers: None is one a GPU where the cluster has some, else one a CPU.
    """

    def __init__(self, task: ShardTask, address: str = LOCAL, workers: int | None = None) -> None:
        super().__init__()
        self._ray, self._task = import_ray(address), task
        self._begun = connect(self._ray, address, workers)
        resources = self._ray.cluster_resources()
        gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 1))
        count = workers or gpus or max(1, cpus)
        needs = {"num_gpus": 1, "num_cpus": 1} if gpus >= count else {"num_cpus": 1}
        self._actor = self._ray.remote(max_restarts=0, max_task_retries=0, **needs)(RayWorker)
        self._lost = 0
        self._gone: set[str] = set()  # processes whose claims need not be waited for
        self._machines = FailingMachines()
        self._slots = [self._new() for _ in range(count)]

    @property
    def size(self) -> int:
        return len(self._slots)

    def next(self) -> ShardOutcome | ShardFailure:
        while True:
            self._hand_out()
            asked = [slot.asked for slot in self._slots if slot.asked is not None]
            if not asked:  # what there is rests
                time.sleep(1.0)
                continue
            answered, _ = self._ray.wait(asked, num_returns=1, timeout=1.0 if self._waiting else None)
            if not answered:
                continue
            place = next(place for place, slot in enumerate(self._slots) if slot.asked == answered[0])
            if (outcome := self._hear(place)) is not None:
                return outcome

    def close(self) -> None:
        for slot in self._slots:
            self._ray.kill(slot.actor)
        if self._begun:
            self._ray.shutdown()

    def _new(self) -> _Slot:
        actor = self._actor.remote(self._task, versions_here())
        return _Slot(actor, actor.open.remote())

    def _hand_out(self) -> None:
        # In any order: whether the owner of a claim is gone is best seen on its own machine, so each try is another's.
        for slot in random.sample(self._slots, len(self._slots)):
            if slot.opened is None or slot.number is not None:
                continue
            if self._waiting and not self._machines.rests(slot.opened.node):
                slot.number = self._waiting.popleft()
                slot.asked = slot.actor.run.remote(slot.number, frozenset(self._gone))

    def _hear(self, place: int) -> ShardOutcome | ShardFailure | None:
        """What an actor answers; None where that ends no shard. In the place of one that is gone comes another, which
        Ray starts where there is room."""
        slot = self._slots[place]
        try:
            answer = self._ray.get(slot.asked)
        except self._ray.exceptions.RayError as error:
            self._lost += 1
            if self._lost > MOST_LOST:
                raise VitrailError(f"no worker of the Ray cluster gets ready: {_first_line(error)}") from None
            return self._replace(place, f"its worker is gone ({type(error).__name__})")
        self._lost, slot.asked = 0, None
        if slot.opened is None:
            answer.check(self._task.fingerprint)
            slot.opened = answer
            return None
        slot.number = None
        if isinstance(answer, ShardFailure):
            return self._failed(slot.opened, answer)
        self._machines.ended(slot.opened.node)
        outcome: ShardOutcome = answer
        return outcome

    def _replace(self, place: int, why: str) -> ShardFailure | None:
        """Another actor in the place of one that is gone, and the failure of what it was at."""
        slot, self._slots[place] = self._slots[place], self._new()
        if slot.opened is None or slot.number is None:
            return None
        self._gone.add(in_words(slot.opened.node, slot.opened.pid))
        return self._failed(slot.opened, ShardFailure(slot.number, why))

    def _failed(self, where: Opened, failure: ShardFailure) -> ShardFailure:
        ready = {slot.opened.node for slot in self._slots if slot.opened is not None}
        starting = any(slot.opened is None for slot in self._slots)
        return self._machines.failed(where.node, failure, ready, starting)


@dataclass(frozen=True)
class Opened:
    """What an actor has loaded, and where it is."""

    node: str
    pid: int
    fingerprint: str = ""
    problem: str = ""

    def check(self, expected: str) -> None:
        """Refuse what would make other outputs."""
        if self.problem:
            raise VitrailError(self.problem)
        check_fingerprint(expected, self.fingerprint, f"the worker on {self.node}")


class RayWorker:
    """What an actor is. Its errors come back as values: Ray would wrap them in pages of text."""

    def __init__(self, task: ShardTask, versions: dict[str, str]) -> None:
        self._task, self._versions = task, versions

    def open(self) -> Opened:
        """Load the model, or say what is wrong."""
        answer, here = Opened(socket.gethostname(), os.getpid()), versions_here()
        different = [
            f"{name} {here[name]} (here {other})" for name, other in self._versions.items() if here[name] != other
        ]
        if different:
            problem = f"the worker on {answer.node} has {listing(different)}: install the same versions on all machines"
            return replace(answer, problem=problem)
        try:
            self._opened = self._task.open()
        except VitrailError as error:
            return replace(answer, problem=f"on {answer.node}: {error}")
        return replace(answer, fingerprint=self._opened.worker.fingerprint)

    def run(self, number: int, gone: frozenset[str] = frozenset()) -> ShardOutcome | ShardFailure:
        """Work on a shard. gone: processes that have ended."""
        try:
            return self._opened.run(number, gone)
        except Exception as error:
            return failure(number, error)


def connect(ray: Any, address: str, workers: int | None) -> bool:
    """Join a cluster, or start one of our own here. Whether this process was not connected before."""
    if ray.is_initialized():
        return False
    own = {"num_cpus": workers, "include_dashboard": False} if address == LOCAL else {}
    _knock(address)
    try:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False, **own)
    except Exception as error:  # ConnectionError, RuntimeError, ValueError: Ray has no one kind
        hint = "a cluster with a token needs RAY_AUTH_MODE=token here"
        raise VitrailError(f"cannot reach Ray at {address}: {_first_line(error)}; {hint}") from None
    return True


def _knock(address: str) -> None:
    """Look whether somebody listens at HOST:PORT: Ray itself tries for minutes."""
    place = urlsplit(address if "://" in address else f"ray://{address}")
    try:
        if place.port is not None:
            socket.create_connection((place.hostname or "", place.port), timeout=10).close()
    except (OSError, ValueError) as error:
        raise VitrailError(
            f"cannot reach Ray at {address}: {getattr(error, 'strerror', None) or error}; is it the address that "
            "'ray start --head' printed?"
        ) from None


def versions_here() -> dict[str, str]:
    """What driver and workers must have alike."""
    import platform
    from importlib.metadata import version

    from vitrail import __version__

    python = ".".join(platform.python_version_tuple()[:2])
    return {"Vitrail": __version__, "Python": python, "torch": version("torch")}


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
