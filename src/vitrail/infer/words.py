"""An answer as one line of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def in_words(answer: Mapping[str, Any]) -> str:
    """'cat 93.1 %, dog 5.0 %', or 'age 31.2, weight 4.1' for numbers; of any number of labels those that were given."""
    if "values" in answer:
        return ", ".join(f"{name} {value:.6g}" for name, value in answer["values"].items())
    if "labels" not in answer:
        return _guesses(answer["top"])
    given = len(answer["labels"])
    return _guesses(answer["top"][:given]) if given else f"no label (at best {_guesses(answer['top'][:1])})"


def _guesses(guesses: list[dict[str, Any]]) -> str:
    return ", ".join(f"{guess['label']} {100 * guess['probability']:.1f} %" for guess in guesses)
