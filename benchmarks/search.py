"""Search in an index: how fast, how right, and whether anything is lost when it is killed.

    python benchmarks/search.py                       all of it: some ten minutes on 2 cores
    python benchmarks/search.py --only exact kills    some of it; other sections are kept
    python benchmarks/search.py --quick --out FILE    small numbers, to see that it runs

  exact   milliseconds a query of exact search in 100,000 vectors of 384 numbers, opened from an index on disk
  graph   a million random-walk vectors: recall@10 of the HNSW graph against exact search, and milliseconds of both
  index   `vitrail index` of 10,000 JPEG photos against the bare engine: `Predictor` on the same files and network,
          each in a process of its own, in turn; what counts is the ratio of a round
  kills   100 kills of `vitrail index --add` at random moments: no picture is lost or there twice

A random walk's vector has the sums of independent steps for its coordinates, made of length 1: neighbours are close, as
those of photos are. The page is benchmarks/results/search.md.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import vitrail
from benchmarks.index_kills import kill_index
from tests.image_files import photo
from training.results import table_row, write_section
from vitrail.search.embeddings import Vectors, normalised
from vitrail.search.index.hnsw_graph import build_graph
from vitrail.search.index.image_index import ImageIndex
from vitrail.search.index.index_writer import writing_index
from vitrail.search.vector_file import Row, VectorFacts
from vitrail.weights.preprocessing import Preprocessing

RESULTS = Path(__file__).parent / "results" / "search.md"
HEADING = "# Search: speed, recall, kills\n\nEach section says when, where and by which command.\n"
WIDTH = 384
FACTS = VectorFacts("random walks", "pooled", True, WIDTH, None, "random walks")
ROWS = 50_000  # of a commit
BARS = {"milliseconds": 50.0, "recall": 0.98, "ratio": 0.95}


# ---- vectors without a model


def walks(count: int, seed: int) -> Vectors:
    """(count, WIDTH) unit vectors."""
    steps = np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)
    return normalised(np.cumsum(steps, axis=1))


def write_index(folder: Path, count: int) -> ImageIndex:
    """An index of so many random walks."""
    with writing_index(folder, FACTS) as writer:
        for start in range(0, count, ROWS):
            vectors = walks(min(ROWS, count - start), seed=start)
            rows = [Row(-1, f"/{start + n}.jpg", f"{start + n:032x}", vector) for n, vector in enumerate(vectors)]
            writer.commit(rows)
            print(f"{start + len(rows):,} of {count:,} vectors", flush=True)
    return ImageIndex(folder)


def milliseconds(search: Callable[[Vectors], Any], queries: Vectors) -> list[float]:
    """Of each query by itself."""
    seconds = []
    for query in queries:
        began = time.perf_counter()
        search(query[None])
        seconds.append(time.perf_counter() - began)
    return [1000 * second for second in seconds]


def exact(options: argparse.Namespace) -> tuple[list[str], bool]:
    count = 5_000 if options.quick else 100_000
    with tempfile.TemporaryDirectory(prefix="search-") as folder:
        index = write_index(Path(folder, "idx"), count)
        queries = walks(60, seed=10**9)
        index.neighbours(queries[:5], 10, exact=True)  # the file is in memory, as it is after the first search
        times = milliseconds(lambda query: index.neighbours(query, 10, exact=True), queries)
    median, late = statistics.median(times), float(np.percentile(times, 95))
    lines = [
        f"{count:,} vectors of {WIDTH} numbers, {len(queries)} queries one by one, the 10 best of each.",
        "",
        "| median | 95 % within | bar |",
        "|---|---|---|",
        table_row(f"{median:.1f} ms", f"{late:.1f} ms", f"below {BARS['milliseconds']:.0f} ms"),
    ]
    return lines, median < BARS["milliseconds"]


def graph(options: argparse.Namespace) -> tuple[list[str], bool]:
    count = 20_000 if options.quick else options.vectors
    with tempfile.TemporaryDirectory(prefix="search-") as folder:
        index = write_index(Path(folder, "idx"), count)
        began = time.perf_counter()
        build_graph(index)
        built = time.perf_counter() - began
        size = sum(path.stat().st_size for path in Path(folder, "idx").glob("graph-*"))
        index, queries = ImageIndex(Path(folder, "idx")), walks(200, seed=10**9)
        looked = index.neighbours(queries, 10, exact=True)
        found = index.neighbours(queries, 10, exact=False)
        shared = [len({a.id for a in one} & {b.id for b in two}) for one, two in zip(looked, found, strict=True)]
        by_graph = milliseconds(lambda query: index.neighbours(query, 10, exact=False), queries)
        by_looking = milliseconds(lambda query: index.neighbours(query, 10, exact=True), queries[:20])
    recall = sum(shared) / (10 * len(queries))
    lines = [
        f"{count:,} vectors of {WIDTH} numbers, {len(queries)} queries. The graph took {built:.0f} s, "
        f"{size / 1e6:,.0f} MB.",
        "",
        "| search | recall@10 | median of a query |",
        "|---|---|---|",
        table_row("exact", "1", f"{statistics.median(by_looking):.1f} ms"),
        table_row(f"graph (bar: {BARS['recall']})", f"{recall:.4f}", f"{statistics.median(by_graph):.1f} ms"),
    ]
    return lines, recall >= BARS["recall"]


# ---- index against the bare engine

BARE = """
import json, sys, time
from vitrail.inference.predictor import Predictor
from vitrail.inference.sources import images_of
from vitrail.weights.adapt import without_head
from vitrail.weights.load import load
paths = images_of(sys.argv[2])
predictor = Predictor(without_head(load(sys.argv[1])))
began = time.perf_counter()
count = sum(1 for _ in predictor.outputs(paths))
print(json.dumps({"seconds": time.perf_counter() - began, "images": count}))
"""
INDEX = """
import json, pyarrow.parquet, sys, time
from pathlib import Path
from vitrail.inference.sources import images_of
from vitrail.search.embeddings import Embedder
from vitrail.search.index.add_images import add_images
from vitrail.search.index.index_writer import writing_index
from vitrail.search.vector_file import facts_of
paths = images_of(sys.argv[2])
embedder = Embedder(sys.argv[1], normalise=True)
began = time.perf_counter()
with writing_index(Path(sys.argv[3]), facts_of(embedder, "model")) as writer:
    summary = add_images(writer, embedder, paths)
