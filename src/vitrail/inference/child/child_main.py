"""The child of `run_in_child`: `python -m vitrail.inference.child.child_main`.

A function and its arguments come as a pickle on standard input, what it gives goes as one to standard output. Both ends
are the same program; nothing of a file is ever unpickled here.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback
from typing import Any, BinaryIO

from vitrail.errors import VitrailError

STEP, RESULT, USER_ERROR, ERROR = "step", "result", "user error", "error"

_replies: BinaryIO | None = None  # None: this is no child


def report_step(name: str) -> None:
    """Say what comes next, so that after a crash it is known what crashed. Not in a child: nothing happens."""
    if _replies is not None:
        _reply(_replies, STEP, name)


def main() -> None:
    """Run the one function, then end."""
    global _replies
    _replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no reply
    function, arguments = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        result = function(*arguments)
    except VitrailError as error:
        _reply(_replies, USER_ERROR, str(error))
    except Exception as error:
        _reply(_replies, ERROR, (f"{type(error).__name__}: {error}", traceback.format_exc()))
    else:
        _reply(_replies, RESULT, result)
    os._exit(0)  # what a library does while Python ends is no longer of interest


def _end_with_parent() -> None:
    """Standard input ends with the parent, also with one that was killed: nobody waits for the result then."""
    sys.stdin.buffer.read()
    os._exit(1)


def _reply(replies: BinaryIO, kind: str, value: Any) -> None:
    pickle.dump((kind, value), replies)
    replies.flush()


if __name__ == "__main__":
    # under its own name, for `report_step` is imported from there
    from vitrail.inference.child import child_main

    child_main.main()
