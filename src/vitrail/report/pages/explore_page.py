"""The page of `vitrail explore`: a map of all images under the pointer, clusters, near-duplicates and outliers.

The page needs no other file, so it has to stay small enough to open. Places, classes and clusters take a few bytes an
image. Small pictures, which take most, are packed into sheets, for THUMBNAILS images at most: first those that the
lists show, then some of every region of the map. The others are known by their paths.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from vitrail.progress import ProgressBar
from vitrail.report.pages.rendering import made, render
from vitrail.search.pile.exploration import Exploration
from vitrail.text import counted, shown
from vitrail.threads import in_threads
from vitrail.visuals.palette import hexadecimal, palette
from vitrail.visuals.picture_sheets import COLUMNS, SIDE, Small, picture_sheets, small_picture
from vitrail.visuals.thumbnails import thumbnail

SCRIPT = (Path(__file__).parents[1] / "templates" / "explore.js").read_text(encoding="utf-8")
THUMBNAILS = 6000  # on the map: at 64 pixels about 9 MB of the page
PICTURE = 128  # pixels of a picture in the lists
CLUSTERS, GROUPS, FILES, OUTLIERS = 64, 40, 6, 60  # that the lists show
LEVELS = 65535  # of a place on the map


def page(found: Exploration, *, model: str, data: str, thumbnails: int = THUMBNAILS) -> str:
    """As HTML. Names of files and classes are text, whatever they contain; the script is known by its digest."""
    listed = _listed(found)
    with ProgressBar("small pictures", len(listed)) as bar:
        large = in_threads(lambda n: thumbnail(found.pile.paths[n], PICTURE), listed, None, bar.update)
    pictures = dict(zip(listed, large, strict=True))
    mapped = choose_pictures(found, listed, thumbnails)
    with ProgressBar("pictures of the map", len(mapped)) as bar:
        small = in_threads(lambda n: small_picture(found.pile.paths[n]), mapped, None, bar.update)
    return render(
        "explore.html",
        name=shown(Path(data).absolute().name or data),
        subtitle=f"{counted(len(found.pile.paths), 'image')} as {shown(model)} sees them",
        tiles=_tiles(found),
        notes=_notes(found, len(mapped)),
        data=Markup(json.dumps(_data(found, mapped, small)).replace("<", "\\u003c")),
        sheets=picture_sheets(small),
        clusters=_clusters(found, pictures),
        more_clusters=max(0, found.clusters.count - CLUSTERS),
        groups=_groups(found, pictures),
        more_groups=max(0, len(found.near_duplicates) - GROUPS),
        outliers=[_picture(found, place, pictures, f"{found.distance[place]:.3f}") for place in found.outliers],
        classes=found.pile.classes is not None,
        unreadable=[{"name": shown(row["image"]), "why": row["error"]} for row in found.unreadable[:40]],
        script=Markup(SCRIPT),
        digest=base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode(),
        made=f"{made()}.",
    )


def choose_pictures(found: Exploration, listed: Sequence[int], most: int) -> list[int]:
    """Places of the images that get a small picture on the map: all, or the listed ones and then some of every region,
    the emptiest regions first, so that whatever one zooms into shows something."""
    if len(found.pile.paths) <= most:
        return list(range(len(found.pile.paths)))
    side = max(1, int(np.sqrt(most)))
    scaled = ((found.map - found.map.min(0)) / np.maximum(np.ptp(found.map, axis=0), 1e-9) * (side - 1)).astype(int)
    order = np.lexsort((scaled[:, 1], scaled[:, 0]))
    cell = (scaled[:, 0] * side + scaled[:, 1])[order]
    first = np.concatenate([[True], cell[1:] != cell[:-1]])
    begins = np.maximum.accumulate(np.where(first, np.arange(len(cell)), 0))
    turn = np.arange(len(cell)) - begins  # the first image of every region, then the second ones, and so on
    chosen = dict.fromkeys([*listed[:most], *order[np.argsort(turn, kind="stable")].tolist()])
    return sorted(list(chosen)[:most])


# ---- parts


def _listed(found: Exploration) -> list[int]:
    """Places of the images in the lists, each once."""
    typical = [place for places in found.typical[:CLUSTERS] for place in places]
    groups = [place for group in found.near_duplicates[:GROUPS] for place in group[:FILES]]
    return list(dict.fromkeys([*typical, *groups, *found.outliers[:OUTLIERS]]))


def _tiles(found: Exploration) -> list[tuple[str, str]]:
    doubled = sum(len(group) - 1 for group in found.near_duplicates)
    tiles = [
        counted(len(found.pile.paths), "image"),
        counted(found.clusters.count, "cluster"),
        counted(len(found.near_duplicates), "group of near-duplicates", "groups of near-duplicates"),
        counted(doubled, "image that could go", "images that could go"),
        counted(len(found.outliers), "outlier"),
    ]
    split = [tile.partition(" ") for tile in tiles]
    return [(number, noun) for number, _, noun in split] + (
        [(f"{len(found.unreadable):,}", "unreadable")] if found.unreadable else []
    )


def _notes(found: Exploration, pictured: int) -> list[str]:
    if pictured == len(found.pile.paths):
        return list(found.notes)
    rest = f"{pictured:,} of {len(found.pile.paths):,} images have a small picture here; the others show their paths"
    return [*found.notes, rest]


def _data(found: Exploration, mapped: Sequence[int], small: Sequence[Small]) -> dict[str, Any]:
    """What the script needs of every image."""
    span = max(float(np.ptp(found.map, axis=0).max()), 1e-9)
    places = ((found.map - found.map.min(0)) / span * LEVELS).round().astype("<u2")
    names = [found.name(place) for place in range(len(found.pile.paths))]
    folders = sorted({name.rpartition("/")[0] for name in names})
    number_of = {folder: number for number, folder in enumerate(folders)}
    picture = np.full(len(names), -1, "<i4")
    picture[list(mapped)] = np.arange(len(mapped))
    group = np.zeros(len(names), "<u4")
    for number, places_of in enumerate(found.near_duplicates, start=1):
        group[places_of] = number
    rank = np.argsort(np.argsort(found.distance, kind="stable"), kind="stable")
    return {
        "x": _packed(places[:, 0]),
        "y": _packed(places[:, 1]),
        "folders": folders,
        "folder": _packed(np.array([number_of[name.rpartition("/")[0]] for name in names], "<u4")),
        "names": [name.rpartition("/")[2] for name in names],
        "cluster": _packed(found.clusters.number.astype("<u2")),
        "clusterColours": _colours([str(number) for number in range(found.clusters.count)]),
        "class": None if found.pile.classes is None else _packed(found.pile.classes.astype("<u2")),
        "classes": [shown(label) for label in found.pile.labels],
        "classColours": _colours(found.pile.labels),
        "group": _packed(group),
        "lonely": _packed((255 * rank / max(1, len(rank) - 1)).astype("u1")),
        "picture": _packed(picture),
        "sizes": _packed(np.array([[one.shape[1], one.shape[0]] for one in small], "u1")),
        "side": SIDE,
        "columns": COLUMNS,
    }


def _packed(values: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def _colours(labels: Sequence[str]) -> list[str]:
    return [hexadecimal(colour) for colour in palette(labels)]


def _clusters(found: Exploration, pictures: dict[int, str | None]) -> list[dict[str, Any]]:
    colours = _colours([str(number) for number in range(found.clusters.count)])
    cards = []
    for number, typical in enumerate(found.typical[:CLUSTERS]):
        members = found.members(number)
        shares = [
            f"{shown(label)} {100 * count / len(members):.0f} %"
            for label, count in list(found.classes_of(members).items())[:3]
        ]
        cards.append(
            {
                "number": number,
                "colour": colours[number],
                "title": f"Cluster {number + 1}",
                "size": counted(len(members), "image"),
                "shares": ", ".join(shares),
                "pictures": [_picture(found, place, pictures) for place in typical],
            }
        )
    return cards


def _groups(found: Exploration, pictures: dict[int, str | None]) -> list[dict[str, Any]]:
    return [
        {
            "number": number,
            "pictures": [_picture(found, place, pictures) for place in group[:FILES]],
            "more": max(0, len(group) - FILES),
            "differ": len(found.classes_of(group)) > 1,
            "classes": " / ".join(map(shown, found.classes_of(group))),
        }
        for number, group in enumerate(found.near_duplicates[:GROUPS], start=1)
    ]


def _picture(found: Exploration, place: int, pictures: dict[int, str | None], remark: str = "") -> dict[str, Any]:
    return {"place": place, "name": found.name(place), "picture": pictures.get(place), "remark": remark}
