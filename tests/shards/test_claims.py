"""Claims: who is at work is left alone, who is gone is not waited for."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vitrail.shards import claims
from vitrail.shards.claims import claimed, owner_of


def test_a_claim_is_there_while_it_is_held(tmp_path: Path) -> None:
    output = str(tmp_path / "new" / "out.jsonl")
    with claimed(output) as touch:
        assert touch is not None
        touch()
        assert owner_of(output) == f"process {os.getpid()} on {socket.gethostname()}"
    assert os.listdir(tmp_path / "new") == []
    with pytest.raises(KeyError), claimed(output):
        raise KeyError
    assert os.listdir(tmp_path / "new") == []


def write_claim(path: Path, host: str, pid: int, age: float = 0.0) -> str:
    claim = path / "out.claim"
    claim.write_text(json.dumps({"host": host, "pid": pid}))
    os.utime(claim, (time.time() - age, time.time() - age))
    return str(path / "out")


def test_others_at_work_are_left_alone_and_the_dead_are_not(tmp_path: Path) -> None:
    here = socket.gethostname()
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    for host, pid, age, ours in (
        (here, os.getppid(), 0.0, False),
        (here, int(dead.stdout), 0.0, True),
        ("elsewhere", os.getppid(), 0.0, False),
        ("elsewhere", os.getppid(), claims.STALE + 1, True),
    ):
        with claimed(write_claim(tmp_path, host, pid, age)) as touch:
            assert (touch is not None) is ours
    (tmp_path / "out.claim").write_text("half writ")
    with claimed(str(tmp_path / "out")) as touch:
        assert touch is None  # it is being written


def test_a_claim_of_a_process_that_is_known_to_be_gone_is_taken_over_at_once(tmp_path: Path) -> None:
    output = write_claim(tmp_path, "elsewhere", 17)
    with claimed(output, gone={"process 18 on elsewhere"}) as touch:
        assert touch is None
    with claimed(output, gone={"process 17 on elsewhere"}) as touch:
        assert touch is not None


def test_where_no_byte_can_be_written_no_claim_is_left(tmp_path: Path) -> None:
    """A full disk still makes names. An empty claim would be another process's for ten minutes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with claimed(str(tmp_path / "out")) as touch:
            assert touch is not None and os.listdir(tmp_path) == []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_store_has_no_claims() -> None:
    with claimed("memory://x/y") as touch:
        assert touch is not None
        touch()


def test_touching_keeps_it_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_TOUCH", 0.0)
    with claimed(str(tmp_path / "out")) as touch:
        os.utime(tmp_path / "out.claim", (1, 1))
        assert touch is not None
        touch()
        assert time.time() - (tmp_path / "out.claim").stat().st_mtime < 60
