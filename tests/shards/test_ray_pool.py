"""Ray schedules shards: a local one of two workers, of which one is killed. Skipped where Ray is not installed."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.shards.stub_job import StubJob, stub_manifest
from vitrail.errors import VitrailError
from vitrail.shards import scheduling
from vitrail.shards.merge_shards import merge_shards
from vitrail.shards.pools import failing_machines, ray_pool
from vitrail.shards.pools.failing_machines import FailingMachines
from vitrail.shards.pools.ray_pool import Opened, RayPool, RayWorker, _Slot, import_ray, versions_here
from vitrail.shards.pools.worker_pool import ShardFailure
from vitrail.shards.run_job import run_job
from vitrail.shards.run_shard import ShardOutcome, ShardTask
from vitrail.shards.shard_options import ShardOptions


def test_without_ray_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(VitrailError, match=r"pip install 'vitrail\[ray\]'"):
        import_ray()


def test_a_worker_with_another_version_or_model_is_refused(tmp_path: Path) -> None:
    stub_manifest(tmp_path)
    task = ShardTask(StubJob(), str(tmp_path / "m"), str(tmp_path / "out"), StubJob().open().fingerprint)
    with pytest.raises(VitrailError, match=r"the worker on .* has torch .* \(here 1.0\): install the same"):
        RayWorker(task, versions_here() | {"torch": "1.0"}).open().check(task.fingerprint)
    answer = RayWorker(task, versions_here()).open()
    answer.check(task.fingerprint)
    with pytest.raises(VitrailError, match="another model"):
        answer.check("another")


@pytest.fixture
def local_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    if importlib.util.find_spec("ray") is None:  # it is not imported before the settings are made
        pytest.skip("Ray is not installed")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # beside other tests its workers would hardly run
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):  # what is set on the way is taken back
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd()), *sys.path]))  # the workers import the stub
    yield
    import_ray().shutdown()


class OnMachinesOfTheirOwn(RayWorker):
    """Each actor takes itself for another machine, and on the first of them the disk is full."""

    def __init__(self, task: ShardTask, versions: dict[str, str]) -> None:
        super().__init__(task, versions)
        name = f"node-{os.getpid()}"
        socket.gethostname = lambda: name
        try:
            (Path(task.out).parent / "full").rmdir()
            self._full = True
        except FileNotFoundError:
            self._full = False

    def run(self, number: int, gone: frozenset[str] = frozenset()) -> ShardOutcome | ShardFailure:
        return ShardFailure(number, "the disk is full") if self._full else super().run(number, gone)


def test_machines_of_which_one_is_killed_and_one_has_a_full_disk(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No claim is waited for, as Ray says who is gone; the full disk uses up no attempts."""
    monkeypatch.setattr(ray_pool, "RayWorker", OnMachinesOfTheirOwn)
    monkeypatch.setattr(scheduling, "POLL", -1.0)  # to wait for the claims of others would be an error
    monkeypatch.setattr(failing_machines, "REST", 0.5)
    manifest = stub_manifest(tmp_path)
    run_job(StubJob(), tmp_path / "m", tmp_path / "single", ShardOptions())
    (tmp_path / "trouble").mkdir()
    (tmp_path / "trouble" / "1.jpg").write_text("kill")
    (tmp_path / "trouble" / "7.jpg").write_text("no connection")
    (tmp_path / "full").mkdir()
    job = StubJob(seconds=0.3, trouble=str(tmp_path / "trouble"))
    result = run_job(job, tmp_path / "m", tmp_path / "out", ShardOptions(ray="local", processes=2))
    assert not (tmp_path / "full").exists() and "the disk is full; node-" in capsys.readouterr().err
    assert result.images == manifest.images and not list((tmp_path / "trouble").iterdir())
    for name in ("single", "out"):
        merge_shards(tmp_path / name, tmp_path / f"{name}.jsonl")
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "single.jsonl").read_bytes()

    from ray._common.usage import usage_lib

    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0" and not usage_lib.usage_stats_enabled()
    assert not (tmp_path / "home" / ".ray").exists()  # no token of Ray's in the home folder


def test_a_shard_that_waits_is_given_to_one_worker_after_another() -> None:
    """On the machine of a claim it is seen at once that its owner is gone; a claim must not be shown to others only."""
    asked = set()
    for _ in range(60):
        pool = RayPool.__new__(RayPool)
        pool._waiting, pool._gone, pool._machines = deque([0]), set(), FailingMachines()
        pool._slots = [_Slot(Mock(), None, Opened(name, 1)) for name in ("one", "other")]
        pool._hand_out()
        asked |= {slot.opened.node for slot in pool._slots if slot.opened and slot.number == 0}
    assert asked == {"one", "other"}


def test_an_address_where_nobody_is(local_ray: None, tmp_path: Path) -> None:
    stub_manifest(tmp_path)
    with pytest.raises(VitrailError, match="cannot reach Ray at 127.0.0.1:9"):
        run_job(StubJob(), tmp_path / "m", tmp_path / "out", ShardOptions(ray="127.0.0.1:9"))
