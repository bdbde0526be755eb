"""What merging tokens costs in accuracy: one really trained model, real photos with known classes, every r.

    python -m benchmarks.merging MODEL PHOTOS [--most 16] [--write]

MODEL: an ImageNet classifier, such as DeiT-Ti/16. PHOTOS: a folder of JPEGs whose names begin with the number of their
class, 207_golden_retriever.jpg. float32, torch. No speed: `vitrail bench --merge-tokens R` measures that.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.inference.engine import Engine
from vitrail.model.cost import merged_multiply_adds, multiply_adds
from vitrail.model.efficient.token_merging import TokenMerging, merges_in_blocks
from vitrail.model.encoder import Encoder

RESULTS = Path(__file__).parent / "results" / "merging.md"
PAGE = """# What merging tokens costs

{today}, torch {torch}, float32, no training. `python -m benchmarks.merging {model} {photos} --write`

{model} on {count} photos of ImageNet classes. `--merge-tokens r` merges r x depth patches in all, half of them after a
quarter of the depth and half after half of it (`src/vitrail/model/efficient/token_merging.py`). 'same answer' compares
with the network that merges nothing. One photo is {one:.2f} points, and the 95 % interval of an accuracy here is about
{interval:.1f} points either way: rows a few photos apart are equal. Steadier are the loss, cross-entropy of the true
class, and the expected drop, in points: the accuracy that is lost if the probabilities of the network that merges
nothing are right. `--merge-tokens 0.5%` goes by that one where there are fewer than 400 labels.

{header}
{rows}

## Where to merge

About as many multiply-adds by other schedules: how many patches are merged in which blocks, counted from 0. The paper
merges in every block. Few places are faster, since each costs a matching.

{header}
{places}
"""
HEADER = """| r | tokens in the last block | multiply-adds | accuracy | same answer | expected drop | loss |
|---|---|---|---|---|---|---|"""
PLACES: dict[str, dict[int, int]] = {
    "10 in every block": dict.fromkeys(range(11), 10),
    "27 in 1, 4, 7, 10": dict.fromkeys((1, 4, 7, 10), 27),
    "36 in 3, 5, 7": dict.fromkeys((3, 5, 7), 36),
    "35 in 2, 5, 8": dict.fromkeys((2, 5, 8), 35),
    "35 in 1, 3": dict.fromkeys((1, 3), 35),
    "50 in 3, 6": dict.fromkeys((3, 6), 50),
    "54 in 3, 7": dict.fromkeys((3, 7), 54),
    "54 in 4, 6": dict.fromkeys((4, 6), 54),
    "70 in 2": {2: 70},
    "79 in 3": {3: 79},
    "92 in 4": {4: 92},
}  # for a network of 12 blocks that reads [CLS]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("model", type=Path)
    arguments.add_argument("photos", type=Path)
    arguments.add_argument("--most", type=int, default=16, help="the largest r")
    arguments.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = arguments.parse_args()
    engine = Engine.open(options.model, precision="fp32")
    paths = sorted(options.photos.glob("*.jpg"))
    images = torch.cat([engine.transform([engine.read(path).pixels]) for path in paths])
    classes = torch.tensor([int(path.name.partition("_")[0]) for path in paths])
    network = engine.checkpoint.model
    plain = outputs_of(network, images, [0] * network.depth)
    rows, places = [], []
    for r in range(options.most + 1):
        counts = merges_in_blocks(network.config, r)
        rows.append(row(str(r), network, counts, plain, outputs_of(network, images, counts), classes))
        print(rows[-1], flush=True)
    for name, merged in PLACES.items():
        counts = [merged.get(block, 0) for block in range(network.depth)]
        places.append(row(name, network, counts, plain, outputs_of(network, images, counts), classes))
        print(places[-1], flush=True)
    accuracy = float((plain.argmax(1) == classes).double().mean())
    text = PAGE.format(
        today=datetime.datetime.now(tz=datetime.UTC).date(),
        torch=torch.__version__,
        model=options.model.name,
        photos=options.photos.name,
        count=len(paths),
        one=100 / len(paths),
        interval=196 * (accuracy * (1 - accuracy) / len(paths)) ** 0.5,
        header=HEADER,
        rows="\n".join(rows),
        places="\n".join(places),
    )
    if options.write:
        RESULTS.write_text(text, encoding="utf-8")


@torch.inference_mode()
def outputs_of(network: Encoder, images: Tensor, counts: Sequence[int]) -> Tensor:
    """(N, classes). counts: how many patches each block merges."""
    outputs = []
    for batch in images.split(25):
        embedding = network.eval().embed(batch)._replace(merging=TokenMerging(counts, network.prefix))
        outputs.append(network.forward_embedding(embedding))
    return torch.cat(outputs)


def row(name: str, network: Encoder, counts: Sequence[int], plain: Tensor, merged: Tensor, classes: Tensor) -> str:
    work = merged_multiply_adds(network.config, counts) / multiply_adds(network.config)
    own, answers, certain = plain.argmax(1), merged.argmax(1), plain.softmax(1)
    drop = float((certain.amax(1) - certain.gather(1, answers[:, None])[:, 0]).mean())
    cells = [name, str(network.config.tokens - sum(counts)), f"{100 * work:.0f} %", percent(answers == classes)]
    cells += [percent(answers == own), f"{100 * drop:.2f}", f"{float(F.cross_entropy(merged, classes)):.3f}"]
    return "| " + " | ".join(cells) + " |"


def percent(right: Tensor) -> str:
    return f"{100 * float(right.double().mean()):.1f} %"


if __name__ == "__main__":
    main()
