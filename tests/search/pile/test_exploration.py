"""What is told of a pile: typical images, outliers, rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.search.pile.blobs import blobs
from vitrail.search.pile.exploration import explore_vectors
from vitrail.search.pile.image_pile import Pile


def pile_of(count: int, classes: np.ndarray | None = None) -> Pile:
    return Pile(Path("pile"), [Path(f"pile/{number}.png") for number in range(count)], classes, ("a", "b", "c"))


def test_typical_images_are_no_copies_of_one_another_and_outliers_come_first() -> None:
    vectors, classes = blobs(3, 40, noise=0)
    vectors += 0.4 * np.random.default_rng(0).normal(size=vectors.shape).astype(np.float32)
    centre = vectors[:40].mean(0)
    vectors[:3] = centre + 1e-4 * np.arange(3)[:, None]  # three copies of the most typical image
    stranger = 9 * np.eye(32, dtype=np.float32)[:1]
    found = explore_vectors(np.concatenate([vectors, stranger]), pile_of(121, np.append(classes, 0)), clusters=3)
    own = found.typical[int(found.clusters.number[0])]
    assert len(set(own) & {0, 1, 2}) == 1 and own[0] in {0, 1, 2} and len(own) == 10
    assert found.outliers[0] == 120 and len(found.outliers) == 6
    assert [0, 1, 2] in found.near_duplicates
    assert sum(len(found.members(number)) for number in range(3)) == 121
    largest = max(
        found.classes_of(found.members(number))["a"]
        for number in range(3)
        if "a" in found.classes_of(found.members(number))
    )
    assert largest >= 40


def test_what_is_told_fits_json_and_a_table() -> None:
    found = explore_vectors(blobs(2, 10)[0], pile_of(20), clusters=2)
    told = json.loads(json.dumps(found.to_dict()))
    assert told["images"] == 20 and [cluster["images"] for cluster in told["clusters"]] == [10, 10]
    assert told["clusters"][0]["classes"] == {} and len(told["outliers"]) == 1
    rows = found.rows()
    assert len(rows) == 20 and rows[3]["image"] == "pile/3.png" and "label" not in rows[3]
    assert "20 images, 2 clusters" in str(found)


def test_one_image_is_a_pile() -> None:
    found = explore_vectors(np.ones((1, 4), np.float32), pile_of(1))
    assert found.near_duplicates == [] and found.outliers == [] and found.typical == [[0]] and "1 image" in str(found)
