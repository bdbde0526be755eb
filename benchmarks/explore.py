"""What `vitrail explore` costs for 100,000 images: time, memory and the size of its page.

    python benchmarks/explore.py PHOTOS [--images 100000] [--width 192]    minutes on 2 cores

The vectors are generated, in clusters, because computing real ones is what `vitrail embed` is measured by. The files
are links to the photos of a folder, so that the page has real pictures. Seconds are those of the processor (user time),
and so do not depend on what else the machine does. The table is written to benchmarks/results/explore.md.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from training.results import table_row
from vitrail.inference.sources import images_of
from vitrail.report.pages import explore_page
from vitrail.search.nearest_neighbours import neighbours_of_all
from vitrail.search.pile.clusters import find_clusters
from vitrail.search.pile.exploration import Exploration
from vitrail.search.pile.image_pile import Pile
from vitrail.search.pile.near_duplicates import near_duplicates
from vitrail.search.pile.projection import NEIGHBOURS, project

RESULTS = Path(__file__).parent / "results" / "explore.md"


def vectors_in_clusters(images: int, width: int, clusters: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """(N, D) around random directions, each cluster on a sheet of five dimensions; and the cluster of each."""
    rng = np.random.default_rng(0)
    centres, sheets = rng.normal(size=(clusters, width)), rng.normal(size=(clusters, 5, width))
    cluster = rng.integers(clusters, size=images)
    vectors = np.empty((images, width), np.float32)
    for number in range(clusters):
        own = np.flatnonzero(cluster == number)
        inside = rng.normal(size=(len(own), 5)) @ sheets[number]
        vectors[own] = centres[number] + 0.3 * inside + 0.1 * rng.normal(size=(len(own), width))
    return vectors, cluster


def linked_photos(photos: Path, folder: Path, classes: np.ndarray) -> list[Path]:
    files = list(images_of(photos))
    paths = []
    for number, label in enumerate(classes):
        path = folder / f"class-{label:03d}" / f"IMG_{number:06d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(Path(files[number % len(files)]).absolute())
        paths.append(path)
    return paths


class Steps:
    """The seconds and the memory of each step."""

    def __init__(self) -> None:
        self.rows: list[str] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        begun = time.process_time()
        yield
        seconds = time.process_time() - begun
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
        self.rows.append(table_row(*[name, f"{seconds:.0f} s", f"{peak:.1f} GB"]))
        print(self.rows[-1], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos")
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=192)
    given = parser.parse_args()
    vectors, classes = vectors_in_clusters(given.images, given.width)
    steps = Steps()
    with steps.step("exact neighbours, 15 of each"):
        neighbours = neighbours_of_all(vectors, NEIGHBOURS)
    with steps.step("near-duplicates"):
        groups = near_duplicates(neighbours)
    with steps.step("clusters"):
        clusters = find_clusters(vectors)
    with steps.step("map"):
        drawn = project(vectors, neighbours)
    with tempfile.TemporaryDirectory() as folder:
        labels = tuple(f"class-{number:03d}" for number in range(classes.max() + 1))
        pile = Pile(Path(folder), linked_photos(Path(given.photos), Path(folder), classes), classes, labels)
        distance = 1 - neighbours.similarity[:, :10].mean(1)
        typical = [np.flatnonzero(clusters.number == number)[:10].tolist() for number in range(clusters.count)]
        outliers = np.argsort(-distance)[:60].tolist()
        with steps.step("page"):
            found = Exploration(pile, drawn, clusters, typical, groups, distance, outliers)
            size = len(explore_page.page(found, model="model", data=folder).encode())
    write(given.images, given.width, steps, size, same_cluster(drawn, classes))


def same_cluster(drawn: np.ndarray, classes: np.ndarray) -> float:
    """How many of the 10 nearest images on the map are of the same generated cluster, for a thousand images."""
    from scipy.spatial import KDTree

    some = np.linspace(0, len(drawn) - 1, 1000).astype(int)
    near = KDTree(drawn).query(drawn[some], 11)[1][:, 1:]
    return float((classes[near] == classes[some][:, None]).mean())


def write(images: int, width: int, steps: Steps, size: int, kept: float) -> None:
    RESULTS.write_text(
        f"# `vitrail explore` of {images:,} images\n\n"
        f"{datetime.date.today()}, {platform.machine()}, {torch.get_num_threads()} thread, torch {torch.__version__}. "
        f"`python benchmarks/explore.py`: generated vectors of {width} numbers in 200 clusters,\n"
        "without the time to compute them from images. Seconds of the processor; memory is the peak of the process so "
        "far.\n\n"
        + "\n".join([table_row(*["step", "seconds", "memory"]), table_row(*["---"] * 3), *steps.rows])
        + f"\n\nThe page has {size / 1e6:.1f} MB, with {min(images, explore_page.THUMBNAILS):,} small pictures. Of "
        f"the 10 nearest images on the map, {100 * kept:.1f} % are of the same generated cluster.\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
