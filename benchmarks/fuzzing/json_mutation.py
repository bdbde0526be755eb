"""JSON is changed as JSON: of random bytes, next to none are."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from typing import Any

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**62, 2**63, 10**30, 0.5, -0.0, 1e-300, 1e308, float("nan"), float("inf")),
    *(10**400, -(10**400), 10**3000, 10**4299),  # beyond every float; its square cannot be printed; nor what follows it
    *("", "a", "0", "\ud800", "\x1b[2J", "../..", "a\0b", "x" * 300, "9" * 300, [], {}, [[]], [{}], {"a": 1}),
)


def mutate_json(data: bytes, longest: int, seed: int) -> bytes:
    """One to four values replaced by odd ones or by each other, left out, or doubled."""
    chance = random.Random(seed)
    first, mark, rest = data.partition(b"\0")
    try:
        content = json.loads(first)
    except (ValueError, RecursionError):
        return mutate_bytes(data, longest)
    for _ in range(chance.randint(1, 4)):
        places = [*places_in(content)]
        if not places or chance.random() < 0.1:
            return mutate_bytes(data, longest)
        holder, key = chance.choice(places)
        other, other_key = chance.choice(places)
        value = chance.choice((*VALUES, other[other_key], chance.randint(-1000, 1000)))
        if chance.random() < 0.1:
            del holder[key]
        elif isinstance(holder, list) and chance.random() < 0.2:
            holder += [value] * chance.choice((1, 2, 30))
        else:
            holder[key] = value
        with contextlib.suppress(ValueError, RecursionError):  # a value that now holds itself
            first = json.dumps(content).encode()
        content = json.loads(first)
    return (first + mark + rest)[:longest]


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every list and object inside with every key."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places_in(value[key])


def mutate_bytes(data: bytes, longest: int) -> bytes:
    import atheris

    return bytes(atheris.Mutate(data, longest))
