"""Shards from the first to the last: resumed, in parts, in processes that are killed, always the same bytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.shards.stub_job import StubJob, stub_manifest
from vitrail.errors import VitrailError
from vitrail.shards import scheduling
from vitrail.shards.merge_shards import merge_shards
from vitrail.shards.run_job import JobResult, run_job
from vitrail.shards.shard_options import ShardOptions


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., JobResult]:
    stub_manifest(tmp_path)

    def run(job: StubJob | None = None, out: str = "out", **options: Any) -> JobResult:
        return run_job(job or StubJob(), tmp_path / "m", tmp_path / out, ShardOptions(**options))

    return run


@pytest.fixture
def expected(tmp_path: Path, run: Callable[..., JobResult]) -> bytes:
    run(out="single")
    merge_shards(tmp_path / "single", tmp_path / "single.jsonl")
    return (tmp_path / "single.jsonl").read_bytes()


def merged(folder: Path) -> bytes:
    merge_shards(folder, folder.with_suffix(".jsonl"))
    return folder.with_suffix(".jsonl").read_bytes()


def trouble(folder: Path, **what: str) -> str:
    (folder / "trouble").mkdir()
    for name, text in what.items():
        (folder / "trouble" / f"{name.removeprefix('image')}.jpg").write_text(text)
    return str(folder / "trouble")


def test_one_process_ends_with_an_output_a_shard(tmp_path: Path, run: Callable[..., JobResult]) -> None:
    result = run()
    assert (result.images, result.errors, result.before) == (12, 2, 0)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert len(names) == 5 and names[0].startswith("000000-") and names[-1].startswith("job-")
    assert merged(tmp_path / "out").count(b"\n") == 12
    assert result.in_words().startswith("4 shards, 12 images, ") and "2 could not be read" in result.in_words()


def test_what_is_done_is_not_done_again(tmp_path: Path, run: Callable[..., JobResult], expected: bytes) -> None:
    run()
    files = sorted((tmp_path / "out").glob("0*.jsonl"))
    times = [file.stat().st_mtime_ns for file in files]
    files[1].unlink()
    files[2].write_bytes(files[2].read_bytes()[:-3])  # not whole
    assert run().before == 2
    again = [file.stat().st_mtime_ns for file in files]
    assert [old == new for old, new in zip(times, again, strict=True)] == [True, False, False, True]
    assert merged(tmp_path / "out") == expected


def test_parts_make_the_whole(tmp_path: Path, run: Callable[..., JobResult], expected: bytes) -> None:
    assert run(part=(1, 3)).images == 6
    with pytest.raises(VitrailError, match=r"2 of 4 shards are not done \(1, 2\)"):
        merge_shards(tmp_path / "out", tmp_path / "all")
    assert run(part=(3, 3)).images == run(part=(2, 3)).images == 3
    assert merged(tmp_path / "out") == expected


def test_another_job_in_the_same_folder_does_not_mix(tmp_path: Path, run: Callable[..., JobResult]) -> None:
    first = run()
    assert run(StubJob(version="2")).before == 0
    with pytest.raises(VitrailError, match="holds 2 jobs"):
        merge_shards(tmp_path / "out", tmp_path / "all")
    merge_shards(tmp_path / "out", tmp_path / "all", job=first.folder.fingerprint[:6])
    with pytest.raises(VitrailError, match="holds no job 'nosuch'"):
        merge_shards(tmp_path / "out", tmp_path / "all", job="nosuch")
    with pytest.raises(VitrailError, match="holds no outputs"):
        merge_shards(tmp_path / "m", tmp_path / "all")


def test_a_shard_that_fails_once_is_tried_again(tmp_path: Path, run: Callable[..., JobResult], expected: bytes) -> None:
    assert run(StubJob(trouble=trouble(tmp_path, image4="no connection"))).images == 12
    assert merged(tmp_path / "out") == expected
    assert not list((tmp_path / "out").glob("*.claim")) and not list((tmp_path / "out").glob(".*"))


def test_a_shard_that_always_fails_is_named_and_the_others_are_done(
    tmp_path: Path, run: Callable[..., JobResult], capsys: pytest.CaptureFixture[str]
) -> None:
    job = StubJob(trouble=trouble(tmp_path, image7="always fail"))
    with pytest.raises(VitrailError, match=r"1 shard failed \(2\), 3 are done: RuntimeError: always fail"):
        run(job)
    assert len(list((tmp_path / "out").glob("0*.jsonl"))) == 3
    assert f"attempt {scheduling.ATTEMPTS}" in capsys.readouterr().err


def test_processes_one_of_which_is_killed(tmp_path: Path, run: Callable[..., JobResult], expected: bytes) -> None:
    job = StubJob(trouble=trouble(tmp_path, image1="kill", image8="no connection"))
    assert run(job, processes=2).images == 12
    assert merged(tmp_path / "out") == expected


def test_a_process_with_another_model_is_refused(
    run: Callable[..., JobResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitrail.shards import run_job as module

    make_pool = module.make_pool

    def elsewhere(*arguments: Any) -> Any:
        monkeypatch.setenv("STUB_VERSION", "2")  # what processes that start from now on see
        return make_pool(*arguments)

    monkeypatch.setattr(module, "make_pool", elsewhere)
    with pytest.raises(VitrailError, match="another model"):
        run(processes=2)


def test_shards_of_others_are_waited_for(
    tmp_path: Path, run: Callable[..., JobResult], expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process holds a claim; while this one waits, it is killed, and its shard is taken over."""
    folder = run(part=(1, 2)).folder
    shard = run(part=(2, 2)).shards[0]
    output = Path(folder.file(shard.number, shard.digest))
    output.unlink()
    claim = Path(f"{output}.claim")
    claim.write_text('{"host": "elsewhere", "pid": 1}')
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if waits.count(scheduling.POLL) == 2:
            os.utime(claim, (1, 1))

    monkeypatch.setattr(scheduling.time, "sleep", sleep)
    assert run().before == 3
    assert waits.count(scheduling.POLL) == 2 and merged(tmp_path / "out") == expected


def test_outputs_on_a_store(tmp_path: Path, run: Callable[..., JobResult], expected: bytes) -> None:
    out = "memory://outputs/run"
    assert run_job(StubJob(), tmp_path / "m", out, ShardOptions()).before == 0
    assert run_job(StubJob(), tmp_path / "m", out, ShardOptions()).before == 4
    merge_shards(out, tmp_path / "all.jsonl")
    assert (tmp_path / "all.jsonl").read_bytes() == expected


def test_a_disk_that_is_not_mounted_makes_no_error_rows(tmp_path: Path, run: Callable[..., JobResult]) -> None:
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    with pytest.raises(VitrailError, match="data, where the images of .* lie, is not there"):
        run()


def test_folders_that_will_not_do(tmp_path: Path, run: Callable[..., JobResult]) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(VitrailError, match="is a file"):
        run(out="file")
    with pytest.raises(VitrailError, match="the manifest itself"):
        run(out="m")
