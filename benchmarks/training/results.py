"""The page of results: a section a measurement; measuring again replaces its section and leaves the others."""

from __future__ import annotations

import datetime
import math
import os
import platform
import re
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

HEADING = "# Training: accuracy in a given time, and speed\n\nEach section says when, where and by which command.\n"


def write_section(
    page: Path, title: str, lines: Sequence[str], packages: Sequence[str] = ("torch",), heading: str = HEADING
) -> None:
    body = "\n".join([f"## {title}", "", *_circumstances(packages), "", *lines]) + "\n"
    heading, sections = _read(page, heading)
    sections[title] = body
    page.parent.mkdir(parents=True, exist_ok=True)
    beside = page.with_name(page.name + ".new")
    beside.write_text("\n".join([heading, *sections.values()]), encoding="utf-8")
    beside.replace(page)
    print(f"\n{body}\nwritten to {page}", flush=True)


def _read(page: Path, heading: str) -> tuple[str, dict[str, str]]:
    if not page.exists():
        return heading, {}
    heading, *sections = re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    by_title = {text.splitlines()[0].removeprefix("## "): text.rstrip("\n") + "\n" for text in sections}
    return heading.rstrip("\n") + "\n", by_title


def _circumstances(packages: Sequence[str]) -> list[str]:
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    command = shlex.join(["python", *_without_places(sys.argv)])
    return [f"{datetime.date.today()}, {machine()}, {versions}.", f"`{command}`"]


def _without_places(words: Sequence[str]) -> list[str]:
    """Where data and results lie on this machine is nobody's business."""
    places = [n for n, word in enumerate(words) if word in ("--work", "--results", "--vitrail", "--package", "--data")]
    left = [word for n, word in enumerate(words) if n not in places and n - 1 not in places]
    return [Path(word).name if word.startswith("/") else word for word in left]


def table_row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def cpu_name() -> str:
    """With family and model: hypervisors often hide the name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return (
        f"{facts.get('model name', platform.processor())} family {facts.get('cpu family')} model {facts.get('model')}"
    )


def machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = os.environ.get("OMP_NUM_THREADS")
    return f"{cpu_name()}, {cores} cores" + (f", OMP_NUM_THREADS={threads}" if threads else "")


def interval(accuracy: float, images: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a part of so many images."""
    z = 1.959964
    middle = (accuracy + z * z / (2 * images)) / (1 + z * z / images)
    half = z * math.sqrt(accuracy * (1 - accuracy) / images + (z / (2 * images)) ** 2) / (1 + z * z / images)
    return middle - half, middle + half


def percent(accuracy: float, images: int) -> str:
    low, high = interval(accuracy, images)
    return f"**{100 * accuracy:.2f} %** ({100 * low:.2f} to {100 * high:.2f})"
