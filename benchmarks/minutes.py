"""Does a run take the minutes that it was given, also while another program uses the machine?

    python benchmarks/minutes.py [--minutes 3] [--task classify segment]

Each task is trained twice on generated scenes by the default command: on an idle machine, and with another process that
computes on one core from the middle of the time on. The whole command is timed, from its start to its end. Nothing else
should run meanwhile.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import threading
from pathlib import Path

from training.places import BENCHMARKS, add_shared
from training.results import write_section
from training.running import Run, new_folder, vitrail_train

RESULTS = BENCHMARKS / "results" / "minutes.md"
HEADING = "# The time that was given, and the time it took\n\nEach section says when, where and by which command.\n"
IDLE, LOADED = 0.05, 0.10  # allowed differences


def compute_for_ever(core: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    number = 1
    while True:
        number = number * 1103515245 + 12345 & 0x7FFFFFFF


def train(given: argparse.Namespace, data: Path, task: str, loaded: bool) -> Run:
    busy = multiprocessing.Process(target=compute_for_ever, args=(0,), daemon=True)
    timer = threading.Timer(30 * given.minutes, busy.start)
    if loaded:
        timer.start()
    try:
        options = ["--task", task, "--minutes", f"{given.minutes:g}"]
        return vitrail_train(given.vitrail, data, new_folder(given.work, f"minutes-{task}"), options)
    finally:
        timer.cancel()
        if busy.pid is not None:
            busy.terminate()


def row(what: str, run: Run, minutes: float, allowed: float) -> str:
    off = run.seconds / (60 * minutes) - 1
    held = "met" if abs(off) <= allowed else "NOT met"
    epochs = run.rows[-1]["epoch"]
    return f"| {what} | {run.seconds / 60:.2f} min | {off:+.1%} | {epochs:.1f} | within {allowed:.0%}: {held} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--task", nargs="*", default=["classify", "segment"])
    add_shared(parser)
    parser.set_defaults(results=RESULTS)
    given = parser.parse_args()
    given.work = given.work.expanduser().resolve()
    data = given.work / "shapes"
    if not data.is_dir():
        given.work.mkdir(parents=True, exist_ok=True)
        subprocess.run([str(given.vitrail), "make-data", "shapes", str(data)], check=True)
    for task in given.task:
        lines = [f"`vitrail train shapes --task {task} --minutes {given.minutes:g}`, all else by default.", ""]
        lines += ["| machine | taken | off | epochs | bar |", "|---|---|---|---|---|"]
        lines += [row("idle", train(given, data, task, False), given.minutes, IDLE)]
        loaded = "another process takes a core from the middle on"
        lines += [row(loaded, train(given, data, task, True), given.minutes, LOADED)]
        write_section(given.results, f"{task}, {given.minutes:g} minutes", lines, heading=HEADING)
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
