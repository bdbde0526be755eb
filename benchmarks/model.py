"""The network against timm's and transformers', side by side: forward passes and a training step.

    python benchmarks/model.py            all cases, about 10 minutes on 2 cores
    python benchmarks/model.py --quick    without the bfloat16 step, which takes minutes where a CPU emulates it

All three run in this process, one after the other in every round, so that a slow moment of the machine hits them
alike; a ratio is the median over the rounds of (the faster peer's time / ours). The table is written to
benchmarks/results/model.md.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peers.process import let_torchvision_import

let_torchvision_import()

import timm  # noqa: E402
import transformers  # noqa: E402

import vitrail  # noqa: E402
from training.results import cpu_name, table_row  # noqa: E402
from vitrail.model.precision import computes_bf16  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "model.md"
COMPUTED = ["This CPU computes in bfloat16, and all three train in it in the last row."]
EMULATED = [
    "This CPU only emulates bfloat16. In the last row the peers train under `torch.autocast`, as asked, and vitrail",
    "under `vitrail.autocast`, which stays in float32 where bfloat16 would be emulated; so the row above it is the one",
    "that compares the networks.",
]
Contenders = dict[str, Callable[[], object]]


class Logits(nn.Module):
    """transformers' model, answering with its logits."""

    def __init__(self, **settings: int) -> None:
        super().__init__()
        self.inner = transformers.ViTForImageClassification(transformers.ViTConfig(**settings))

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images).logits


def models(image: int, patch: int, width: int, depth: int, heads: int, classes: int) -> dict[str, nn.Module]:
    config = vitrail.ViTConfig(
        image_size=image, patch_size=patch, width=width, depth=depth, heads=heads, classes=classes
    )
    theirs = timm.models.VisionTransformer(
        img_size=image, patch_size=patch, embed_dim=width, depth=depth, num_heads=heads, num_classes=classes
    )
    hugging = Logits(
        image_size=image,
        patch_size=patch,
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        num_labels=classes,
    )
    return {"vitrail": vitrail.ViT(config), "timm": theirs, "transformers": hugging}


def forward(batch: int) -> Contenders:
    images = torch.randn(batch, 3, 224, 224)

    def run(model: nn.Module) -> Callable[[], Tensor]:
        return torch.inference_mode()(lambda: model(images))

    return {name: run(model.eval()) for name, model in models(224, 16, 384, 12, 6, 1000).items()}


def training_step(half: bool) -> Contenders:
    images, targets = torch.randn(256, 3, 32, 32), torch.randint(10, (256,))

    def precision(name: str) -> contextlib.AbstractContextManager:
        if not half:
            return contextlib.nullcontext()
        return vitrail.autocast("cpu") if name == "vitrail" else torch.autocast("cpu", dtype=torch.bfloat16)

    def run(name: str, model: nn.Module) -> Callable[[], None]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def step() -> None:
            optimizer.zero_grad()
            with precision(name):
                loss = F.cross_entropy(model(images).float(), targets)
            loss.backward()
            optimizer.step()

        return step

    return {name: run(name, model.train()) for name, model in models(32, 4, 192, 6, 3, 10).items()}


def compare(contenders: Contenders, rounds: int, warm: bool = True) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in contenders}
    if warm:
        for run in contenders.values():
            run()
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return times


def row(title: str, times: dict[str, list[float]]) -> str:
    medians = {name: statistics.median(values) for name, values in times.items()}
    peers = [min(t, h) for t, h in zip(times["timm"], times["transformers"], strict=True)]
    ratio = statistics.median(p / ours for p, ours in zip(peers, times["vitrail"], strict=True))
    milliseconds = (f"{1000 * medians[name]:,.0f} ms" for name in times)
    return table_row(title, *milliseconds, f"**{ratio:.2f}**", str(len(peers)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out the training step under bfloat16 autocast")
    quick = parser.parse_args().quick
    torch.manual_seed(0)
    cases: list[tuple[str, Callable[[], Contenders], int, bool]] = [
        ("forward, S/16, batch 1, float32", lambda: forward(1), 31, True),
        ("forward, S/16, batch 16, float32", lambda: forward(16), 9, True),
        ("training step, 32 px, patch 4, 192 x 6, batch 256, float32", lambda: training_step(False), 11, True),
    ]
    if not quick:
        title = "the same step, bfloat16 asked for"
        cases.append((title, lambda: training_step(True), *((11, True) if computes_bf16("cpu") else (1, False))))
    lines = [
        "| case | vitrail | timm | transformers | faster peer / vitrail | rounds |",
        "|---|---|---|---|---|---|",
    ]
    for title, contenders, rounds, warm in cases:
        lines.append(row(title, compare(contenders(), rounds, warm)))
        print(lines[-1], flush=True)
    versions = f"torch {torch.__version__}, timm {timm.__version__}, transformers {transformers.__version__}"
    heading = [
        "# The network's speed",
        "",
        f"{datetime.date.today()}, {cpu_name()}, {torch.get_num_threads()} threads, "
        f"{torch.backends.cpu.get_cpu_capability()}, {versions}.",
        f"`python benchmarks/model.py{' --quick' if quick else ''}`, medians; interleaved in one process.",
        "",
        *(COMPUTED if computes_bf16("cpu") else EMULATED),
        "",
    ]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("\n".join(heading + lines) + "\n")
    print(
        f"written to {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
