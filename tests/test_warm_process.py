"""A fork of the warm process is a process of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.warm_process import Running, run_python, run_together, run_vitrail


def test_nothing_of_one_command_is_left_for_the_next(tmp_path: Path) -> None:
    spoil = "import os, torch, vitrail; torch.manual_seed(1); vitrail.left = 1; os.environ['LEFT'] = '1'; print('a')"
    look = "import os, torch, vitrail; print(torch.initial_seed(), hasattr(vitrail, 'left'), 'LEFT' in os.environ)"
    before = run_python(look, tmp_path).stdout
    assert run_python(spoil, tmp_path).stdout == "a\n"
    assert run_python(look, tmp_path).stdout == before and before.endswith("False False\n")


def test_streams_folder_and_exit_codes(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), repr(sys.stdin.read())); print('e', file=sys.stderr); sys.exit(3)"
    done = run_python(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3, f"{tmp_path} ''\n", "e\n")
    failed = run_python("raise ValueError('no')", tmp_path)
    assert failed.returncode == 1 and "Traceback" in failed.stderr and "ValueError: no" in failed.stderr
    done = run_vitrail(["info", "S/15"])
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stdout == ""


def test_threads_and_exit_functions_come_to_their_end(tmp_path: Path) -> None:
    code = """
import atexit, threading, time
atexit.register(print, "last")
threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
"""
    assert run_python(code, tmp_path).stdout == "thread\nlast\n"


def test_a_signal_ends_it(tmp_path: Path) -> None:
    running = Running(
        {"code": "print('on', flush=True); import time; time.sleep(60)", "cwd": str(tmp_path)}, apart=False
    )
    assert running.poll() is None
    os.killpg(running.pid, signal.SIGKILL)
    assert running.wait(10) == -signal.SIGKILL


def test_processes_that_work_together(tmp_path: Path) -> None:
    """Where one fails, the others do not wait for it for ever."""
    done = run_together(["train", tmp_path / "nothing", "--out", tmp_path / "run"], 2, timeout=60)
    assert done.returncode == 2 and "nothing" in done.stderr
