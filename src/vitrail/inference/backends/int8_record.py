"""What is known of a network in int8: its figures travel in the file of its graph."""

from __future__ import annotations

import json
from typing import Any

from vitrail.inference.backends.graph_cache import ENDING, GraphCache
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
