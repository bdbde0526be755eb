"""A function in a process of its own: where a library crashes, the caller gets an exception and goes on."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, TypeVar

from vitrail.errors import VitrailError
from vitrail.inference.child.child_main import ERROR, RESULT, STEP, USER_ERROR

if TYPE_CHECKING:
    from torch import nn

R = TypeVar("R")

# -P: a folder called torch where the user stands is not torch
COMMAND = (sys.executable, "-P", "-m", "vitrail.inference.child.child_main")
SIGNALS = {
    "SIGSEGV": "a segmentation fault",
    "SIGBUS": "a bus error",
    "SIGILL": "an instruction that this processor has not",
    "SIGABRT": "an abort",
    "SIGFPE": "an arithmetic error",
    "SIGKILL": "it was killed, perhaps because memory ran out",
}


class ChildCrash(Exception):
    """The process ended without a result. how: in words; step: what it last said that it would do, "" for nothing."""

    def __init__(self, how: str, step: str) -> None:
        super().__init__(f"{step}: {how}" if step else how)
        self.how, self.step = how, step


def run_in_child(function: Callable[..., R], *arguments: Any) -> R:
    """What the function gives, from a process of its own; its lines on standard error are shown as they come.

    function: of a module, not of a script. Arguments and result are pickled. VitrailError comes back as it is, any
    other exception as a RuntimeError with the traceback as its note, a crash as `ChildCrash`.
    """
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    process = subprocess.Popen(
        COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C reaches the parent alone, which ends it
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # it died at once: its exit code says how
            pickle.dump((function, arguments), process.stdin)
            process.stdin.flush()
        kind, value = _last_reply(process)
    finally:
        process.kill()
        process.wait()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
    if kind == USER_ERROR:
        raise VitrailError(value)
    if kind == ERROR:
        text, trace = value
        error = RuntimeError(text)
        error.add_note(trace)
        raise error
    result: R = value
    return result


def _last_reply(process: subprocess.Popen[bytes]) -> tuple[str, Any]:
    """The result or the error; ChildCrash where the process ended before it had one."""
    step = ""
    replies: IO[bytes] | None = process.stdout
    assert replies is not None
    while True:
        try:
            kind, value = pickle.load(replies)
        except (EOFError, pickle.UnpicklingError):
            raise ChildCrash(_how_it_ended(process.wait()), step) from None
        if kind == STEP:
            step = value
        else:
            assert kind in (RESULT, USER_ERROR, ERROR)
            return kind, value


def _how_it_ended(code: int) -> str:
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"its process ended with code {code}"
    return SIGNALS.get(name, name)


def can_be_sent(network: nn.Module) -> bool:
    """Whether another process can import all classes of a network: not those of a script, or inside of a function."""
    kinds = {type(module) for module in network.modules()}
    return not any(kind.__module__ == "__main__" or "<locals>" in kind.__qualname__ for kind in kinds)
