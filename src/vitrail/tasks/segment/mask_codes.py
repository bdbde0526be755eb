"""What the values of mask files mean: from a file of names, a table of colours, or from the masks themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitrail.errors import VitrailError
from vitrail.findings import Example, Finding
from vitrail.images.decode import read_file
from vitrail.images.unreadable import UnreadableImage
from vitrail.tasks.dense_options import CHOSEN, IGNORE
from vitrail.tasks.segment.mask_files import MOST, UNKNOWN, MaskCode, MaskFile, load_values
from vitrail.tasks.shared.labels.class_names import Colour
from vitrail.text import counted, listing
from vitrail.threads import in_threads

VOID = ("void", "ignore", "ignored", "unlabelled", "unlabeled", "unlabel", "dontcare", "don't care")
SAMPLE = 24  # masks that are looked into before training: enough to see what all of them have

Said = tuple[MaskCode, tuple[str, ...], list[Finding]]


def code_of(
    files: Sequence[Path],
    names: dict[int, str],
    named_in: Path | None,
    colours: Sequence[tuple[Colour, str]],
    coloured_in: Path | None,
    ignore: int,
) -> Said:
    """The code, the class names in order, and what was decided on the way.

    ignore: the index that is not learnt; CHOSEN: classes that are called void or the like. 255 is never a class that
    nobody named.
    """
    if colours and coloured_in is not None:
        rows = {row: name for row, (_, name) in enumerate(colours)}
        labels, number, findings = _learnt(rows, ignore)
        keys = sorted(((r << 16) + (g << 8) + b, number[row]) for row, ((r, g, b), _) in enumerate(colours))
        return MaskCode(_table(number, ignore), tuple(keys), coloured_in.name), labels, findings
    if names and named_in is not None:
        labels, number, findings = _learnt(names, ignore)
        return MaskCode(_table(number, ignore), named=named_in.name), labels, findings
    return _from_values(files, ignore)


def sample_finding(masks: Sequence[MaskFile]) -> list[Finding]:
    """Values that are no class in half of a few masks, or more: every mask would be left out, or nearly."""
    step = max(1, len(masks) // SAMPLE)
    problems = [(mask, problem) for mask in masks[::step] if (problem := _problem(mask)) is not None]
    if not problems or 2 * len(problems) < len(masks[::step]):
        return []
    first = problems[0][1]
    whole, _, advice = first.why.partition(": ")
    title = f"{len(problems)} of {counted(len(masks[::step]), 'mask')} looked into cannot be used: each {whole}"
    examples = tuple(Example((mask.path,), problem.why) for mask, problem in problems)
    return [Finding("unknown-class-index", "error", title, advice or "mend them", len(problems), examples)]


# ---- parts


def _learnt(names: dict[int, str], ignore: int) -> tuple[tuple[str, ...], dict[int, int], list[Finding]]:
    """The classes without those that are not learnt; index -> class number, or IGNORE."""
    void = {index for index, name in names.items() if name.casefold() in VOID} if ignore == CHOSEN else {ignore}
    labels = [name for index, name in sorted(names.items()) if index not in void]
    if not labels or len(labels) > MOST or max(names) > 255:
        raise VitrailError(f"masks have 1 to {MOST} classes with indices up to 255, not {len(labels)}")
    place = {name: number for number, name in enumerate(labels)}
    number = {index: IGNORE if index in void else place[name] for index, name in names.items()}
    left = [names[index] for index in sorted(void & names.keys())]
    if not left:
        return tuple(labels), number, []
    title = f"{listing(left, 5)} {'is' if len(left) == 1 else 'are'} not learnt"
    advice = "nothing to do, if that is meant; say which index to ignore otherwise"
    return tuple(labels), number, [Finding("void-class", "note", title, advice, len(left))]


def _table(number: dict[int, int], ignore: int) -> bytes:
    table = [UNKNOWN] * 256
    table[IGNORE] = IGNORE
    if ignore != CHOSEN:
        table[ignore] = IGNORE
    for index, value in number.items():
        table[index] = value
    return bytes(table)


def _from_values(files: Sequence[Path], ignore: int) -> Said:
    """Without names, every value that occurs is a class of that name. Black and white is background and object."""
    values = sorted(set().union(*in_threads(_values, files)))
    labels: tuple[str, ...]
    if set(values) == {0, 255} and ignore == CHOSEN:
        number, labels = {0: 0, 255: 1}, ("background", "object")
    else:
        learnt = [value for value in values if value not in ((255,) if ignore == CHOSEN else (255, ignore))]
        number, labels = {value: place for place, value in enumerate(learnt)}, tuple(str(value) for value in learnt)
    if not labels or len(labels) > MOST or values[-1] > 255:
        raise VitrailError(
            f"the masks hold {counted(len(values), 'value')} up to {values[-1] if values else 0}: "
            f"indices of at most {MOST} classes are needed, or a file of colours that says what theirs mean"
        )
    title = f"no file names the classes: they are called {listing(labels, 5)}"
    advice = "put a file classes.txt beside the folders, one name a line in the order of the indices"
    unnamed = Finding("unnamed-classes", "note", title, advice, len(labels))
    return MaskCode(_table(number, ignore), named="this set"), labels, [unnamed]


def _values(path: Path) -> set[int]:
    try:
        return set(np.unique(load_values(read_file(path), str(path), by_colour=False)).tolist())
    except UnreadableImage as error:
        if error.kind == "not a mask":
            raise VitrailError(str(error)) from None
        return set()  # broken: reported where masks are read


def _problem(mask: MaskFile) -> UnreadableImage | None:
    try:
        mask.read()
    except UnreadableImage as error:
        return error if error.kind in ("unknown class", "not a mask") else None
    return None
