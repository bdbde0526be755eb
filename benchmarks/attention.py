"""What a look at [CLS] costs: our maps, recomputed beside fused attention, against transformers' eager attention.

    python benchmarks/attention.py            785 and 3,137 tokens, a minute or two on 2 cores, 5 GB for transformers
    python benchmarks/attention.py --quick    785 tokens

Both hold the same weights: a ViT of S/8's size is made by transformers, saved, and loaded by vitrail. Each run is a
process of its own and does one thing: load the model, look at one small image so that everything is in place, then look
at the large one. Memory is the peak during that look above what was held before it; the maps are compared at the end.
The table is written to benchmarks/results/attention.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peers.process import let_torchvision_import
from training.results import table_row

RESULTS = Path(__file__).parent / "results" / "attention.md"
SIZE = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536}
PATCH = 8
WHAT = {"last": "[CLS], last block", "all": "[CLS], all 12 blocks"}
Look = Callable[[Tensor], list[Tensor]]


# ---- one process: load, look, tell


def ours(folder: Path, which: str) -> Look:
    import vitrail
    from vitrail.explanation.methods.attention_maps import attention_maps

    model = vitrail.load(folder).model

    def look(images: Tensor) -> list[Tensor]:
        return [maps.patches for maps in attention_maps(model, images, blocks=[-1] if which == "last" else None)]

    return look


def theirs(folder: Path, which: str) -> Look:
    let_torchvision_import()
    import transformers

    model = transformers.ViTModel.from_pretrained(folder, attn_implementation="eager", add_pooling_layer=False).eval()

    @torch.inference_mode()
    def look(images: Tensor) -> list[Tensor]:
        maps = model(images, output_attentions=True, interpolate_pos_encoding=True).attentions
        grid = images.shape[2] // PATCH, images.shape[3] // PATCH
        rows = [one[:, :, 0, 1:].unflatten(-1, grid).clone() for one in maps]
        return rows[-1:] if which == "last" else rows

    return look


def status(field: str) -> int:
    """Bytes, from Linux's record of this process: VmRSS now, VmHWM at its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this benchmark reads /proc/self/status and runs on Linux")


def one_run(who: str, which: str, pixels: int, folder: Path) -> None:
    look = (ours if who == "vitrail" else theirs)(folder, which)
    generator = torch.Generator().manual_seed(0)
    look(torch.randn(1, 3, 64, 64, generator=generator))
    image = torch.randn(1, 3, pixels, pixels, generator=torch.Generator().manual_seed(1))
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew here
    start = time.perf_counter()
    maps = look(image)
    seconds = time.perf_counter() - start
    torch.save(maps, folder / f"{who}.pt")
    print(json.dumps({"bytes": status("VmHWM") - before, "seconds": seconds}))


# ---- all of them


def measured(who: str, which: str, pixels: int, folder: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--run", who, which, str(pixels), str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if run.returncode:
        raise SystemExit(run.stderr)
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return result


def save_model(folder: Path) -> None:
    """A fresh ViT whose attention is not even: larger weights than training starts from."""
    let_torchvision_import()
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(image_size=224, patch_size=PATCH, initializer_range=0.05, **SIZE)
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(folder)


def row(which: str, pixels: int, folder: Path) -> str:
    runs = {who: measured(who, which, pixels, folder) for who in ("vitrail", "transformers")}
    maps = [torch.load(folder / f"{who}.pt", weights_only=True) for who in runs]
    apart = max(float((a - b).abs().max()) for a, b in zip(*maps, strict=True))
    tokens = (pixels // PATCH) ** 2 + 1
    our_bytes, their_bytes = (run["bytes"] for run in runs.values())
    memory = (f"{size / 1e6:,.0f} MB" for size in (our_bytes, their_bytes))
    times = (f"{run['seconds']:.2f} s" for run in runs.values())
    less = f"**{their_bytes / max(our_bytes, 1):.1f}**"
    return table_row(f"{WHAT[which]}, {tokens:,} tokens", *memory, less, *times, f"{apart:.0e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="785 tokens only")
    parser.add_argument("--run", nargs=4, metavar=("WHO", "WHICH", "PIXELS", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        who, which, pixels, folder = arguments.run
        one_run(who, which, int(pixels), Path(folder))
        return
    lines = [
        "| case | memory, vitrail | memory, transformers | times less | time, vitrail | time, transformers | apart |",
        "|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as temporary:
        save_model(Path(temporary))
        for pixels in (224,) if arguments.quick else (224, 448):
            for which in WHAT:
                lines.append(row(which, pixels, Path(temporary)))
                print(lines[-1], flush=True)
    heading = [
        "# What a look at [CLS] costs",
        "",
        f"{datetime.date.today()}, {platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}.",
        f"`python benchmarks/attention.py{' --quick' if arguments.quick else ''}`: width 384, 12 blocks, 6 heads, "
        "patch 8, one image, float32, the same weights.",
        "",
        "Memory is the peak of the process while it looks, above what it held with the model loaded. Our maps are",
        "recomputed for the one query, so no matrix of all pairs is ever held; eager attention holds one a head.",
        "'apart' is the largest difference between the two maps.",
        "",
    ]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("\n".join(heading + lines) + "\n")


if __name__ == "__main__":
    main()
