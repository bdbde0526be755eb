"""Our engines against timm, transformers, plain ONNX Runtime and plain OpenVINO with NNCF: the same weights for all.

    python -m benchmarks.engines DEIT_TINY PHOTOS [--models Ti,S,B] [--batch 1,16] [--rounds 9] [--only WORD] [--write]

DEIT_TINY: a folder in timm's format with a trained DeiT-Ti/16. PHOTOS: JPEGs whose names begin with the number of their
ImageNet class. S/16 and B/16 have random weights with clearly different answers (`lively_model.py`): only their speed
is shown, and `auto` has something to compare. int8 of ours is what the search begins with there, and as many tokens are
merged as in DeiT-Ti.

Every contender is a process of its own with the same number of threads. A round gives each of them a turn, one after
the other, so that a slow moment of the machine hits all; a ratio is the median over the rounds of (time of timm in
fp32 / time of this). About 40 minutes on 2 cores; --write writes benchmarks/results/peers.md. The graphs of ours are
kept in a cache of the run's own, so nothing is left from before.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitrail
from benchmarks.lively_model import save_model
from vitrail.errors import VitrailError
from vitrail.inference.auto.choose_merging import choose_merging
from vitrail.inference.bench.bench_process import COMMAND, WorkerProcess
from vitrail.inference.bench.bench_text import machine_line
from vitrail.inference.engine import Engine
from vitrail.model.precision import computes_bf16

RESULTS = Path(__file__).parent / "results" / "peers.md"
PEER = (sys.executable, "-m", "benchmarks.peers.engine_worker")
MODELS = {"Ti": "DeiT-Ti/16", "S": "S/16", "B": "B/16"}
BASE = "timm fp32"
FEW = 50  # pictures that int8 of random weights is calibrated on: only its speed counts
ALLOWED = 0.005  # of accuracy, for merging
PACKAGES = ("torch", "timm", "transformers", "onnxruntime", "openvino", "nncf")


@dataclass
class Contender:
    """A way to run the weights."""

    name: str
    ours: bool
    command: Sequence[str]
    settings: dict[str, Any]
    worker: WorkerProcess | None = None
    outputs: np.ndarray | None = None  # (n, classes)
    rounds: dict[int, list[list[float]]] = field(default_factory=dict)  # by batch: the seconds of each run


@dataclass(frozen=True)
class Weights:
    """The same weights in three formats, and pictures."""

    name: str
    trained: bool
    ours: Path
    timm: Path
    transformers: Path
    pictures: Path  # .npy, normalised
    labelled: Path  # the photos in folders by class


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model", type=Path)
    arguments.add_argument("photos", type=Path)
    arguments.add_argument("--models", default="Ti,S,B")
    arguments.add_argument("--batch", default="1,16")
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--seconds", type=float, default=1.0, help="of each turn")
    arguments.add_argument("--pictures", type=int, default=300, help="at most")
    arguments.add_argument("--only", nargs="*", help=f"contenders whose names hold one of these words, and {BASE}")
    arguments.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = arguments.parse_args()
    sections, merged = [], None
    with tempfile.TemporaryDirectory() as folder:
        os.environ["VITRAIL_CACHE"] = str(Path(folder, "cache"))
        for short in options.models.split(","):
            weights = prepare(MODELS[short], options, Path(folder, short))
            merged = merged_tokens(weights) if weights.trained or merged is None else merged
            contenders = [one for one in all_contenders(weights, merged) if wanted(one.name, options.only)]
            with contextlib.ExitStack() as stack:
                batches = [int(size) for size in options.batch.split(",")]
                contenders = list(started(stack, contenders, weights, batches[0]))
                for batch in batches:
                    contenders = measure(contenders, batch, options.rounds, options.seconds)
                    sections.append(section(weights, contenders, batch, merged))
                    print(sections[-1], flush=True)
    if options.write:
        RESULTS.write_text(page(sections, options), encoding="utf-8")


def wanted(name: str, only: Sequence[str] | None) -> bool:
    return not only or name == BASE or any(word in name for word in only)


# ---- the same weights and pictures for all


def prepare(name: str, options: argparse.Namespace, folder: Path) -> Weights:
    folder.mkdir()
    trained = name == MODELS["Ti"]
    paths = sorted(options.photos.glob("*.jpg"))
    paths = paths[:: max(1, -(-len(paths) // options.pictures))]
    if trained:
        vitrail.convert(options.model, folder / "ours.safetensors")
    else:
        save_model(folder / "ours.safetensors", name)
    for peer in ("timm", "transformers"):
        vitrail.convert(folder / "ours.safetensors", folder / peer, to=peer)
    engine = Engine.open(folder / "ours.safetensors", precision="fp32")
    labels = engine.checkpoint.labels or []
    for path in paths if trained else clearest(engine, paths):
        number = int(path.name.partition("_")[0])
        home = folder / "photos" / (labels[number].replace("/", "-") if trained else "all")
        home.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, home)
    read = sorted((folder / "photos").rglob("*.jpg"), key=lambda path: path.name)
    pixels = torch.cat([engine.transform([engine.read(path).pixels]) for path in read])
    np.save(folder / "pictures.npy", pixels.numpy())
    classes = [int(path.name.partition("_")[0]) for path in read]
    (folder / "classes.json").write_text(json.dumps(classes))
    return Weights(
        name,
        trained,
        folder / "ours.safetensors",
        folder / "timm",
        folder / "transformers",
        folder / "pictures.npy",
        folder / "photos",
    )


def clearest(engine: Engine, paths: Sequence[Path]) -> list[Path]:
    """The photos whose first two answers are furthest apart: of random weights some are nearly even."""
    outputs = torch.cat([engine.forward(engine.transform([engine.read(path).pixels])) for path in paths])
    first, second = outputs.softmax(1).topk(2).values.unbind(1)
    places = (first - second).topk(min(FEW, len(paths))).indices.tolist()
    return [paths[place] for place in sorted(places)]


def merged_tokens(weights: Weights) -> int:
    """As many as cost half a point of accuracy; of random weights, 8."""
    if not weights.trained:
        return 8
    return choose_merging(Engine.open(weights.ours, precision="fp32"), ALLOWED, weights.labelled).r


# ---- contenders


def all_contenders(weights: Weights, merged: int) -> Iterator[Contender]:
    threads, pictures = torch.get_num_threads(), str(weights.pictures)
    floats = ["fp32", "bf16"] if computes_bf16("cpu") else ["fp32"]
    kinds = dict.fromkeys(("timm", "timm compiled", "transformers", "transformers compiled"), floats)
    for kind, precisions in {**kinds, "onnxruntime": ["fp32", "int8"], "openvino": [*floats, "int8"]}.items():
        for precision in precisions:
            settings = {"kind": kind, "precision": precision, "pictures": pictures, "threads": threads}
            settings |= {"timm": str(weights.timm), "transformers": str(weights.transformers)}
            name = f"{kind} {precision}" + (" (NNCF's defaults)" if (kind, precision) == ("openvino", "int8") else "")
            yield Contender(name, False, PEER, settings)
    engines = {"torch": floats, "openvino": [*floats, "int8"], "onnxruntime": ["fp32"], "auto": ["auto"]}
    for engine, precisions in engines.items():
        for precision in precisions:
            yield ours(weights, engine, precision, 0)
    yield ours(weights, "openvino", "int8", merged)


def ours(weights: Weights, engine: str, precision: str, merged: int) -> Contender:
    title = engine if engine == "auto" else f"{engine} {precision}"
    name = f"vitrail {title}" + (f", {merged} tokens merged" if merged else "")
    pictures = str(weights.pictures)
    if precision == "int8" and not weights.trained:
        settings: dict[str, Any] = {"kind": "vitrail int8", "precision": precision, "pictures": pictures}
        settings |= {"threads": torch.get_num_threads(), "model": str(weights.ours), "merge_tokens": str(merged)}
        return Contender(name, True, PEER, settings)
    settings = {"model": str(weights.ours), "engine": engine, "precision": precision, "pictures": pictures}
    return Contender(name, True, COMMAND, {**settings, "calibration": str(weights.labelled), "merge_tokens": merged})


def started(
    stack: contextlib.ExitStack, contenders: Sequence[Contender], weights: Weights, batch: int
) -> Iterator[Contender]:
    """Those that can run, with their outputs in batches of that size; the others are said."""
    for contender in contenders:
        try:
            contender.worker = WorkerProcess(command=contender.command, **contender.settings)
            stack.callback(contender.worker.close)
            if weights.trained:
                path = weights.pictures.with_name("outputs.npy")
                contender.worker.ask("outputs", path=str(path), batch=batch)
                contender.outputs = np.load(path)
        except VitrailError as error:
            print(f"{weights.name}: {contender.name} is left out: {error}", file=sys.stderr, flush=True)
            continue
        print(f"{weights.name}: {contender.name} is loaded", file=sys.stderr, flush=True)
        yield contender


def measure(contenders: Sequence[Contender], batch: int, rounds: int, seconds: float) -> list[Contender]:
    """Those that could run this batch size, with the seconds of all their runs."""
    running = []
    for contender in contenders:
        assert contender.worker is not None
        try:
            contender.worker.ask("warm_up", batch=batch)
        except VitrailError as error:
            print(f"{contender.name} is left out from batch {batch} on: {error}", file=sys.stderr, flush=True)
            continue
        contender.rounds[batch] = []
        running.append(contender)
    for _ in range(rounds):
        for contender in running:
            assert contender.worker is not None
            contender.rounds[batch].append(contender.worker.ask("run", batch=batch, seconds=seconds)["seconds"])
    return running


# ---- the page


def section(weights: Weights, contenders: Sequence[Contender], batch: int, merged: int) -> str:
    base = next(one for one in contenders if one.name == BASE)
    header = ["", "images/s", "p50 ms", "p95 ms", "times timm fp32", "spread"]
    header += ["same answer", "accuracy"] if weights.trained else []
    lines = [f"## {weights.name}, batch {batch}", "", "| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for contender in contenders:
        cells = [f"**{contender.name}**" if contender.ours else contender.name, *speed_cells(contender, base, batch)]
        if weights.trained:
            agreement, accuracy = answers(weights, contender, base)
            cells += [f"{100 * agreement:.1f} %", f"{100 * accuracy:.1f} %"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *verdict(weights, contenders, base, batch)])


def speed_cells(contender: Contender, base: Contender, batch: int) -> list[str]:
    runs = [1000 * seconds for times in contender.rounds[batch] for seconds in times]
    rates = [batch * len(times) / sum(times) for times in contender.rounds[batch]]
    rate = statistics.median(rates)
    spread = (max(rates) - min(rates)) / (2 * rate)
    p50, p95 = np.percentile(runs, 50), np.percentile(runs, 95)
    return [f"{rate:.1f}", f"{p50:.1f}", f"{p95:.1f}", f"{ratio(contender, base, batch):.2f}", f"±{100 * spread:.0f} %"]


def ratio(contender: Contender, base: Contender, batch: int) -> float:
    """How much faster than the base, by the medians of each round."""
    pairs = zip(contender.rounds[batch], base.rounds[batch], strict=True)
    return statistics.median(statistics.median(other) / statistics.median(own) for own, other in pairs)


def answers(weights: Weights, contender: Contender, base: Contender) -> tuple[float, float]:
    """The share of answers that are timm's in fp32, and of those that are right."""
    assert contender.outputs is not None and base.outputs is not None
    classes = np.array(json.loads(weights.pictures.with_name("classes.json").read_text()))
    given = contender.outputs.argmax(1)
    return float((given == base.outputs.argmax(1)).mean()), float((given == classes).mean())


