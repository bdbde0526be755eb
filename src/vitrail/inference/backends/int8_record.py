"""What is known of a network in int8: its figures travel in the file of its graph."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitrail.inference.backends.graph_cache import ENDING, GraphCache
from vitrail.inference.calibration.calibration_file import AT_HAND
from vitrail.text import counted

INT8 = "-int8"  # in the name of a graph


def graph_name(graph_format: str, size: tuple[int, int], is_int8: bool, gives_pooled: bool) -> str:
    """What a graph is called in the cache."""
    return f"{graph_format}{INT8 if is_int8 else ''}-{size[0]}x{size[1]}{'-pooled' if gives_pooled else ''}"


def int8_words(record: dict[str, Any]) -> str:
    """One line: what it loses, and on what that was measured."""
    loss = record["loss"]
    largest = loss["largest_probability_difference"]
    difference = "" if largest is None else f", largest difference of a probability {largest:.2g}"
    held_out = counted(record["held_out"], "picture")
    return f"int8 loses {loss['points']:.2f} points of {loss['metric']} on {held_out}{difference}"


def calibrated_on(record: dict[str, Any], measured: Sequence[str | Path]) -> str:
    """One line: what it was calibrated on, and whether that may be among the images that it is measured on."""
    note, folder = f"int8 was calibrated on {record['calibration']}", record.get("folder")
    same = record["calibration"].endswith(AT_HAND)
    if folder is not None:
        same = any(Path(folder) in Path(os.path.abspath(path)).parents for path in measured)
    if not same:
        return note
    return f"{note}, which may be among these images: it is flattered on the same ones, so name others (--calibration)"


def int8_graphs(fingerprint: str) -> list[str]:
    """The names of the graphs in int8 that are kept here for a network."""
    return sorted(path.name.removesuffix(ENDING) for path in GraphCache(fingerprint).folder.glob(f"*{INT8}-*{ENDING}"))


def int8_records(fingerprint: str) -> list[dict[str, Any]]:
    """Their figures, each with its format."""
    cache = GraphCache(fingerprint)
    records = []
    for name in int8_graphs(fingerprint):
        parts = cache.read(name)
        if parts is not None:
            records.append(json.loads(bytes(parts[-1])) | {"format": name.partition(INT8)[0]})
    return records
