"""This code against an earlier commit of it: has anything become slower?

    python benchmarks/commits.py a8cf6f0              five rounds, about 6 minutes on 2 cores
    python benchmarks/commits.py a8cf6f0 --rounds 1   to see that it runs

The earlier commit is checked out into a temporary folder. Each measurement is a process of its own, and the two take
turns, the first one changing from round to round, so that a slow moment of the machine hits both alike. What counts is
the median over the rounds of (the earlier time / the time now): above 1 is faster. Only what both commits have is
called: `vitrail.ViT`, and the commands. The table is written to benchmarks/results/commits.md.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "commits.md"
HERE = Path(__file__).parents[1]
CLIENTS, EACH = 16, 15  # requests to the server
EPOCHS = 3


# ---- the network alone, in a process whose PYTHONPATH names the commit


def forward(batch: int, times: int) -> float:
    import torch

    import vitrail

    model = vitrail.ViT("S/16").eval()
    images = torch.randn(batch, 3, 224, 224)
    with torch.inference_mode():
        return median_of(lambda: model(images), times)


def training_step() -> float:
    import torch
    import torch.nn.functional as F

    import vitrail

    config = vitrail.ViTConfig(image_size=32, patch_size=4, width=192, depth=6, heads=3, classes=10)
    model = vitrail.ViT(config).train()
    images, targets = torch.randn(256, 3, 32, 32), torch.randint(10, (256,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), targets).backward()
        optimizer.step()

    return median_of(step, 8)


def median_of(work: Callable[[], object], times: int) -> float:
    seconds = []
    for _ in range(times + 2):  # two to warm up
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[2:])


NETWORK: dict[str, Callable[[], float]] = {
    "forward pass, S/16, 1 image": lambda: forward(1, 30),
    "forward pass, S/16, 16 images": lambda: forward(16, 6),
    "training step of the network, 256 images of 32 px": training_step,
}


# ---- the commands of a checkout


def run_python(checkout: Path, *arguments: object) -> str:
    command = [sys.executable, *map(str, arguments)]
    result = subprocess.run(command, env=environment_of(checkout), capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} failed in {checkout}:\n{result.stderr}")
    return result.stdout


def environment_of(checkout: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(checkout / "src")}


def train(checkout: Path, folder: Path) -> float:
    """Seconds of training an image, by the run's own record."""
    with tempfile.TemporaryDirectory() as out:
        run = Path(out, "run")
        task = ("--task", "classify", "--out", run, "--epochs", EPOCHS)
        run_python(checkout, "-m", "vitrail", "train", folder / "shapes", *task)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return 1 / statistics.median(row["images_per_second"] for row in rows if "images_per_second" in row)


def answer_requests(checkout: Path, folder: Path) -> float:
    """Seconds a request, with many clients at once."""
    import serve  # needs the code of now, which a process of the earlier commit does not have

    images = [path.read_bytes() for path in sorted((folder / "jpegs").glob("*.jpg"))]
    server = serve.Server(folder / "model.safetensors", environment_of(checkout))
    serve.load(server.port, images, None, CLIENTS, 2)  # warm
    tally = serve.load(server.port, images, None, CLIENTS, EACH)
    server.stop()
    assert tally.statuses[200] == CLIENTS * EACH
    return tally.whole / (CLIENTS * EACH)


def explain(checkout: Path, folder: Path) -> float:
    """Seconds of the whole command."""
    picture = folder / "jpegs" / "0.jpg"
    began = time.perf_counter()
    run_python(
        checkout, "-m", "vitrail", "explain", folder / "model.safetensors", picture, "--out", folder / "why.html"
    )
    return time.perf_counter() - began


COMMANDS: dict[str, Callable[[Path, Path], float]] = {
    "an image in `vitrail train`, generated shapes": train,
    f"a request to `vitrail serve`, S/16, {CLIENTS} clients": answer_requests,
    "`vitrail explain`, one picture, S/16, a page with everything": explain,
}


# ---- the two commits in turns


def measure(job: str, checkout: Path, folder: Path) -> float:
    if job in NETWORK:
        return float(run_python(checkout, __file__, "--network", job))
    return COMMANDS[job](checkout, folder)


def prepare(folder: Path) -> None:
    """A model, JPEGs and a data set that both commits read."""
    import serve

    serve.save_model(folder / "model.safetensors")
    (folder / "jpegs").mkdir()
    serve.make_images(folder / "jpegs", 16)
    run_python(HERE, "-m", "vitrail", "make-data", "shapes", folder / "shapes", "--images", 1500)


def compare(base: str, rounds: int) -> list[str]:
    times: dict[str, list[tuple[float, float]]] = {job: [] for job in (*NETWORK, *COMMANDS)}
    with tempfile.TemporaryDirectory() as temporary:
        folder, before = Path(temporary), Path(temporary, "before")
        subprocess.run(["git", "worktree", "add", "--detach", "-q", str(before), base], cwd=HERE, check=True)
        try:
            prepare(folder)
            for number, job in itertools.product(range(rounds), times):
                order = (before, HERE) if number % 2 == 0 else (HERE, before)
                seconds = {checkout: measure(job, checkout, folder) for checkout in order}
                times[job].append((seconds[before], seconds[HERE]))
                print(f"{job}: {seconds[before]:.4f} s before, {seconds[HERE]:.4f} s now", flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(before)], cwd=HERE, check=True)
    return table(base, times)


def table(base: str, times: dict[str, list[tuple[float, float]]]) -> list[str]:
    from training.results import machine

    now = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True).stdout
    rounds = len(next(iter(times.values())))
    lines = [
        "# This code against an earlier commit",
        "",
        f"{datetime.date.today()}, {machine()}. `python benchmarks/commits.py {base} --rounds {rounds}`: {base} "
        f"before, {now.strip()} now.",
        "float32 where the network is called; the commands choose their precision, the same in both.",
        "",
        "| what | before | now | times as fast | of each round |",
        "|---|---|---|---|---|",
    ]
    for job, pairs in times.items():
        before, after = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratios = [old / new for old, new in pairs]
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        lines.append(
            f"| {job} | {1000 * before:.1f} ms | {1000 * after:.1f} ms | **{statistics.median(ratios):.2f}** | {each} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", help="the earlier commit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--network", choices=NETWORK, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.network:
        print(NETWORK[arguments.network]())
        return
    if arguments.base is None:
        parser.error("name the earlier commit")
    lines = compare(arguments.base, arguments.rounds)
    print("\n".join(lines))
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
