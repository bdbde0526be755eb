"""Ray schedules shards: a local one of two workers, of which one is killed. Skipped where Ray is not installed."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shards.stub_job import StubJob, stub_manifest
from vitrail.errors import VitrailError
from vitrail.shards.merge_shards import merge_shards
from vitrail.shards.pools import ray_pool
from vitrail.shards.pools.ray_pool import RayWorker, import_ray, versions_here
from vitrail.shards.run_job import run_job
from vitrail.shards.run_shard import ShardTask
from vitrail.shards.shard_options import ShardOptions


def test_without_ray_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(VitrailError, match=r"pip install 'vitrail\[ray\]'"):
        import_ray()


def test_a_worker_with_another_version_or_model_is_refused(tmp_path: Path) -> None:
    stub_manifest(tmp_path)
    task = ShardTask(StubJob(), str(tmp_path / "m"), str(tmp_path / "out"), StubJob().open().fingerprint)
    node, _, problem = RayWorker(task, versions_here() | {"torch": "1.0"}).open()
    with pytest.raises(VitrailError, match=r"the worker on .* has torch .* \(here 1.0\): install the same"):
        ray_pool._check_answer(task.fingerprint, node, "", problem)
    answer = RayWorker(task, versions_here()).open()
    ray_pool._check_answer(task.fingerprint, *answer)
    with pytest.raises(VitrailError, match="another model"):
        ray_pool._check_answer("another", *answer)


@pytest.fixture
def local_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    if importlib.util.find_spec("ray") is None:  # it is not imported before the settings are made
        pytest.skip("Ray is not installed")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):  # what is set on the way is taken back
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd()), *sys.path]))  # the workers import the stub
    yield
    import_ray().shutdown()


def test_a_local_ray_with_a_worker_that_is_killed(local_ray: None, tmp_path: Path) -> None:
    manifest = stub_manifest(tmp_path)
    run_job(StubJob(), tmp_path / "m", tmp_path / "single", ShardOptions())
    (tmp_path / "trouble").mkdir()
    (tmp_path / "trouble" / "1.jpg").write_text("kill")
    (tmp_path / "trouble" / "7.jpg").write_text("no connection")
    job = StubJob(trouble=str(tmp_path / "trouble"))
    result = run_job(job, tmp_path / "m", tmp_path / "out", ShardOptions(ray="local", processes=2))
    assert result.images == manifest.images and not list((tmp_path / "trouble").iterdir())
    for name in ("single", "out"):
        merge_shards(tmp_path / name, tmp_path / f"{name}.jsonl")
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "single.jsonl").read_bytes()

    from ray._common.usage import usage_lib

    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0" and not usage_lib.usage_stats_enabled()
    assert not (tmp_path / "home" / ".ray").exists()  # no token of Ray's in the home folder


def test_an_address_where_nobody_is(local_ray: None, tmp_path: Path) -> None:
    stub_manifest(tmp_path)
    with pytest.raises(VitrailError, match="cannot reach Ray at 127.0.0.1:9"):
        run_job(StubJob(), tmp_path / "m", tmp_path / "out", ShardOptions(ray="127.0.0.1:9"))
