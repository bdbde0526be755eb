"""What `vitrail explore` costs for 100,000 images: time, memory and the size of its page.

    python benchmarks/explore.py --data PHOTOS [--images 100000] [--width 192]    minutes on 2 cores
    python benchmarks/explore.py --data FLOWERS.parquet    how well the map keeps neighbours; a minute

The vectors are generated, in clusters, because computing real ones is what `vitrail embed` is measured by. The files
are links to the photos of a folder, so that the page has real pictures. Seconds are those of the processor (user time),
and so do not depend on what else the machine does.

How well neighbours are kept is measured on a file of `vitrail embed`: scikit-learn's trustworthiness of our map, of two
principal components and of its t-SNE, on 1,500 of the images; and how many of the 15 nearest are found where not all
are compared with all. The tables are written to benchmarks/results/explore.md.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from training.results import table_row, write_section
from vitrail.inference.sources import images_of
from vitrail.report.pages import explore_page
from vitrail.search import nearest_neighbours
from vitrail.search.nearest_neighbours import neighbours_of_all
from vitrail.search.pile.clusters import find_clusters
from vitrail.search.pile.exploration import Exploration
from vitrail.search.pile.image_pile import Pile
from vitrail.search.pile.near_duplicates import near_duplicates
from vitrail.search.pile.projection import NEIGHBOURS, principal_components, project
from vitrail.search.vector_file import read_vectors

RESULTS = Path(__file__).parent / "results" / "explore.md"
HEADING = "# `vitrail explore`: what it costs, and how well it keeps neighbours\n"


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
    parser.add_argument("--data", type=Path, required=True, help="a folder of photos, or a file of `vitrail embed`")
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=192)
    given = parser.parse_args()
    if given.data.is_file():
        measure_map(given.data)
    else:
        measure_pile(given.data, given.images, given.width)


def measure_pile(photos: Path, images: int, width: int) -> None:
    vectors, classes = vectors_in_clusters(images, width)
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
        pile = Pile(Path(folder), linked_photos(photos, Path(folder), classes), classes, labels)
        distance = 1 - neighbours.similarity[:, :10].mean(1)
        typical = [np.flatnonzero(clusters.number == number)[:10].tolist() for number in range(clusters.count)]
        outliers = np.argsort(-distance)[:60].tolist()
        with steps.step("page"):
            found = Exploration(pile, drawn, clusters, typical, groups, distance, outliers)
            size = len(explore_page.page(found, model="model", data=folder).encode())
    lines = [
        f"Generated vectors of {width} numbers in 200 clusters, without the time to compute them from images.",
        "Seconds of the processor; memory is the peak of the process so far.",
        "",
        table_row("step", "seconds", "memory"),
        table_row(*["---"] * 3),
        *steps.rows,
        "",
        f"The page has {size / 1e6:.1f} MB, with {min(images, explore_page.THUMBNAILS):,} small pictures. Of the",
        f"10 nearest images on the map, {100 * same_cluster(drawn, classes):.1f} % are of the same generated cluster.",
    ]
    write_section(RESULTS, f"{images:,} images", lines, heading=HEADING)


def measure_map(file: Path) -> None:
    from sklearn.manifold import TSNE, trustworthiness

    vectors = read_vectors(file)[0]
    some = vectors[np.random.default_rng(0).permutation(len(vectors))[:1500]]
    maps = {
        "two principal components": principal_components(some),
        "`vitrail explore`": project(some, neighbours_of_all(some, NEIGHBOURS)),
        "t-SNE of scikit-learn": TSNE(metric="cosine", init="random", random_state=0, max_iter=500).fit_transform(some),
    }
    exact = neighbours_of_all(vectors, NEIGHBOURS).index
    nearest_neighbours.EXACT = 0
    found = neighbours_of_all(vectors, NEIGHBOURS).index
    recall = np.mean([len(set(one) & set(other)) / NEIGHBOURS for one, other in zip(found, exact, strict=True)])
    lines = [
        f"{len(vectors):,} vectors of {vectors.shape[1]} numbers, of the flower photos by DeiT-Ti; trustworthiness (10 "
        f"neighbours) of maps of {len(some):,} of them.",
        "",
        table_row("map", "trustworthiness"),
        table_row(*["---"] * 2),
        *(
            table_row(name, f"{trustworthiness(some, drawn, n_neighbors=10, metric='cosine'):.3f}")
            for name, drawn in maps.items()
        ),
        "",
        f"Where not all are compared with all, but those of near cells only, {100 * recall:.1f} % of the {NEIGHBOURS} "
        "nearest are found.",
    ]
    write_section(RESULTS, "Neighbours", lines, ("torch", "scikit-learn"), heading=HEADING)


def same_cluster(drawn: np.ndarray, classes: np.ndarray) -> float:
    """How many of the 10 nearest images on the map are of the same generated cluster, for a thousand images."""
    from scipy.spatial import KDTree

    some = np.linspace(0, len(drawn) - 1, 1000).astype(int)
    near = KDTree(drawn).query(drawn[some], 11)[1][:, 1:]
    return float((classes[near] == classes[some][:, None]).mean())


if __name__ == "__main__":
    main()
