"""Each of five tasks on generated scenes with exact truth, trained by the real command in a few minutes.

    python benchmarks/shapes.py [--minutes 4] [--task segment ...]

`vitrail make-data shapes` makes the data, `vitrail train --minutes M` trains with its defaults, and the figures are of
the test part, which neither training nor the choice of the best weights saw. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
from pathlib import Path

from training.places import BENCHMARKS, add_shared
from training.results import write_section
from training.running import new_folder, vitrail_train

BARS = {
    "classify": ("accuracy", 0.95),
    "segment": ("mIoU", 0.80),
    "detect": ("AP50", 0.80),
    "regress": ("R2", 0.90),
    "depth": ("MAE", 0.25),  # of the error of always answering the mean; smaller is better
}
RESULTS = BENCHMARKS / "results" / "shapes.md"
HEADING = "# Five tasks on generated scenes\n\nEach section says when, where and by which command.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--task", choices=tuple(BARS), nargs="*", default=tuple(BARS))
    add_shared(parser)
    parser.set_defaults(results=RESULTS)
    given = parser.parse_args()
    work = given.work.expanduser().resolve()
    data = work / "shapes"
    if not data.is_dir():
        work.mkdir(parents=True, exist_ok=True)
        command = [str(given.vitrail), "make-data", "shapes", str(data)]
        print("$", shlex.join(command), flush=True)
        subprocess.run(command, check=True)
    for task in given.task:
        one(task, given, data, work)


def one(task: str, given: argparse.Namespace, data: Path, work: Path) -> None:
    options = ["--task", task, "--minutes", f"{given.minutes:g}"]
    trained = vitrail_train(given.vitrail, data, new_folder(work, f"shapes-{task}"), options)
    results = json.loads((trained.folder / "results.json").read_text(encoding="utf-8"))
    metric, bar = BARS[task]
    value, (low, high) = results["metrics"][metric], results["intervals"][metric]
    wanted = f"{bar:.2f}"
    reached = value >= bar
    if task == "depth":
        bar *= results["metrics"]["MAE_of_the_mean"]
        wanted, reached = f"{bar:.3f}, a quarter of the error of the mean,", value <= bar
    held = "met" if reached and trained.seconds <= 60 * given.minutes * 1.1 else "NOT met"
    lines = [
        f"`vitrail train shapes --task {task} --minutes {given.minutes:g}`, all else by default.",
        "",
        "| metric on test (95 % interval) | test images | wall time | epochs | bar |",
        "|---|---|---|---|---|",
        f"| {metric} **{value:.3f}** ({low:.3f} to {high:.3f}) | {results['images']} | {trained.seconds / 60:.1f} min "
        f"| {trained.rows[-1]['epoch']:.1f} | {wanted} in {given.minutes:g} min: {held} |",
    ]
    write_section(given.results, f"{task}, {given.minutes:g} minutes", lines, heading=HEADING)


if __name__ == "__main__":
    main()
