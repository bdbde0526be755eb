"""Threads for work on many files: as many as the process may use cores."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vitrail.threads import in_threads


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot hold a process to some cores")
def test_cores_are_those_that_the_process_may_use() -> None:
    program = (
        "import os\n"
        "from vitrail.threads import usable_cores\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "print(usable_cores())"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "1\n"


def test_results_are_in_the_order_of_the_items() -> None:
    told: list[tuple[int, int]] = []
    assert in_threads(lambda n: n * n, range(100), 3, lambda done, of: told.append((done, of))) == [
        n * n for n in range(100)
    ]
    assert told[-1] == (100, 100)
