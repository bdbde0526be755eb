"""How much of a bare engine's speed is left when `predict` also reads, decodes, resizes, batches and writes?

    python -m benchmarks.pipeline PHOTOS [--images 5000] [--model S/16] [--engines torch,openvino:bf16,...] [--write]

PHOTOS: a folder of real photos, of which JPEGs of 500 px are made. For each engine three things are measured in turn,
in every round:

- bare: the engine alone, on normalised batches in memory, with all threads that it takes; images a second.
- decode: reading and preparing the JPEGs alone, with as many threads as there are cores.
- whole: `vitrail predict` from files to rows, by the clock from the first image to the last.

Decoding is work as well, and on a machine whose cores the engine keeps busy it takes time from the engine: where both
share the cores, no program can be faster than 1 / (1 / bare + 1 / decode). That is `possible`. So two ratios are shown:
whole / bare, which can come near 1 only where decoding is small or cores are left, and whole / possible, what our own
machinery loses.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.coldstart import model_file, model_name

RESULTS = Path(__file__).parent / "results" / "pipeline.md"
LONG_SIDE, QUALITY = 500, 90
BARE_SECONDS = 5.0
WORKER = "--worker"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("photos", type=Path)
    arguments.add_argument("--images", type=int, default=5000)
    arguments.add_argument("--model", default="S/16", help="a preset, or a model file")
    arguments.add_argument("--engines", default="torch:auto,openvino:auto,onnxruntime:auto", help="with a precision")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--workers", type=int, nargs="*", default=[0], help="that decode; 0: as usual")
    arguments.add_argument("--jpegs", type=Path, help="a folder to make the JPEGs in, and to find them in next time")
    arguments.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("VITRAIL_CACHE", str(Path(folder, "cache")))
        jpegs = options.jpegs or Path(folder, "jpegs")
        make_jpegs(options.photos, jpegs, options.images)
        model = model_file(options.model, Path(folder))
        rows = {
            (name, workers): measure(name, model, jpegs, options, workers)
            for name in options.engines.split(",")
            for workers in options.workers
        }
    text = page(rows, options)
    print(text)
    if options.write:
        RESULTS.write_text(text, encoding="utf-8")


def make_jpegs(photos: Path, folder: Path, count: int) -> None:
    """Each photo several times, mirrored and with another border cut off, the longer side 500 px."""
    from PIL import Image, ImageOps

    folder.mkdir(parents=True, exist_ok=True)
    paths = sorted(photos.rglob("*.jpg"))
    for number in range(count):
        file = folder / f"{number:05}.jpg"
        if file.exists():
            continue
        turn, place = divmod(number, len(paths))
        with Image.open(paths[place]) as photo:
            picture = ImageOps.mirror(photo.convert("RGB")) if turn % 2 else photo.convert("RGB")
        picture = ImageOps.crop(picture, border=turn)
        scale = LONG_SIDE / max(picture.size)
        size = round(picture.width * scale), round(picture.height * scale)
        picture.resize(size, Image.Resampling.BICUBIC).save(file, quality=QUALITY)


def measure(name: str, model: Path, jpegs: Path, options: argparse.Namespace, workers: int) -> list[dict[str, float]]:
    """The rounds of one engine with so many threads that decode, in a process of its own."""
    engine, _, precision = name.partition(":")
    settings = {
        "model": str(model),
        "jpegs": str(jpegs),
        "images": options.images,
        "engine": engine,
        "precision": precision or "auto",
        "workers": workers or None,
        "rounds": options.rounds,
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.pipeline", WORKER, json.dumps(settings)], stdout=subprocess.PIPE, check=True
    )
    rounds: list[dict[str, float]] = json.loads(done.stdout)
    print(name, workers, json.dumps(rounds), file=sys.stderr, flush=True)
    return rounds


def work(settings: dict[str, Any]) -> list[dict[str, float]]:
    """In the engine's process: bare, decode and whole, in turn."""
    from vitrail.inference.predictor import Predictor

    paths = sorted(Path(settings["jpegs"]).glob("*.jpg"))[: settings["images"]]
    predictor = Predictor(
        settings["model"],
        engine=settings["engine"],
        precision=settings["precision"],
        workers=settings["workers"],
        calibration=paths[:: max(1, len(paths) // 64)],
    )
    steps = {"bare": bare, "decode": decode, "whole": whole}
    rounds = [{name: step(predictor, paths) for name, step in steps.items()} for _ in range(settings["rounds"] + 1)]
    return rounds[1:]  # the first one warms up


def bare(predictor: Any, paths: Sequence[Path]) -> float:
    engine = predictor.engine
    pixels = [engine.read(path).pixels for path in paths[: engine.batch_size]]
    batch = engine.transform((pixels * engine.batch_size)[: engine.batch_size])
    engine.forward(batch)
    started, done = time.perf_counter(), 0
    while (taken := time.perf_counter() - started) < BARE_SECONDS:
        engine.forward(batch)
        done += len(batch)
    return done / taken


def decode(predictor: Any, paths: Sequence[Path]) -> float:
    from vitrail.inference.prefetch import prefetch
    from vitrail.threads import usable_cores

    some = paths[: max(200, len(paths) // 5)]
    started = time.perf_counter()
    for _ in prefetch(predictor.engine.read, some, usable_cores(), 64):
        pass
    return len(some) / (time.perf_counter() - started)


def whole(predictor: Any, paths: Sequence[Path]) -> float:
    """As `vitrail predict --csv` does it."""
    from vitrail.inference.output.writers import csv_rows

    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, csv_rows(Path(folder, "rows.csv"), predictor.engine.task, 5) as write:
        for prediction in predictor.predict(paths):
            write(prediction)
    return len(paths) / (time.perf_counter() - started)


def page(rows: dict[tuple[str, int], list[dict[str, float]]], options: argparse.Namespace) -> str:
    from vitrail.inference.bench.bench_text import machine_line
    from vitrail.threads import usable_cores

    today = datetime.datetime.now(tz=datetime.UTC).date()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "openvino", "pillow"))
    lines = [
        "# The whole way: `predict` against the bare engine",
        "",
        f"{today}, {machine_line()}, {versions}. {options.images:,} JPEGs, longer side {LONG_SIDE} px, quality "
        f"{QUALITY}; {model_name(options.model)} at 224 px;",
        f"`python -m benchmarks.pipeline PHOTOS --images {options.images} --engines {options.engines} --rounds "
        f"{options.rounds} --workers {' '.join(map(str, options.workers))}`",
        "",
        "Images a second, medians of the rounds. *bare*: the engine alone on batches in memory, with all cores.",
        "*decode*: reading and preparing the files alone, with all cores. *whole*: from files to rows. *possible* is",
        "1 / (1 / bare + 1 / decode): both need the same cores, and no program can do more work than there are cores",
        "for. whole / bare reaches 0.95 only where decoding is less than a twentieth of the work, or where the engine",
        "leaves a core idle; whole / possible is what our own machinery loses. *decoders*: threads that decode;",
        f"'usual' is what `predict` takes, one a core, here {usable_cores()}.",
        "",
        "| engine | decoders | bare | decode | whole | possible | whole / bare | whole / possible |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (name, workers), rounds in rows.items():
        figures = {key: statistics.median(one[key] for one in rounds) for key in ("bare", "decode", "whole")}
        possible = [1 / (1 / one["bare"] + 1 / one["decode"]) for one in rounds]
        to_bare = statistics.median(one["whole"] / one["bare"] for one in rounds)
        to_possible = statistics.median(one["whole"] / best for one, best in zip(rounds, possible, strict=True))
        lines.append(
            f"| {name} | {workers or 'usual'} | {figures['bare']:.1f} | {figures['decode']:.1f} | "
            f"{figures['whole']:.1f} | {statistics.median(possible):.1f} | {to_bare:.3f} | {to_possible:.3f} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == WORKER:
        print(json.dumps(work(json.loads(sys.argv[2]))))
    else:
        main()
