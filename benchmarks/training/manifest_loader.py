"""`manifest`: images a second that feeding sustains from large manifests, against the same images in their folder."""

from __future__ import annotations

import argparse
import statistics
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet

from training.loader import BATCH, SIZE, STORED, fed
from training.places import dataset
from training.results import write_section
from vitrail.data.layouts.recognise import read_dataset
from vitrail.data.loading.cache import NoCache, Shape
from vitrail.data.loading.sampler import Sampler
from vitrail.data.manifest.list_images import list_images, place_of
from vitrail.data.manifest.manifest_file import open_manifest, write_manifest
from vitrail.data.manifest.manifest_items import ManifestItems
from vitrail.data.manifest.survey import Survey, look_at_shard
from vitrail.dataset import Item, Sources
from vitrail.training.optim.memory import keep_freed_memory
from vitrail.training.stages.read_manifest import items_at

SHARD, GROUP = 1000, 100  # images of a shard, and of a row group
MADE = ("files", "tar", "Parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each is timed in a round")
    parser.add_argument("--rounds", type=int, default=5, help="each is timed once in a round")


def run(arguments: argparse.Namespace) -> None:
    keep_freed_memory()
    items = read_dataset(dataset(arguments.work, "flowers")).part("train")
    feeds: dict[str, tuple[Sources, Sampler]] = {"folder": (Sources(items), Sampler(len(items), BATCH, 0))}
    for kind in MADE:
        listed = manifest_items(arguments.work, kind, items)
        feeds[f"manifest of {kind}"] = Sources(listed), listed.sampler(BATCH, 0)
    speeds: dict[str, list[float]] = {name: [] for name in feeds}
    for number in range(arguments.rounds):
        for name in [*feeds][:: -1 if number % 2 else 1]:  # forwards and backwards: the machine may slow down
            sources, sampler = feeds[name]
            speeds[name].append(fed(NoCache(sources, Shape(STORED, STORED, 3), 2), sampler, arguments.seconds))
    ratios = {
        name: [own / folder for own, folder in zip(some, speeds["folder"], strict=True)]
        for name, some in speeds.items()
    }
    lines = [
        f"{len(items):,} photos decoded anew, {SIZE} px, batch {BATCH}, crops, flips, TrivialAugment, 2 decoding "
        f"threads; {arguments.rounds} rounds, interleaved. Shards of {SHARD:,}, row groups of {GROUP}.",
        "",
        "| from | images/s, median | times the folder, median | least | most |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {statistics.median(some):,.1f} | {statistics.median(ratios[name]):.3f} | "
            f"{min(ratios[name]):.3f} | {max(ratios[name]):.3f} |"
            for name, some in speeds.items()
        ),
    ]
    write_section(arguments.results, "Feeding from a manifest against feeding from the folder", lines)


def manifest_items(work: Path, kind: str, items: list[Item]) -> ManifestItems:
    """The training images as those of a large manifest, which is made where it is not there."""
    root, out = work / "flowers-stored" / kind, work / "flowers-stored" / f"{kind}.manifest"
    if not out.exists():
        write(root, kind, items)
        place, file = place_of(str(root))
        write_manifest(list_images(place, file), place, out, SHARD)
    manifest, survey = open_manifest(out), Survey()
    for shard in manifest.shards:
        survey.add(look_at_shard(manifest, shard, 0))
    _, records = survey.in_order()
    return items_at(manifest, records, (~records["broken"]).nonzero()[0], "train")


def write(root: Path, kind: str, items: list[Item]) -> None:
    """The same images in class folders (links), in one tar, or in one Parquet file."""
    root.mkdir(parents=True, exist_ok=True)
    if kind == "tar":
        with tarfile.open(root / "all.tar", "w") as tar:
            for name, item in named(items):
                tar.add(item.path, name)
    elif kind == "Parquet":
        columns = {
            "image": [item.path.read_bytes() for item in items],
            "label": [item.path.parent.name for item in items],
        }
        pyarrow.parquet.write_table(pyarrow.table(columns), root / "all.parquet", row_group_size=GROUP)
    else:
        for name, item in named(items):
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).symlink_to(item.path.resolve())


def named(items: list[Item]) -> Iterator[tuple[str, Item]]:
    """Each image with class folder and file name."""
    return ((f"{item.path.parent.name}/{item.path.name}", item) for item in items)
