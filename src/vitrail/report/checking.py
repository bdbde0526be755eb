"""The command `vitrail check`: look, print, and say by the exit code whether training would be spoilt."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from vitrail.data.check import check
from vitrail.data.dense_options import DenseOptions
from vitrail.data.threads import Progress
from vitrail.files import write_text


def run_check(
    data: str | Path,
    *,
    as_json: bool = False,
    page: str | Path | None = None,
    out: str | Path | None = None,
    fast: bool = False,
    layout: str | None = None,
    task: str | None = None,
    targets: Sequence[str] | None = None,
    dense: DenseOptions | None = None,
    seed: int = 0,
    workers: int | None = None,
    quiet: bool = False,
) -> int:
    """Check DATA and print the report; the result is the exit code: 0, or 1 where something would spoil training.

    as_json: JSON instead of text. page: write the HTML page there. out: write there what would be printed.
    quiet: no progress bar; there is none anyway where standard error is not a terminal.
    """
    report = check(
        data,
        layout=layout,
        task=task,
        targets=targets,
        dense=dense,
        fast=fast,
        seed=seed,
        workers=workers,
        progress=None if quiet else _bar(sys.stderr),
    )
    text = json.dumps(report.to_dict(), indent=2) if as_json else str(report)
    if out is None:
        print(text)
    else:
        write_text(out, text + "\n")
    if page is not None:
        from vitrail.report.check_page import page as render

        write_text(page, render(report))
        if not as_json or out is not None:
            print(f"wrote {page}")
    return report.exit_code


def _bar(stream: TextIO) -> Progress | None:
    if not stream.isatty():
        return None

    def show(done: int, total: int) -> None:
        width = 30
        full = width * done // max(1, total)
        stream.write(f"\rchecking [{'#' * full}{' ' * (width - full)}] {done:,} of {total:,}")
        if done >= total:
            stream.write("\r\x1b[K")
        stream.flush()

    return show
