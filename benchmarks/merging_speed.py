"""What merging tokens saves: CPU time of one core, the same OpenVINO graph with and without, interleaved.

    python -m benchmarks.merging_speed DEIT_TINY PHOTOS [--models Ti,S,B] [--r 9] [--rounds 40] [--write]

DEIT_TINY: a folder in timm's format. S/16 and B/16 have fresh weights. int8 is NNCF's without a search, of few photos:
which layers are in int8 does not depend on them. CPU time, so that what else runs on the machine counts little.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.graphs.graph_file import Floats, GraphRun
from vitrail.graphs.graph_formats import graph_parts, traced_graph
from vitrail.graphs.quantize import quantize, store_int8
from vitrail.inference.backends.openvino_backend import HINTS, OpenVinoBackend
from vitrail.inference.backends.openvino_run import compile_openvino
from vitrail.inference.bench.bench_text import machine_line
from vitrail.inference.engine import Engine, open_model
from vitrail.weights.checkpoint import Checkpoint

RESULTS = Path(__file__).parent / "results" / "merging_speed.md"
MODELS = {"Ti": "DeiT-Ti/16", "S": "S/16", "B": "B/16"}
FEW = 10  # pictures that int8 is calibrated on
HEADER = """| model | precision | batch | ms | ms with merging | times as fast | torch fp32, ms | times with merging |
|---|---|---|---|---|---|---|---|"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model", type=Path)
    arguments.add_argument("photos", type=Path)
    arguments.add_argument("--models", default="Ti,S,B")
    arguments.add_argument("--batch", default="1,16")
    arguments.add_argument("--r", type=int, default=9, help="patches merged for each block")
    arguments.add_argument("--rounds", type=int, default=40, help="at batch 1; fewer at larger ones")
    arguments.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    reader = Engine.open(options.model, precision="fp32")
    paths = sorted(options.photos.glob("*.jpg"))[::12]
    pictures = torch.cat([reader.transform([reader.read(path).pixels]) for path in paths]).numpy()
    rows = []
    for short in options.models.split(","):
        checkpoint = open_model(options.model) if short == "Ti" else open_model(MODELS[short], untrained=True)
        for row in rows_of(MODELS[short], checkpoint, pictures, options):
            rows.append(row)
            print(row, flush=True)
    if options.write:
        today = datetime.datetime.now(tz=datetime.UTC).date()
        head = f"{today}, {machine_line()}, of which one ran, with one thread.\n"
        head += (
            f"`python -m benchmarks.merging_speed DEIT_TINY PHOTOS --write`, r = {options.r}: medians of the CPU time\n"
        )
        head += "of one batch, interleaved. S/16 and B/16 have fresh weights."
        text = "\n".join(["# What merging tokens saves", "", head, "", HEADER, *rows, ""])
        RESULTS.write_text(text, encoding="utf-8")


def rows_of(name: str, checkpoint: Checkpoint, pictures: Floats, options: argparse.Namespace) -> Iterator[str]:
    merging = replace(checkpoint, model=checkpoint.model.with_merged_tokens(options.r))
    hint = HINTS[OpenVinoBackend.choose_precision("auto")]
    runs: dict[str, Callable[[Floats], Any]] = {"torch": checkpoint.model.eval()}
    for precision in (hint, "int8"):
        for kind, one in {"plain": checkpoint, "merging": merging}.items():
            runs[f"{precision} {kind}"] = openvino_run(one, precision == "int8", hint, pictures)
    for batch in map(int, options.batch.split(",")):
        images = np.ascontiguousarray(pictures[:batch])
        milliseconds = race(runs, images, max(5, options.rounds // batch))
        base = milliseconds["torch"]
        for precision in (hint, "int8"):
            plain, merged = (milliseconds[f"{precision} {kind}"] for kind in ("plain", "merging"))
            times = f"**{plain / merged:.2f}** | {base:.1f} | {base / merged:.2f}"
            yield f"| {name} | {precision} | {batch} | {plain:.2f} | {merged:.2f} | {times} |"


def openvino_run(checkpoint: Checkpoint, int8: bool, hint: str, pictures: Floats) -> GraphRun:
    model = traced_graph("openvino", checkpoint, checkpoint.preprocessing.size)
    if int8:
        model = store_int8(quantize(model, [picture[None] for picture in pictures[:FEW]], None))
    return compile_openvino([memoryview(bytearray(part)) for part in graph_parts("openvino", model)], hint, 1)


@torch.inference_mode()
def race(runs: dict[str, Callable[[Floats], Any]], images: Floats, rounds: int) -> dict[str, float]:
    """The median CPU time of each, in milliseconds; each runs once more before, so that its weights are at hand."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 2):
        for name, run in runs.items():
            given: Any = torch.from_numpy(images) if name == "torch" else images
            run(given)
            start = time.process_time()
            run(given)
            seconds[name].append(time.process_time() - start)
    return {name: 1000 * statistics.median(times[2:]) for name, times in seconds.items()}


if __name__ == "__main__":
    main()
