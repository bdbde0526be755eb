"""How near is each family to the library that it is read from? Random weights, float32, every block compared.

    python -m benchmarks.parity [WORD] [--write]

Each model of `benchmarks/peers/families.py` is built at its published width and depth with random weights in which
every parameter matters, saved as its library saves it, and loaded by Vitrail. Both see the same images at the native
size, at a larger one and at one that is no square. Shown is the largest difference of an answer, and of a block.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

import vitrail
from benchmarks.peers.families import PEERS, Built, Peer, Size
from benchmarks.peers.process import let_torchvision_import

RESULTS = Path(__file__).parent / "results" / "parity.md"
PAGE = """# Every family against its library

{today}, torch {torch}, float32, one random image. `python -m benchmarks.parity --write`

Published width and depth, random weights. Answers are of the order of 1; the limit is 1e-4 for an answer and 1e-3 for a
block.

| family | against | sizes | largest difference of an answer | of a block's output |
|---|---|---|---|---|
{rows}
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("word", nargs="?", default="", help="only families or models with this in their name")
    arguments.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = arguments.parse_args()
    let_torchvision_import()
    rows = []
    for peer in PEERS:
        if options.word.lower() in f"{peer.family} {peer}".lower():
            rows.append(row(peer))
            print(rows[-1], flush=True)
    if options.write:
        today = datetime.datetime.now(tz=datetime.UTC).date()
        RESULTS.write_text(PAGE.format(today=today, torch=torch.__version__, rows="\n".join(rows)), encoding="utf-8")


def row(peer: Peer) -> str:
    """A line of the table, of the published model."""
    with tempfile.TemporaryDirectory() as folder:
        built = peer.build("published", Path(folder))
        answer, block = largest_differences(built, built.sizes)
    sizes = ", ".join(f"{height}x{width}" if height != width else str(height) for height, width in built.sizes)
    return f"| {peer.family} | {peer.library}: `{peer.name}` | {sizes} | {answer:.1e} | {block:.1e} |"


def largest_differences(built: Built, sizes: Sequence[Size], batch: int = 1) -> tuple[float, float]:
    """Of the answer, and of any block, over these image sizes."""
    ours = vitrail.load(built.path, **built.settings).model
    largest = [0.0, 0.0]
    for size in sizes:
        channels = ours.config.channels
        images = torch.randn(batch, channels, *size, generator=torch.Generator().manual_seed(1))
        answer, blocks = built.run(images)
        with torch.no_grad():
            own_answer = ours(images)
            own_blocks = ours.features(images, blocks=range(ours.config.depth)).blocks
        assert own_answer.shape == answer.shape
        assert all(0.05 < tensor.std() < 100 for tensor in (answer, *blocks)), "nothing, or too much, to compare"
        largest[0] = max(largest[0], float((own_answer - answer).abs().max()))
        pairs = zip(own_blocks, blocks, strict=True)
        largest[1] = max(largest[1], *(float((own - theirs).abs().max()) for own, theirs in pairs))
    return largest[0], largest[1]


if __name__ == "__main__":
    main()
