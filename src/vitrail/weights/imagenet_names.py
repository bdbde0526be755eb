"""The names of ImageNet's classes, for published weights whose files do not name them."""

from __future__ import annotations

import functools
import gzip
import re
from pathlib import Path

# A number of outputs that a published model has -> the set of classes, and the marks of its names in the large file.
SETS = {
    1000: ("ImageNet-1k", ()),
    11821: ("ImageNet-12k", ("12k",)),
    21841: ("ImageNet-22k", ("12k", "22k")),
    21843: ("ImageNet-21k", ("12k", "22k", "21k")),
}


def name_outputs(labels: list[str] | None, classes: int) -> tuple[list[str] | None, list[str]]:
    """The labels, or ImageNet's where a file has none or only transformers' LABEL_0, LABEL_1, ...; and a note on it."""
    unnamed = labels is None or all(re.fullmatch(rf"LABEL_{i}", label) for i, label in enumerate(labels))
    if not unnamed or classes not in SETS:
        return labels, []
    note = f"the file names none of its {classes:,} outputs: the names are those of {SETS[classes][0]}"
    return imagenet_names(classes), [f"{note}, which its number of outputs is that of"]


@functools.cache
def _lines(file: str) -> tuple[str, ...]:
    data = (Path(__file__).parent / file).read_bytes()
    text = (gzip.decompress(data) if file.endswith(".gz") else data).decode()
    return tuple(line for line in text.splitlines() if not line.startswith("#"))


def imagenet_names(classes: int) -> list[str]:
    """The names of 1,000, 11,821, 21,841 or 21,843 classes, in the order of a published model's outputs."""
    marks = SETS[classes][1]
    if not marks:
        return list(_lines("imagenet_1k.txt"))
    pairs = (line.split("\t", 1) for line in _lines("imagenet_21k.txt.gz"))
    return [name for mark, name in pairs if mark in marks]
