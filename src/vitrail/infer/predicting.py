"""The command `vitrail predict`: images in, a row each out, and an exit code that says whether all could be read."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from vitrail.data.names import counted
from vitrail.errors import VitrailError
from vitrail.infer.opening import open_model, task_of
from vitrail.infer.pictures import pictures_in
from vitrail.infer.predictor import Predictor
from vitrail.infer.progress import Counter
from vitrail.infer.rows import STDOUT, Write, csv_rows, json_rows, text_lines
from vitrail.infer.sources import STDIN, expand
from vitrail.tasks.task import Task


def run_predict(
    model: str | Path,
    images: Sequence[str | Path],
    *,
    top: int = 5,
    json: str | Path | None = None,
    csv: str | Path | None = None,
    out: str | Path | None = None,
    batch_size: int | None = None,
    workers: int = 2,
    device: str = "auto",
) -> int:
    """Answer for every image; the result is the exit code: 0, or 1 where one could not be read or there was none.

    images: files, folders, and '-' for paths on standard input. json, csv: files to write instead of lines of text;
    '-' is standard output. out: a folder for pictures of the answers, where the task gives some: masks, boxes.
    """
    if str(json) == str(csv) == STDOUT:
        raise VitrailError("--json - and --csv - would both write to standard output: give one of them a file")
    if [str(image) for image in images].count(STDIN) > 1:
        raise VitrailError("'-' is standard input, which can be read once: name it once")
    predictor = Predictor(open_model(model), batch_size=batch_size, workers=workers, device=device)
    task = task_of(predictor.checkpoint)
    unreadable = 0
    quiet = STDOUT in (str(json), str(csv)) or (json is None and csv is None)  # the rows themselves show the progress
    with contextlib.ExitStack() as stack:
        writes = _outlets(stack, task, top, json, csv)
        if out is not None:
            writes.append(stack.enter_context(pictures_in(out, task)))
        counter = stack.enter_context(Counter(wanted=not quiet))
        for prediction in stack.enter_context(contextlib.closing(predictor.predict(expand(images), top))):
            unreadable += prediction.error is not None
            for write in writes:
                write(prediction)
            counter.step()
    print(_summary(counter, unreadable), file=sys.stderr)
    return 1 if unreadable or not counter.done else 0


def _outlets(
    stack: contextlib.ExitStack, task: Task, top: int, json: str | Path | None, csv: str | Path | None
) -> list[Write]:
    writes: list[Write] = []
    if json is not None:
        writes.append(stack.enter_context(json_rows(json)))
    if csv is not None:
        writes.append(stack.enter_context(csv_rows(csv, task, top)))
    return writes or [text_lines(task)]


def _summary(counter: Counter, unreadable: int) -> str:
    if not counter.done:
        return "vitrail: no images were found"
    seconds = counter.seconds
    text = f"{counted(counter.done, 'image')} in {seconds:.1f} s, {counter.done / max(seconds, 1e-9):.1f} a second"
    return f"{text}; {unreadable:,} could not be read" if unreadable else text