def verdict(weights: Weights, contenders: Sequence[Contender], base: Contender, batch: int) -> list[str]:
    """What the issue asks: auto against the best peer that keeps the answers, int8 against NNCF's defaults."""

    def times(name: str) -> float | None:
        found = [one for one in contenders if one.name == name]
        return ratio(found[0], base, batch) if found else None

    lines = []
    exact = [
        one
        for one in contenders
        if not one.ours and (answers(weights, one, base)[0] >= 0.999 if weights.trained else "int8" not in one.name)
    ]
    best = max(exact, key=lambda one: ratio(one, base, batch), default=base)
    auto, plain, int8 = times("vitrail auto"), times("openvino int8 (NNCF's defaults)"), times("vitrail openvino int8")
    if auto is not None:
        kept = "that keeps 99.9 % of the answers" if weights.trained else "that is not int8"
        lines.append(
            f"- auto: {auto:.2f} times timm fp32, {auto / ratio(best, base, batch):.2f} times the best peer {kept} "
            f"({best.name})."
        )
    if plain is not None and int8 is not None:
        lines.append(f"- int8: {int8 / plain:.2f} times NNCF's defaults in plain OpenVINO.")
    merging = [one for one in contenders if "merged" in one.name and plain is not None]
    return lines + [
        f"- {one.name}: {ratio(one, base, batch) / (plain or 1):.2f} times NNCF's defaults in plain OpenVINO."
        for one in merging
    ]


def page(sections: Sequence[str], options: argparse.Namespace) -> str:
    today = datetime.datetime.now(tz=datetime.UTC).date()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    head = [
        "# Engines: ours against timm, transformers, ONNX Runtime and OpenVINO",
        "",
        f"{today}, {machine_line()}, {torch.get_num_threads()} threads on all sides, {versions}.",
        f"`python -m benchmarks.engines {options.model.name} {options.photos.name} --models {options.models} "
        f"--batch {options.batch} --rounds {options.rounds} --write`",
        "",
        "224 px, the same weights everywhere, a normalised tensor in and outputs out. Each contender is a process,",
        "interleaved: a round gives each a turn. images/s is the median of the rounds, the ratio the median over the",
        "rounds of (timm's time in fp32 / this one's), the spread half of the way from the slowest round to the",
        "fastest. 'same answer' compares with timm in fp32, on the photos that int8 was calibrated on too (what int8",
        "loses on others: int8.md). S/16 and B/16 have random weights: their int8 is calibrated but not searched, and",
        "only speed is shown. OpenVINO's default is bf16 where the CPU has it, also between NNCF's int8 layers.",
        "",
    ]
    return "\n".join([*head, "\n\n".join(sections), ""])


if __name__ == "__main__":
    main()
