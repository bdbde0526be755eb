"""Shards in several processes of this machine, each with a model of its own. One that is killed is started again."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
from multiprocessing.connection import Connection, wait
from typing import Any

from vitrail.errors import VitrailError
from vitrail.shards.pools.worker_pool import ShardFailure, WorkerPool, failure
from vitrail.shards.run_shard import ShardOutcome, ShardTask

MOST_DEATHS = 3  # in a row, of processes that did not come as far as their first shard


class _Process:
    """One worker process, seen from here."""

    def __init__(self, payload: bytes) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share torch's threads, which it does not survive
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, payload), daemon=True)
        self.process.start()
        theirs.close()
        self.ready = False
        self.number: int | None = None  # of the shard that it works on

    def how_it_ended(self) -> str:
        self.process.join(5)
        code = self.process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            return f"its process was ended by {name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")
        return f"its process ended with code {code}"

    def close(self) -> None:
        self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()


class ProcessPool(WorkerPool):
    """So many processes."""

    def __init__(self, task: ShardTask, processes: int) -> None:
        super().__init__()
        self._payload, self._task = pickle.dumps(task), task
        self._deaths = 0
        self._processes = [self._start() for _ in range(processes)]

    @property
    def size(self) -> int:
        return len(self._processes)

    def next(self) -> ShardOutcome | ShardFailure:
        while True:
            self._hand_out()
            ready: Any = wait([one.connection for one in self._processes])
            for place, one in enumerate(self._processes):
                if one.connection in ready and (outcome := self._hear(place)) is not None:
                    return outcome

    def close(self) -> None:
        for one in self._processes:
            one.close()

    def _start(self) -> _Process:
        return _Process(self._payload)

    def _hand_out(self) -> None:
        for one in self._processes:
            if self._waiting and one.ready and one.number is None:
                with contextlib.suppress(OSError):  # it has ended: `next` will notice
                    one.connection.send(self._waiting[0])
                    one.number = self._waiting.popleft()

    def _hear(self, place: int) -> ShardOutcome | ShardFailure | None:
        """What a process says; None where that ends no shard."""
        one = self._processes[place]
        try:
            kind, content = one.connection.recv()
        except (EOFError, OSError):
            return self._replace(place)
        if kind == "refused":
            raise VitrailError(content)
        if kind == "ready":
            check_fingerprint(self._task.fingerprint, content, "a process of this machine")
            one.ready, self._deaths = True, 0
            return None
        one.number = None
        outcome: ShardOutcome | ShardFailure = content
        return outcome

    def _replace(self, place: int) -> ShardFailure | None:
        """Another process in the place of one that ended, and the failure of what it was at."""
        one = self._processes[place]
        why, number = one.how_it_ended(), one.number
        one.close()
        if not one.ready:
            self._deaths += 1
            if self._deaths >= MOST_DEATHS:
                raise VitrailError(f"no worker process gets ready: {why}; try fewer with --processes")
        self._processes[place] = self._start()
        return None if number is None else ShardFailure(number, why)


def check_fingerprint(expected: str, given: str, whose: str) -> None:
    """Refuse a worker with another model, other settings or other versions: its outputs would not be this job's."""
    if expected != given:
        raise VitrailError(
            f"{whose} has another model, or another version of Vitrail, torch or its engine, than this one: install "
            "the same on all, and give a model file that all of them see"
        )


def _work(connection: Connection, payload: bytes) -> None:
    """A worker process: load the model, then a shard at a time until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the process that schedules, which ends this one
    try:
        task: ShardTask = pickle.loads(payload)
        opened = task.open()
    except VitrailError as error:
        connection.send(("refused", str(error)))
        return
    connection.send(("ready", opened.worker.fingerprint))
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            number = connection.recv()
            outcome: ShardOutcome | ShardFailure
            try:
                outcome = opened.run(number)
            except Exception as error:
                outcome = failure(number, error)
            connection.send(("ended", outcome))