print(json.dumps({"seconds": time.perf_counter() - began, "images": summary.added}))
"""


def timed(code: str, *arguments: object) -> dict[str, Any]:
    run = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(run.stderr)
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return result


def index(options: argparse.Namespace) -> tuple[list[str], bool]:
    count, rounds = (60, 1) if options.quick else (options.photos, options.rounds)
    preset = "mu/16" if options.quick else options.model
    with tempfile.TemporaryDirectory(prefix="search-") as name:
        folder = Path(name)
        model, photos = folder / "model.safetensors", folder / "photos"
        save_photos(photos, count)
        save_large_model(model, preset)
        rows = []
        for number in range(rounds):
            bare, made = timed(BARE, model, photos), timed(INDEX, model, photos, folder / f"idx-{number}")
            assert bare["images"] == made["images"] == count
            rows.append((bare["seconds"], made["seconds"]))
            print(f"round {number + 1}: {rows[-1]}", flush=True)
    ratio = statistics.median(bare / made for bare, made in rows)
    lines = [
        f"{count:,} JPEGs of 320 x 240 px, {preset}, torch, {rounds} rounds; from the first image to the last "
        "byte on disk, without the time to load the model.",
        "",
        "| | images a second, each round |",
        "|---|---|",
        table_row("bare engine", ", ".join(f"{count / bare:.1f}" for bare, _ in rows)),
        table_row("`vitrail index`", ", ".join(f"{count / made:.1f}" for _, made in rows)),
        table_row(f"**median ratio** (bar: {BARS['ratio']})", f"**{ratio:.3f}**"),
    ]
    return lines, ratio >= BARS["ratio"]


def save_photos(folder: Path, count: int) -> None:
    folder.mkdir()
    for number in range(count):
        photo(number, (320, 240)).save(folder / f"{number}.jpg", quality=90)


def save_large_model(path: Path, preset: str) -> None:
    torch.manual_seed(0)
    model = vitrail.ViT(vitrail.preset(preset, classes=10)).eval()
    vitrail.Checkpoint(model, Preprocessing(), "classify", [str(n) for n in range(10)]).save(path)


# ---- kills


def kills(options: argparse.Namespace) -> tuple[list[str], bool]:
    count = 4 if options.quick else options.kills
    with tempfile.TemporaryDirectory(prefix="search-") as folder:
        tally = kill_index(Path(folder), count, random.Random(options.seed))
    lines = [
        f"{tally.counts['kills']} kills by SIGKILL of `vitrail index IDX IMAGES --add`, which then ended "
        f"{tally.counts['ended']} times; before each, files were added, changed, copied, renamed and deleted.",
        "",
        "| lost, doubled or half there | left over |",
        "|---|---|",
        table_row(f"**{tally.counts['failed']}**", str(tally.counts["left over"])),
    ]
    return lines, not tally.counts["failed"]


# ---- all of it

PARTS: dict[str, tuple[str, Callable[[argparse.Namespace], tuple[list[str], bool]]]] = {
    "exact": ("Exact search", exact),
    "graph": ("HNSW against exact search", graph),
    "index": ("Index against the bare engine", index),
    "kills": ("Killed at random moments", kills),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--photos", type=int, default=10_000)
    parser.add_argument("--model", default="Ti/16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--note", default="", help="what else ran on the machine")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    failed = 0
    for name in options.only:
        title, measure = PARTS[name]
        lines, holds = measure(options)
        lines += [
            "",
            "The bar holds." if holds else "**The bar does not hold.**",
            *([options.note] * bool(options.note)),
        ]
        write_section(options.out, title, lines, ("torch", "numpy", "usearch", "pyarrow"), HEADING)
        failed += not holds
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
