"""Where predictions go, one by one as they come: lines of text, a JSON file, a CSV file. Files appear when complete."""

from __future__ import annotations

import contextlib
import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

import numpy as np

from vitrail.errors import VitrailError
from vitrail.files import replacing
from vitrail.inference.predictor import Prediction, name_of
from vitrail.tasks.shared.columns import as_number
from vitrail.text import harmless, json_text, shown

if TYPE_CHECKING:
    from vitrail.tasks.task_answers import TaskAnswers

STDOUT = "-"
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\N{FULLWIDTH EQUALS SIGN}", "\N{FULLWIDTH PLUS SIGN}",
            "\N{FULLWIDTH HYPHEN-MINUS}", "\N{FULLWIDTH COMMERCIAL AT}")  # fmt: skip

Write: TypeAlias = Callable[[Prediction], None]


def row_of(prediction: Prediction) -> dict[str, Any]:
    """One prediction, fit for JSON."""
    image = {"image": name_of(prediction.source)}
    if prediction.answer is None:
        return image | {"error": str(prediction.error)}
    answer = {key: value for key, value in prediction.answer.items() if not isinstance(value, np.ndarray)}
    return image | answer | {"precision": prediction.precision}


def as_line(prediction: Prediction, task: TaskAnswers) -> str:
    """One prediction for people."""
    answer = prediction.answer or {}
    what = f"error: {prediction.error.why}" if prediction.error is not None else task.words(answer)
    what += familiarity_words(answer)
    return shown(f"{name_of(prediction.source)}: {what}")


def familiarity_words(answer: Mapping[str, Any]) -> str:
    """'; familiarity 0.62', or '; unfamiliar (0.01)'; "" where the model's file does not tell."""
    if "familiarity" not in answer:
        return ""
    score = f"{answer['familiarity']:.2g}"
    return f"; familiarity {score}" if answer["familiar"] else f"; unfamiliar ({score})"


def text_lines(task: TaskAnswers) -> Write:
    """Writes each prediction as a line on standard output."""
    return lambda prediction: Stdout().write(as_line(prediction, task) + "\n")


class Stdout:
    """Standard output as it is now, which shows each row at once, and a name that it cannot encode in escapes. On a
    terminal a name loses what that would obey."""

    def write(self, text: str) -> None:
        """Write and flush."""
        text = harmless(text) if sys.stdout.isatty() else text
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()


@contextlib.contextmanager
def json_rows(path: str | Path) -> Iterator[Write]:
    """A list in a file; `-` is standard output, where each row is a line of its own."""
    if str(path) == STDOUT:
        encoding = sys.stdout.encoding or "utf-8"
        yield lambda prediction: Stdout().write(json_text(row_of(prediction), encoding=encoding) + "\n")
        return
    with _file(path) as file:
        before = "[\n"

        def write(prediction: Prediction) -> None:
            nonlocal before
            file.write(before + json_text(row_of(prediction), encoding=file.encoding))
            before = ",\n"

        yield write
        file.write("\n]\n" if before == ",\n" else "[]\n")


class _Lines:
    """Ends rows with \\n. A csv.writer that is told so leaves a \\r in a name without quotes, where a row would end."""

    def __init__(self, file: TextIO | Stdout) -> None:
        self.file = file

    def write(self, row: str) -> None:
        self.file.write(row.removesuffix("\r\n") + "\n")


@contextlib.contextmanager
def csv_table(path: str | Path, header: Sequence[str]) -> Iterator[Callable[[Sequence[Any]], None]]:
    """Writes rows of cells under a header; `-` is standard output.

    A text that a spreadsheet would run as a formula gets a ' before it, as OWASP advises.
    """
    with _file(path, "surrogateescape") if str(path) != STDOUT else contextlib.nullcontext(Stdout()) as file:
        writer = csv.writer(_Lines(file), lineterminator="\r\n")

        def write(cells: Sequence[Any]) -> None:
            writer.writerow([no_formula(cell) for cell in cells])

        write(header)
        yield write


@contextlib.contextmanager
def csv_rows(path: str | Path, task: TaskAnswers, top: int, familiarity: bool = False) -> Iterator[Write]:
    """Columns: image, those of the task's rows, error; they are the same whatever the answers are.

    familiarity: before the last, how familiar the image is, and whether it is.
    """
    columns = task.columns(top)
    told = ("familiarity", "familiar") if familiarity else ()
    others = [name if name not in columns else f"image_{name}" for name in (*told, "error")]
    with csv_table(path, ["image", *columns, *others]) as write_cells:

        def write(prediction: Prediction) -> None:
            row = {} if prediction.answer is None else task.row(prediction.answer)
            error = "" if prediction.error is None else str(prediction.error)
            extra = [_told((prediction.answer or {}).get(name, "")) for name in told]
            write_cells([name_of(prediction.source), *(row.get(column, "") for column in columns), *extra, error])

        yield write


def write_table(path: str | Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """A CSV file of rows that have all of these columns."""
    with csv_table(path, columns) as write_cells:
        for row in rows:
            write_cells([_told(row[column]) for column in columns])


def _told(value: Any) -> Any:
    """As JSON writes it: true, false."""
    return str(value).lower() if isinstance(value, bool) else value


def no_formula(cell: Any) -> Any:
    """The cell; a text that begins as a formula does, and is no number, behind a '."""
    if not isinstance(cell, str) or not cell.startswith(_FORMULA):
        return cell
    return cell if as_number(cell) is not None else f"'{cell}"


@contextlib.contextmanager
def _file(path: str | Path, errors: str = "strict") -> Iterator[TextIO]:
    """A text file that takes its name when it is complete. `errors`: what becomes of names that are no Unicode."""
    if Path(path).is_dir():
        raise VitrailError(f"{path} is a folder: give the name of a file to write")
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", errors=errors, newline="") as file:
        yield file
