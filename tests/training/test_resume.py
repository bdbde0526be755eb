"""A run that was killed and resumed ends with the very weights of one that never stopped."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.training.running import TINY, begin, kill, vitrail, wait_for, write_pictures
from vitrail.training.checkpointing import Checkpoints


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `data`, the settings `tiny.toml`, and `whole`: a run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    write_pictures(folder / "data")
    (folder / "tiny.toml").write_text(TINY.format(workers=0, noise=0.1))
    done = vitrail("train", folder / "data", "--out", folder / "whole", "--settings", folder / "tiny.toml")
    assert done.returncode == 0, done.stderr
    return folder


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def assert_same(one: Path, other: Path) -> None:
    left, right = weights(one), weights(other)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert rows(one) == rows(other)


def assert_alike(one: Path, other: Path, loss: float, weight: float) -> None:
    """The same steps with nearly the same losses, and nearly the same weights."""
    for left, right in zip(rows(one), rows(other), strict=True):
        assert right["step"] == left["step"]
        if "loss" in left:
            assert right["loss"] == pytest.approx(left["loss"], abs=loss)
    for name, tensor in weights(one).items():
        torch.testing.assert_close(weights(other)[name], tensor, atol=weight, rtol=10 * weight)


def rows(run: Path) -> list[dict]:
    """What was measured, without the clock."""
    timed = ("seconds", "images_per_second")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in timed} for line in lines]


def kill_after(step: int, *arguments: object, processes: int = 1, run: Path) -> None:
    """SIGKILL as soon as the state of that step is on disk: somewhere in the next one."""
    running = begin(*arguments, processes=processes)
    wait_for(lambda: max(Checkpoints(run / "checkpoint").steps(), default=0) >= step, running)
    if processes == 1:
        kill(running)
    else:
        os.kill(a_worker(running.pid), signal.SIGKILL)  # torchrun ends the other, which is in a group of its own
        running.communicate(timeout=240)
    assert not (run / "model.safetensors").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_killed_and_resumed_is_bit_equal(tmp_path, whole, tiny, workers):
    """Also to a run with another number of workers."""
    data, run = whole / "data", tmp_path / "killed"
    kill_after(3, "train", data, "--out", run, "--settings", tiny(workers=workers), run=run)
    kill_after(9, "train", data, "--out", run, "--resume", run=run)
    done = vitrail("train", data, "--out", run, "--resume")
    assert done.returncode == 0, done.stderr
    assert "resumed after step" in done.stdout
    assert_same(whole / "whole", run)
    assert len(Checkpoints(run / "checkpoint").steps()) == 2


def test_killed_before_the_first_state(tmp_path, whole):
    data, run = whole / "data", tmp_path / "killed"
    running = begin("train", data, "--out", run, "--settings", whole / "tiny.toml")
    wait_for((run / "plan.json").exists, running)
    kill(running)
    for state in (run / "checkpoint").glob("*"):
        state.unlink()
    assert vitrail("train", data, "--out", run, "--resume").returncode == 0
    assert_same(whole / "whole", run)


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_last_state_falls_back_to_the_one_before(tmp_path, whole, damage):
    data, run = whole / "data", tmp_path / "damaged"
    kill_after(6, "train", data, "--out", run, "--settings", whole / "tiny.toml", run=run)
    states = Checkpoints(run / "checkpoint")
    last = states.path(states.steps()[-1])
    content = bytearray(last.read_bytes())
    if damage == "truncated":
        last.write_bytes(content[: len(content) // 2])
    else:
        content[-7] ^= 1
        last.write_bytes(content)
    before = states.steps()[-2]
    done = vitrail("train", data, "--out", run, "--resume")
    assert done.returncode == 0, done.stderr
    assert last.name in done.stdout
    assert "going on from the one before" in done.stdout
    assert f"resumed after step {before}" in done.stdout
    assert_same(whole / "whole", run)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(tmp_path, whole, number, code):
    data, run = whole / "data", tmp_path / "stopped"
    running = begin("train", data, "--out", run, "--settings", whole / "tiny.toml")
    wait_for(lambda: bool(Checkpoints(run / "checkpoint").steps()), running)
    os.kill(running.pid, number)
    said = running.communicate(timeout=60)[0]
    assert running.returncode == code, said
    assert "everything is saved; go on with:" in said
    assert said.splitlines()[-1].strip().startswith("vitrail train ") and said.strip().endswith("--resume")
    assert vitrail("train", data, "--out", run, "--resume").returncode == 0
    assert_same(whole / "whole", run)


@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes_learn_what_one_does(tmp_path, whole, processes):
    """With dropout, drop path, mixup, cutmix and dropped tokens."""
    arguments = ["train", whole / "data", "--out", tmp_path / "several", "--settings", whole / "tiny.toml"]
    done = vitrail(*arguments, processes=processes)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_alike(whole / "whole", tmp_path / "several", loss=1e-4, weight=1e-4)


@pytest.mark.parametrize("held", [1, 257], ids=["fewer than processes", "uneven batches"])
def test_any_number_of_held_out_images_is_shared_among_two(tmp_path, tiny, held):
    write_pictures(tmp_path / "data" / "train", 8)
    write_pictures(tmp_path / "data" / "val", held, classes=("cat",), side=4)
    done = vitrail("train", tmp_path / "data", "--out", tmp_path / "run", "--settings", tiny(), processes=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"on {held} validation image" in done.stdout


@pytest.mark.parametrize("shard", [False, True], ids=["replicated", "sharded"])
def test_torchrun_replaces_a_killed_process_and_the_run_goes_on_by_itself(tmp_path, pictures, tiny, shard):
    """To the weights and the rows of a run that nobody disturbed."""
    settings, flags = tiny(), ["--shard"] if shard else []
    unstopped, run = tmp_path / "whole", tmp_path / "killed"
    done = vitrail("train", pictures, "--out", unstopped, "--settings", settings, *flags, processes=2)
    assert done.returncode == 0, done.stdout + done.stderr
    arguments = ["train", pictures, "--out", run, "--settings", settings, *flags]
    running = begin(*arguments, processes=2, restarts=1, warm=shard)
    wait_for(lambda: max(Checkpoints(run / "checkpoint").steps(), default=0) >= 4, running)
    os.kill(a_worker(running.pid), signal.SIGKILL)
    said = running.communicate(timeout=240)[0]
    assert running.returncode == 0, said
    assert "resumed after step" in said
    assert_same(unstopped, run)
    again = vitrail(*arguments, processes=2)  # no restart of these
    assert again.returncode != 0 and "already holds a run: go on with --resume" in again.stderr


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2)])
def test_a_sharded_run_goes_on_with_another_number_of_processes(tmp_path, pictures, tiny, first, second):
    """One process has whole tensors in one file, two have a part each in a folder; either goes on from both."""
    settings, run = tiny(extra='optimizer = "adamw"\n'), tmp_path / "killed"
    assert vitrail("train", pictures, "--out", tmp_path / "whole", "--settings", settings).returncode == 0
    shard = {1: [], 2: ["--shard"]}
    kill_after(4, "train", pictures, "--out", run, "--settings", settings, *shard[first], processes=first, run=run)
    saved = Checkpoints(run / "checkpoint").found()
    assert saved and all(path.is_dir() == (first == 2) for _, path in saved)
    done = vitrail("train", pictures, "--out", run, "--resume", "--shard", processes=second)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resumed after step" in done.stdout
    assert_alike(tmp_path / "whole", run, loss=1e-4, weight=1e-4)
    saved = Checkpoints(run / "checkpoint").found()
    assert len(saved) == 2 and all(path.is_dir() == (second == 2) for _, path in saved)


def a_worker(torchrun: int) -> int:
    """The last of torchrun's processes: not the one that writes."""
    children = Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split()
    return int(children[-1])


