"""Search by a part of a picture: which vector of the part finds pictures of the same kind?

    python benchmarks/regions.py FOLDER MODEL           FOLDER: a folder of photos for each class
    python benchmarks/regions.py FOLDER MODEL --queries 10 --others 10 --out FILE    to see that it runs

Four photos of different kinds are put together, two by two, and a box is laid over the first: all of its quarter, the
middle of it, or a tall strip. Photos that are in no such picture are the index. What counts is how many of the 10
nearest are of the boxed photo's class. The page is benchmarks/results/regions.md.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from training.results import table_row, write_section
from vitrail.inference.sources import images_of
from vitrail.search.embeddings import Embedder, Vectors, embed_all, normalised
from vitrail.search.region import Box, patches_in, region_vector

RESULTS = Path(__file__).parent / "results" / "regions.md"
HEADING = "# Search by a part of a picture\n"
SIDE = 128  # of a photo in the picture of four
BOXES = {"whole": Box(0, 0, SIDE, SIDE), "middle": Box(24, 24, 80, 80), "strip": Box(40, 0, 48, SIDE)}
TOP = 10


def photos_of(folder: Path, others: int, queries: int, seed: int) -> tuple[list[tuple[Path, str]], ...]:
    """Photos with their classes: those to ask about, and those to find."""
    chance = random.Random(seed)
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    chosen = [(Path(path), one.name) for one in classes for path in chance.sample([*images_of(one)], others)]
    chance.shuffle(chosen)
    return chosen[:queries], chosen[queries:]


def four(asked: list[tuple[Path, str]], place: int) -> NDArray[np.uint8]:
    """The photo and three after it, two by two."""
    canvas = Image.new("RGB", (2 * SIDE, 2 * SIDE))
    kind = asked[place][1]
    beside = [path for path, other in asked[place:] + asked[:place] if other != kind][:3]
    for corner, path in enumerate([asked[place][0], *beside]):
        with Image.open(path) as photo:
            small = photo.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        canvas.paste(small, (SIDE * (corner % 2), SIDE * (corner // 2)))
    return np.asarray(canvas)


def vectors_of(embedder: Embedder, picture: NDArray[np.uint8], box: Box) -> Iterator[tuple[str, Vectors]]:
    """The ways to make one vector of the part."""
    x, y, width, height = (int(side) for side in box)
    crop = picture[y : y + height, x : x + width]
    size = embedder.checkpoint.preprocessing.size
    squashed = np.asarray(Image.fromarray(crop).resize((size[1], size[0]), Image.Resampling.BICUBIC))
    for name, image in (("cut out, as a picture", crop), ("cut out, squashed", squashed), ("no box", picture)):
        [embedding] = embedder.embed([image])
        assert embedding.vector is not None
        yield name, embedding.vector
    yield "**patch tokens of the box, alone (`--box`)**", region_vector(embedder, picture, box)
    yield "mean of the box's patch tokens in the whole picture", mean_of_patches(embedder, picture, box)


def mean_of_patches(embedder: Embedder, picture: NDArray[np.uint8], box: Box) -> Vectors:
    size, patch = embedder.checkpoint.preprocessing.size, embedder.checkpoint.config.patch_size
    pixels = np.asarray(Image.fromarray(picture).resize((size[1], size[0]), Image.Resampling.BICUBIC))
    scale = size[0] / picture.shape[0]
    inside = patches_in(Box(*(side * scale for side in box)), (size[0] // patch[0], size[1] // patch[1]), patch)
    with torch.inference_mode():
        features = embedder.checkpoint.model.features(embedder.engine.transform([pixels]))
    return normalised(features.patches[0, inside].mean(0).numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("model")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--others", type=int, default=100, help="photos of a class, queries included")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    asked, base = photos_of(options.data, options.others, options.queries, options.seed)
    embedder = Embedder(options.model, normalise=True, precision="fp32")
    held, places, _ = embed_all(embedder, [path for path, _ in base])
    kinds = np.array([base[place][1] for place in places])
    shares: dict[str, dict[str, list[float]]] = {}
    for place, (_, kind) in enumerate(asked):
        picture = four(asked, place)
        for name, box in BOXES.items():
            for way, vector in vectors_of(embedder, picture, box):
                nearest = kinds[np.argsort(-(held @ vector))[:TOP]]
                shares.setdefault(way, {}).setdefault(name, []).append(float((nearest == kind).mean()))
    rows = [
        table_row(way, *(f"{100 * np.mean(by_box[name]):.1f} %" for name in BOXES)) for way, by_box in shares.items()
    ]
    sys.argv[1:3] = ["FOLDER", "MODEL"]
    lines = [
        f"{len(asked)} pictures of four photos, {len(held)} photos of {len(set(kinds))} classes to find: how many of "
        f"the {TOP} nearest are of the class in the box.",
        "",
        table_row("vector of the part", *(f"{name} of a photo" for name in BOXES)),
        "|---|---|---|---|",
        *rows,
    ]
    write_section(options.out, f"{Path(options.model).name}, {options.data.name}", lines, heading=HEADING)


if __name__ == "__main__":
    main()
