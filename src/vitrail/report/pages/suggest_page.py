"""The page of `vitrail suggest`: the images to label next, in order, with what the model takes them for."""

from __future__ import annotations

import numpy as np

from vitrail.report.pages.rendering import made, render
from vitrail.search.pile.suggestion import Suggestion
from vitrail.text import counted, shown
from vitrail.threads import in_threads
from vitrail.visuals.thumbnails import thumbnail

PICTURE = 160  # pixels


def page(found: Suggestion, *, model: str, pile: str) -> str:
    """As HTML. Names of files and classes are text, whatever they contain."""
    pictures = in_threads(lambda place: thumbnail(found.pile.paths[place], PICTURE), found.places)
    return render(
        "suggest.html",
        name=f"{counted(len(found.places), 'image')} to label next",
        subtitle=f"of {counted(len(found.pile.paths), 'image')} of {shown(pile)}, by {shown(model)}",
        tiles=_tiles(found),
        notes=found.notes,
        images=[
            {
                "number": number,
                "name": shown(found.pile.paths[place], found.pile.root),
                "picture": picture,
                "answer": found.answers.get(place, ""),
                "width": "" if found.uncertainty is None else f"{100 * found.uncertainty[place]:.0f}",
            }
            for number, (place, picture) in enumerate(zip(found.places, pictures, strict=True), start=1)
        ],
        files=[shown(found.pile.paths[place]) for place in found.places],
        made=f"{made()}.",
    )


def _tiles(found: Suggestion) -> list[tuple[str, str]]:
    tiles = [(f"{len(found.places):,}", "suggested"), (f"{len(found.pile.paths):,}", "in the pile")]
    if found.uncertainty is not None and found.places:
        chosen, usual = found.uncertainty[found.places].mean(), np.mean(found.uncertainty)
        tiles += [(f"{chosen:.2f}", "their mean uncertainty"), (f"{usual:.2f}", "that of the pile")]
    return tiles
