"""A run that was killed and resumed ends with the very weights of one that never stopped."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.training.running import begin, kill, vitrail, wait_for
from vitrail.training.state import States


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def assert_same(one: Path, other: Path) -> None:
    left, right = weights(one), weights(other)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert rows(one) == rows(other)


def rows(run: Path) -> list[dict]:
    """What was measured, without the clock."""
    timed = ("seconds", "images_per_second")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in timed} for line in lines]


def kill_after(step: int, *arguments: object, processes: int = 1, run: Path) -> None:
    """SIGKILL as soon as the state of that step is on disk: somewhere in the next one."""
    running = begin(*arguments, processes=processes)
    wait_for(lambda: max(States(run / "checkpoint").steps(), default=0) >= step, running)
    kill(running)
    assert not (run / "model.safetensors").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_killed_and_resumed_is_bit_equal(tmp_path, pictures, tiny, workers):
    settings = tiny(workers=workers)
    assert vitrail("train", pictures, "--out", tmp_path / "whole", "--settings", settings).returncode == 0
    run = tmp_path / "killed"
    kill_after(3, "train", pictures, "--out", run, "--settings", settings, run=run)
    kill_after(9, "train", pictures, "--out", run, "--resume", run=run)
    done = vitrail("train", pictures, "--out", run, "--resume")
    assert done.returncode == 0, done.stderr
    assert "resumed after step" in done.stdout
    assert_same(tmp_path / "whole", run)
    assert len(States(run / "checkpoint").steps()) == 2


def test_workers_do_not_change_the_result(tmp_path, pictures, tiny):
    for workers in (0, 2):
        assert vitrail("train", pictures, "--out", tmp_path / str(workers), "--settings", tiny(workers)).returncode == 0
    assert_same(tmp_path / "0", tmp_path / "2")


def test_killed_before_the_first_state(tmp_path, pictures, tiny):
    settings = tiny(extra="")
    assert vitrail("train", pictures, "--out", tmp_path / "whole", "--settings", settings).returncode == 0
    run = tmp_path / "killed"
    running = begin("train", pictures, "--out", run, "--settings", settings)
    wait_for((run / "plan.json").exists, running)
    kill(running)
    for state in (run / "checkpoint").glob("*"):
        state.unlink()
    assert vitrail("train", pictures, "--out", run, "--resume").returncode == 0
    assert_same(tmp_path / "whole", run)


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_last_state_falls_back_to_the_one_before(tmp_path, pictures, tiny, damage):
    settings = tiny()
    assert vitrail("train", pictures, "--out", tmp_path / "whole", "--settings", settings).returncode == 0
    run = tmp_path / "damaged"
    kill_after(6, "train", pictures, "--out", run, "--settings", settings, run=run)
    states = States(run / "checkpoint")
    last = states.path(states.steps()[-1])
    content = bytearray(last.read_bytes())
    if damage == "truncated":
        last.write_bytes(content[: len(content) // 2])
    else:
        content[-7] ^= 1
        last.write_bytes(content)
    before = states.steps()[-2]
    done = vitrail("train", pictures, "--out", run, "--resume")
    assert done.returncode == 0, done.stderr
    assert last.name in done.stdout
    assert "going on from the one before" in done.stdout
    assert f"resumed after step {before}" in done.stdout
    assert_same(tmp_path / "whole", run)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(tmp_path, pictures, tiny, number, code):
    settings = tiny()
    assert vitrail("train", pictures, "--out", tmp_path / "whole", "--settings", settings).returncode == 0
    run = tmp_path / "stopped"
    running = begin("train", pictures, "--out", run, "--settings", settings)
    wait_for(lambda: bool(States(run / "checkpoint").steps()), running)
    os.kill(running.pid, number)
    said = running.communicate(timeout=60)[0]
    assert running.returncode == code, said
    assert "everything is saved; go on with:" in said
    assert said.splitlines()[-1].strip().startswith("vitrail train ") and said.strip().endswith("--resume")
    assert vitrail("train", pictures, "--out", run, "--resume").returncode == 0
    assert_same(tmp_path / "whole", run)


def test_two_processes_learn_what_one_does(tmp_path, pictures, tiny):
    settings = tiny(noise=0.0)
    assert vitrail("train", pictures, "--out", tmp_path / "one", "--settings", settings).returncode == 0
    done = vitrail("train", pictures, "--out", tmp_path / "two", "--settings", settings, processes=2)
    assert done.returncode == 0, done.stdout + done.stderr
    for one, two in zip(rows(tmp_path / "one"), rows(tmp_path / "two"), strict=True):
        assert two["step"] == one["step"]
        if "loss" in one:
            assert two["loss"] == pytest.approx(one["loss"], abs=1e-4)
    for name, tensor in weights(tmp_path / "one").items():
        torch.testing.assert_close(weights(tmp_path / "two")[name], tensor, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("shard", [False, True], ids=["replicated", "sharded"])
def test_a_killed_process_of_two_and_resume_is_bit_equal(tmp_path, pictures, tiny, shard):
    settings, flags = tiny(), ["--shard"] if shard else []
    whole, run = tmp_path / "whole", tmp_path / "killed"
    done = vitrail("train", pictures, "--out", whole, "--settings", settings, *flags, processes=2)
    assert done.returncode == 0, done.stdout + done.stderr
    running = begin("train", pictures, "--out", run, "--settings", settings, *flags, processes=2)
    wait_for(lambda: max(States(run / "checkpoint").steps(), default=0) >= 4, running)
    os.kill(a_worker(running.pid), signal.SIGKILL)  # torchrun notices and ends the other
    said = running.communicate(timeout=120)[0]
    assert running.returncode != 0, said
    done = vitrail("train", pictures, "--out", run, "--resume", *flags, processes=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same(whole, run)


def a_worker(torchrun: int) -> int:
    """The last of torchrun's processes: not the one that writes."""
    children = Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split()
    return int(children[-1])
