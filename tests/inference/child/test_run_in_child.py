"""A function in a process of its own: what it gives comes back, and what crashes there crashes nothing here."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import nn

from vitrail.errors import VitrailError
from vitrail.inference.child.child_main import report_step
from vitrail.inference.child.run_in_child import ChildCrash, can_be_sent, run_in_child

T = TypeVar("T")


def doubled(array: np.ndarray, tensor: torch.Tensor) -> tuple[np.ndarray, torch.Tensor, int]:
    print("what a library prints is no reply", flush=True)
    return 2 * array, 2 * tensor, os.getpid()


def refuse() -> None:
    raise VitrailError("model.safetensors is damaged: copy it again")


def fail() -> None:
    raise KeyError("a mistake")


def crash(how: str) -> None:
    report_step("first")
    report_step("second")
    if how == "null pointer":
        ctypes.string_at(0)
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.Signals[how])


def wait_for_ever(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    time.sleep(600)


def test_arguments_and_result_are_handed_over(capfd: pytest.CaptureFixture[str]) -> None:
    array, tensor, process = run_in_child(doubled, np.arange(3), torch.ones(2))
    assert array.tolist() == [0, 2, 4] and tensor.tolist() == [2, 2] and process != os.getpid()
    printed = capfd.readouterr()
    assert printed.out == "" and "no reply" in printed.err


def test_errors_come_back() -> None:
    with pytest.raises(VitrailError, match="model.safetensors is damaged: copy it again"):
        run_in_child(refuse)
    with pytest.raises(RuntimeError, match="KeyError: 'a mistake'") as raised:
        run_in_child(fail)
    assert "in fail" in raised.value.__notes__[0]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("null pointer", "a segmentation fault"),
        ("SIGABRT", "an abort"),
        ("SIGKILL", "it was killed, perhaps because memory ran out"),
        ("exit", "its process ended with code 3"),
    ],
)
def test_a_crash_is_an_exception_that_says_where(how: str, words: str) -> None:
    with pytest.raises(ChildCrash) as crashed:
        run_in_child(crash, how)
    assert (crashed.value.how, crashed.value.step) == (words, "second")


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    """Also with one that was killed and could end nothing."""
    file = tmp_path / "pid"
    code = (
        "from vitrail.inference.child.run_in_child import run_in_child\n"
        "from tests.inference.child.test_run_in_child import wait_for_ever\n"
        f"run_in_child(wait_for_ever, {str(file)!r})"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[3])
    try:
        child = _wait_for(lambda: int(file.read_text()) if file.exists() and file.read_text() else None)
    finally:
        parent.kill()
        parent.wait()
    assert _wait_for(lambda: True if not _is_alive(child) else None)


def _wait_for(look: Callable[[], T | None]) -> T:
    for _ in range(600):
        if (found := look()) is not None:
            return found
        time.sleep(0.1)
    raise AssertionError("it did not happen within a minute")


def _is_alive(process: int) -> bool:
    """A process that has ended and that nobody has asked about is not alive."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_network_with_classes_of_a_script_stays_here() -> None:
    class Own(nn.Module):
        pass

    assert can_be_sent(nn.Sequential(nn.Linear(2, 2)))
    assert not can_be_sent(nn.Sequential(Own()))
