"""How a setting is declared, checked and written: the mechanism behind settings.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any

from vitrail.errors import VitrailError

Choices = Sequence[str] | Callable[[], Sequence[str]]
TYPE_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def setting(
    default: Any, doc: str, *, choices: Choices = (), low: float | None = None, high: float | None = None
) -> Any:
    """A setting with a usual value."""
    rules = {"type": type(default), "doc": doc, "choices": choices, "low": low, "high": high, "unset": None}
    return field(default=default, metadata=rules)


def optional(
    unset: Any,
    doc: str,
    *,
    choices: Choices = (),
    spellings: Mapping[str, str] | None = None,
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """A setting that is None until it is set. `unset`: how earlier versions spelled that; it also tells the type.
    `spellings`: other names of its choices."""
    rules = {"type": type(unset), "doc": doc, "choices": choices, "low": low, "high": high, "unset": unset}
    return field(default=None, metadata={**rules, "spellings": spellings or {}})


@dataclass(frozen=True, kw_only=True)
class Section:
    """A group of settings. Whole numbers become floats where fractions are allowed, earlier spellings of unset None,
    other spellings of a choice that choice."""

    def __post_init__(self) -> None:
        for item in fields(self):
            object.__setattr__(self, item.name, _normalised(item, getattr(self, item.name)))


def _normalised(item: Field[Any], value: Any) -> Any:
    kind, unset = item.metadata["type"], item.metadata["unset"]
    if kind is float and type(value) is int and abs(value) <= 2**53:  # beyond, a float is another number
        value = float(value)
    if isinstance(value, str):
        value = item.metadata.get("spellings", {}).get(value, value)
    return None if unset is not None and type(value) is kind and value == unset else value


def check_field(name: str, item: Field[Any], value: Any) -> None:
    """Refuse a value of the wrong type or outside of what is allowed."""
    if value is None and item.default is None:
        return
    kind, low, high = (item.metadata[key] for key in ("type", "low", "high"))
    if type(value) is not kind:
        raise VitrailError(f"{name} is {TYPE_NAMES[kind]}, not {value!r}")
    choices = choice_names(item)
    if choices and value not in choices:
        raise VitrailError(f"{name} is {value!r}; choose one of {', '.join(choices)}")
    if low is not None and not value >= low:
        raise VitrailError(f"{name} is {value}; it must be at least {low:g}")
    if high is not None and value > high:
        raise VitrailError(f"{name} is {value}; it must be at most {high:g}")


def choice_names(item: Field[Any]) -> tuple[str, ...]:
    """What a setting may be, where it has choices; "auto", which stands for unset, first."""
    choices, unset = item.metadata["choices"], item.metadata["unset"]
    names = tuple(choices() if callable(choices) else choices)
    return (unset, *names) if unset and names else names


def as_toml(item: Field[Any], value: Any) -> list[str]:
    """The lines of one setting: its meaning, then its value, commented out where there is none."""
    choices = choice_names(item)
    meaning = f"# {item.metadata['doc']}" + (f" ({', '.join(choices)})" if choices else "")
    if value is None:
        return [meaning, f"# {item.name} = (not set)"]
    text = repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)  # JSON has no inf
    return [meaning, f"{item.name} = {text}"]
