"""How time and memory grow with the picture: a plain ViT, one with windows in most blocks, and Swin.

    python benchmarks/growth.py                       every network, 224 to 2,048 px: 8 minutes on one core
    python benchmarks/growth.py --only swin-T --pixels 4096    this network and size; other rows are kept

One image, forward only, float32, fresh weights. Each run is a process of its own: build the network, run it on a small
image so that everything is in place, then on the large one. Memory is the peak during that above what was held before;
time is the best of up to three runs. Rows are kept in benchmarks/results/growth.json; the table and the plots beside it
are made from them. A line is fitted to Swin's time and memory over the number of patches: it is meant to be O(N).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attention import status
from PIL import Image, ImageDraw, ImageFont

from training.results import table_row

RESULTS = Path(__file__).parent / "results"
NETWORKS: dict[str, tuple[str, str, dict[str, Any]]] = {  # words, preset, what is changed in it
    "S/16": ("ViT-S/16", "S/16", {}),
    "S/16 windows": ("ViT-S/16, windows of 14 in 8 of 12 blocks", "S/16", {"attention_window": 14}),
    "swin-T": ("Swin-T", "swin-T", {}),
}
PIXELS = (224, 512, 1024, 1536, 2048)
COLOURS = {"S/16": "#b2182b", "S/16 windows": "#ed9b25", "swin-T": "#2166ac"}
LEAST_R2 = 0.99  # of the line through Swin's points


# ---- one process


@torch.inference_mode()
def one_run(name: str, pixels: int) -> None:
    from vitrail.model.presets import build_network, preset

    _, size, changes = NETWORKS[name]
    model = build_network(preset(size, **changes)).eval()
    down, across = model.config.patch_size
    model(torch.randn(1, 3, 64, 64))
    image = torch.randn(1, 3, pixels, pixels)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew here
    seconds: list[float] = []
    while len(seconds) < 3 and sum(seconds) < 3:
        start = time.perf_counter()
        model(image)
        seconds.append(time.perf_counter() - start)
    patches = (pixels // down) * (pixels // across)
    print(json.dumps({"patches": patches, "bytes": status("VmHWM") - before, "seconds": min(seconds)}))


def measured(name: str, pixels: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--run", name, str(pixels)]
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if run.returncode:
        raise SystemExit(run.stderr)
    return {"network": name, "pixels": pixels, **json.loads(run.stdout.splitlines()[-1])}


# ---- all of them


def line(rows: Sequence[dict[str, Any]], what: str) -> tuple[float, float, float]:
    """A straight line through `what` over the patches, by least squares: slope, intercept and R2."""
    x, y = (np.array([row[key] for row in rows], float) for key in ("patches", what))
    slope, intercept = np.polyfit(x, y, 1)
    left = y - (slope * x + intercept)
    return float(slope), float(intercept), float(1 - (left**2).sum() / ((y - y.mean()) ** 2).sum())


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    names = [name for name in NETWORKS if any(row["network"] == name for row in rows)]
    yield table_row("px", *(f"{NETWORKS[name][0]}: {what}" for name in names for what in ("patches", "time", "memory")))
    yield "|" + "---|" * (1 + 3 * len(names))
    cells = {(row["network"], row["pixels"]): row for row in rows}
    for pixels in sorted({row["pixels"] for row in rows}):
        shown = []
        for name in names:
            row = cells.get((name, pixels))
            shown += ["", "", ""] if row is None else [
                f"{row['patches']:,}", f"{row['seconds']:.2f} s", f"{row['bytes'] / 1e6:,.0f} MB"
            ]  # fmt: skip
        yield table_row(f"{pixels:,}", *shown)


def write_page(rows: Sequence[dict[str, Any]]) -> None:
    swin = [row for row in rows if row["network"] == "swin-T"]
    lines = [
        "# How time and memory grow with the picture",
        "",
        f"{datetime.date.today()}, {platform.machine()}, one core, torch {torch.__version__}. "
        "`python benchmarks/growth.py`: one image, forward only, float32, fresh weights, a new process for each cell.",
        "Memory is the peak above what the process held with the network built. The networks have 22 and 28 million",
        "parameters. An empty cell was not measured. Fused attention never holds its map, so a plain ViT's memory is",
        "O(N), too; its time is not. Swin cuts 4 px patches, 16 times as many: it holds more, and overtakes in time.",
        "",
        *table(rows),
        "",
    ]
    for most in sorted({max(PIXELS), max((row["pixels"] for row in swin), default=0)}):  # one far point could hide much
        fitted = [row for row in swin if row["pixels"] <= most]
        for what, unit, words in (("seconds", 1e6, "time: {:.1f} µs"), ("bytes", 1e-3, "memory: {:.2f} kB")):
            if len(fitted) > 2:
                slope, _, r2 = line(fitted, what)
                fit = f"R2 of the line {r2:.4f} ({'at least' if r2 >= LEAST_R2 else 'BELOW'} {LEAST_R2})"
                lines.append(f"- Swin-T up to {most:,} px, {words.format(slope * unit)} a patch, {fit}.")
    lines += ["", "![time](growth-time.png)", "![memory](growth-memory.png)"]
    (RESULTS / "growth.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    plot(rows, "seconds", 1.0, "seconds for one image").save(RESULTS / "growth-time.png")
    plot(rows, "bytes", 1e-6, "MB at the peak, above the network itself").save(RESULTS / "growth-memory.png")


def plot(rows: Sequence[dict[str, Any]], what: str, unit: float, title: str) -> Image.Image:
    """Both axes logarithmic: a straight line of slope 1 over the pixels of the picture is O(N)."""
    wide, high, left, right, top, bottom = 900, 560, 90, 30, 60, 60
    picture = Image.new("RGB", (wide, high), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(15)
    xs = np.log([row["pixels"] ** 2 for row in rows])
    ys = np.log10([row[what] * unit for row in rows])
    low, most = np.floor(ys.min()), np.ceil(ys.max())

    def at(pixels: int, value: float) -> tuple[float, float]:
        x = (np.log(pixels**2) - xs.min()) / (xs.max() - xs.min())
        y = (np.log10(value) - low) / (most - low)
        return left + x * (wide - left - right), high - bottom - y * (high - top - bottom)

    for power in range(int(low), int(most) + 1):
        _, y = at(224, 10.0**power)
        draw.line((left, y, wide - right, y), "#dddddd")
        draw.text((left - 10, y), f"{10.0**power:,g}", "#444444", font, anchor="rm")
    for pixels in sorted({row["pixels"] for row in rows}):
        x, y = at(pixels, 10.0**low)
        draw.line((x, top, x, y), "#eeeeee")
        draw.text((x, y + 10), f"{pixels:,} px", "#444444", font, anchor="ma")
    draw.text((left, 12), title, "black", ImageFont.load_default(18))
    for number, name in enumerate(name for name in NETWORKS if any(row["network"] == name for row in rows)):
        own = sorted((row["pixels"], row[what] * unit) for row in rows if row["network"] == name)
        points = [at(*point) for point in own]
        draw.line(points, COLOURS[name], 3)
        for x, y in points:
            draw.ellipse((x - 5, y - 5, x + 5, y + 5), COLOURS[name])
        line_of_legend = top + 8 + 22 * number
        draw.ellipse((left + 20, line_of_legend + 3, left + 30, line_of_legend + 13), COLOURS[name])
        draw.text((left + 38, line_of_legend), NETWORKS[name][0], COLOURS[name], font)
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=NETWORKS, help="this network alone; rows of others are kept")
    parser.add_argument("--pixels", type=int, nargs="+", default=PIXELS, help="sides of the square pictures")
    parser.add_argument("--run", nargs=2, metavar=("NETWORK", "PIXELS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        one_run(arguments.run[0], int(arguments.run[1]))
        return
    kept = RESULTS / "growth.json"
    rows = {(row["network"], row["pixels"]): row for row in (json.loads(kept.read_text()) if kept.exists() else [])}
    for name in [arguments.only] if arguments.only else NETWORKS:
        for pixels in arguments.pixels:
            row = rows[name, pixels] = measured(name, pixels)
            print(f"{name:>14} {pixels:>5} px {row['seconds']:8.2f} s {row['bytes'] / 1e6:8,.0f} MB", flush=True)
            kept.write_text(json.dumps(list(rows.values()), indent=1) + "\n")
    write_page(list(rows.values()))


if __name__ == "__main__":
    main()
