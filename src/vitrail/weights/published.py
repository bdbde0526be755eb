"""Published starting points by a short name: `dinov2-s` is a hub id, with what one wants to know before a download.

The table is published.csv. None of its models is gated; a licence that forbids commercial use says so.
"""

from __future__ import annotations

import csv
import difflib
import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

from vitrail.errors import VitrailError
from vitrail.model.presets import preset_names
from vitrail.text import joined

NON_COMMERCIAL = "non-commercial"  # stands in the licence of such a model


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """One row of the table."""

    name: str
    hub_id: str
    family: str
    parameters: int  # of the network without its head
    image_size: int  # pixels a side that it was published at
    pretraining: str
    licence: str
    use: str  # what it is good for

    @property
    def commercial(self) -> bool:
        """Whether its licence allows commercial use."""
        return NON_COMMERCIAL not in self.licence

    def to_dict(self) -> dict[str, Any]:
        """Its columns by name, as JSON has them."""
        return asdict(self)


@functools.cache
def published_models() -> Mapping[str, PublishedModel]:
    """Every row by its short name, in the order of the table."""
    text = resources.files("vitrail.weights").joinpath("published.csv").read_text(encoding="utf-8")
    models = {}
    for row in csv.DictReader(text.splitlines()):
        columns: dict[str, Any] = {**row, "parameters": int(row["parameters"]), "image_size": int(row["image_size"])}
        models[row["name"]] = PublishedModel(**columns)
    return MappingProxyType(models)


def search_published(word: str) -> list[PublishedModel]:
    """The rows that hold a word in any column, in capitals or not."""
    wanted = word.casefold()
    return [
        model
        for model in published_models().values()
        if any(wanted in str(value).casefold() for value in model.to_dict().values())
    ]


def no_such_model(text: str) -> VitrailError:
    """The sentence for a name that is no file, no folder, no preset, no published model and no hub id."""
    names = {name.casefold(): name for name in (*preset_names(), *published_models())}
    close = difflib.get_close_matches(text.casefold(), names, n=3)
    hint = f"did you mean {joined([names[name] for name in close]).replace(' and ', ' or ')}? " if close else ""
    return VitrailError(
        f"there is no file, folder, preset or published model {text!r}: {hint}'vitrail models' lists the published "
        "ones, and a hub id looks like owner/name"
    )