EDITS = {
    "another width": ("settings.toml", lambda text: re.sub(r"(?m)^(# )?width = .*$", "width = 64", text)),
    "another optimizer": ("settings.toml", lambda text: text.replace('optimizer = "muon"', 'optimizer = "adamw"')),
    "more blocks": ("settings.toml", lambda text: re.sub(r"(?m)^(# )?depth = .*$", "depth = 3", text)),
    "a plan of nothing": ("plan.json", lambda text: "{}"),
    "a plan without an end": ("plan.json", lambda text: text.replace('"steps": ', '"steps": -')),
    "a row of text": ("metrics.jsonl", lambda text: '{"step": "first"}\n' + text),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_run_is_refused_in_a_sentence(tmp_path, whole, edit):
    """Nothing of it is changed, so that the edit can be undone."""
    name, change = EDITS[edit]
    run = tmp_path / "edited"
    shutil.copytree(whole / "whole", run)
    before = (run / name).read_text()
    (run / name).write_text(change(before))
    assert (run / name).read_text() != before
    done = vitrail("train", whole / "data", "--out", run, "--resume")
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and name in done.stderr and "Traceback" not in done.stderr
    (run / name).write_text(before)
    assert vitrail("train", whole / "data", "--out", run, "--resume").returncode == 0
