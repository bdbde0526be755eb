"""What a pile of images looks like to a model: near-duplicates, clusters, outliers, and a map of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.progress import ProgressBar
from vitrail.search.nearest_neighbours import Vectors, neighbours_of_all
from vitrail.search.pile.clusters import Clusters, find_clusters
from vitrail.search.pile.image_pile import Pile
from vitrail.search.pile.near_duplicates import near_duplicates
from vitrail.search.pile.projection import NEIGHBOURS, Map, project
from vitrail.text import counted, shown

LONELY = 10  # neighbours whose mean distance makes an outlier
TYPICAL = 10  # images that stand for a cluster
OUTLIERS = 60  # at most; and no more than one in twenty


@dataclass(frozen=True)
class Exploration:
    """Everything is by the place of an image in the pile of those that could be read."""

    pile: Pile
    map: Map  # (N, 2)
    clusters: Clusters
    typical: list[list[int]]  # of each cluster, the most typical first
    near_duplicates: list[list[int]]  # the closest group first
    distance: NDArray[np.float32]  # (N,) mean cosine distance to the nearest neighbours
    outliers: list[int]  # the farthest first
    unreadable: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def name(self, place: int) -> str:
        """The path as it is shown."""
        return shown(self.pile.paths[place], self.pile.root)

    def classes_of(self, places: Sequence[int]) -> dict[str, int]:
        """How many of these images have each class, most first; {} where there are no classes."""
        if self.pile.classes is None:
            return {}
        return {
            self.pile.labels[number]: count
            for number, count in Counter(self.pile.classes[places].tolist()).most_common()
        }

    def members(self, cluster: int) -> list[int]:
        """The places of a cluster's images."""
        return np.flatnonzero(self.clusters.number == cluster).tolist()

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON. Files are named as they were given."""
        return {
            "images": len(self.pile.paths),
            "clusters": [
                {
                    "images": len(members := self.members(number)),
                    "typical": [str(self.pile.paths[place]) for place in typical],
                    "classes": self.classes_of(members),
                }
                for number, typical in enumerate(self.typical)
            ],
            "silhouettes": {str(number): value for number, value in self.clusters.silhouettes.items()},
            "near_duplicates": [[str(self.pile.paths[place]) for place in group] for group in self.near_duplicates],
            "outliers": [
                {"image": str(self.pile.paths[place]), "distance": float(self.distance[place])}
                for place in self.outliers
            ],
            "unreadable": self.unreadable,
            "notes": self.notes,
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row an image: where it is on the map, its cluster, its group of near-duplicates and how lonely it is."""
        group_of = {place: number for number, group in enumerate(self.near_duplicates) for place in group}
        return [
            {
                "image": str(path),
                "x": round(float(self.map[place, 0]), 4),
                "y": round(float(self.map[place, 1]), 4),
                "cluster": int(self.clusters.number[place]),
                "near_duplicates": group_of.get(place, ""),
                "distance": round(float(self.distance[place]), 5),
                **({} if self.pile.classes is None else {"label": self.pile.labels[self.pile.classes[place]]}),
            }
            for place, path in enumerate(self.pile.paths)
        ]

    def __str__(self) -> str:
        return _text(self)


def explore_vectors(vectors: Vectors, pile: Pile, clusters: int | None = None, seed: int = 0) -> Exploration:
    """Look at the vectors (N, D) of a pile's images. clusters: how many; None: chosen by measurement."""
    neighbours = neighbours_of_all(vectors, max(NEIGHBOURS, LONELY))
    found = find_clusters(vectors, clusters, seed)
    groups = near_duplicates(neighbours)
    near = neighbours.similarity[:, :LONELY]
    distance = 1 - near.mean(axis=1) if near.shape[1] else np.zeros(len(vectors), np.float32)
    most = min(OUTLIERS, len(vectors) // 20)
    with ProgressBar("drawing the map", unit="steps") as bar:
        drawn = project(vectors, neighbours, seed, bar.update)
    return Exploration(
        pile=pile,
        map=drawn,
        clusters=found,
        typical=_typical(found, groups),
        near_duplicates=groups,
        distance=distance.astype(np.float32),
        outliers=np.argsort(-distance, kind="stable")[:most].tolist(),
    )


def _typical(clusters: Clusters, groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """Of each cluster those nearest to its centre, no two of which are near-duplicates."""
    group_of = {place: -1 - number for number, group in enumerate(groups) for place in group}
    typical: list[list[int]] = []
    order = np.argsort(-clusters.similarity, kind="stable")
    for number in range(clusters.count):
        chosen: dict[int, int] = {}  # by group, so that the first of each is kept
        for place in order[clusters.number[order] == number].tolist():
            chosen.setdefault(group_of.get(place, place), place)
            if len(chosen) == TYPICAL:
                break
        typical.append(list(chosen.values()))
    return typical


def _text(found: Exploration) -> str:
    """What `vitrail explore` prints."""
    doubled = sum(len(group) - 1 for group in found.near_duplicates)
    lines = [
        f"{counted(len(found.pile.paths), 'image')}, {counted(found.clusters.count, 'cluster')}, "
        f"{counted(len(found.near_duplicates), 'group')} of near-duplicates ({counted(doubled, 'image')} more than "
        f"needed), {counted(len(found.outliers), 'outlier')}",
        *(f"  {note}" for note in found.notes),
    ]
    if found.unreadable:
        lines.append(f"  {counted(len(found.unreadable), 'image')} could not be read and did not count")
    lines += ["", "clusters, by a typical image"]
    for number, typical in enumerate(found.typical):
        members = found.members(number)
        mostly = next(iter(found.classes_of(members).items()), None)
        share = f"  {100 * mostly[1] / len(members):.0f} % {shown(mostly[0])}" if mostly else ""
        lines.append(f"  {number + 1:>3}  {len(members):>8,}  {found.name(typical[0])}{share}")
    if found.outliers:
        lines += ["", "farthest from all others"]
        lines += [f"  {found.distance[place]:.3f}  {found.name(place)}" for place in found.outliers[:10]]
    if found.near_duplicates:
        lines += ["", "nearly the same"]
        lines += [f"  {', '.join(map(found.name, group[:4]))}" for group in found.near_duplicates[:10]]
    return "\n".join(lines)
