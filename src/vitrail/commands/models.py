"""`vitrail models [WORD]`: published models to start from, by the short names that every command takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

from vitrail.commands.shell import Argument
from vitrail.errors import VitrailError
from vitrail.options import Option
from vitrail.terminal import print_text, table

if TYPE_CHECKING:
    from vitrail.weights.published import PublishedModel


def models(word: str | None = None) -> list[PublishedModel]:
    """The published models that can be loaded by a short name; with `word`, those that hold it in any column."""
    from vitrail.weights.published import published_models, search_published

    return list(published_models().values()) if word is None else search_published(word)


def run_models(
    word: Annotated[str | None, Argument("a part of a name, a family, a licence or a use", "[WORD]")] = None,
    json: Annotated[bool, Option("print JSON")] = False,
) -> None:
    """Lists published models to start from. A name of this list stands for the hub id beside it wherever a model is
    taken: 'vitrail train photos --out runs/first --from dinov2-s'.
    """
    from vitrail.text import json_text

    found = models(word)
    if json:
        print_text(json_text([model.to_dict() for model in found], indent=2))
    elif not found:
        raise VitrailError(f"no published model holds {word!r} in its name, family, licence or use: leave it out")
    else:
        print_text(as_text(found))


def as_text(found: Sequence[PublishedModel]) -> str:
    """Models under a line that says what those of a family have in common."""
    parts = []
    for shared, group in groupby(found, lambda model: (model.family, model.pretraining, model.licence, model.use)):
        family, pretraining, licence, use = shared
        rows = [
            [model.name, model.hub_id, f"{model.parameters / 1e6:.1f} M", f"{model.image_size} px"] for model in group
        ]
        parts.append(f"{family}: {pretraining}; {licence}\n  for {use}\n{table(rows, left=2, header=False)}")
    parts.append("parameters are those of the network without its head; --from NAME fine-tunes one of them")
    return "\n\n".join(parts)
