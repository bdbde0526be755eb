"""What merging tokens costs in accuracy: one really trained model, real photos with known classes, every r.

    python -m benchmarks.merging MODEL PHOTOS [--most 16] [--write]

MODEL: an ImageNet classifier, such as DeiT-Ti/16. PHOTOS: a folder of JPEGs whose names begin with the number of their
class, 207_golden_retriever.jpg. float32, torch. No speed: `vitrail bench --merge-tokens R` measures that.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.inference.engine import Engine
from vitrail.model.cost import merged_multiply_adds, multiply_adds
from vitrail.model.efficient.token_merging import merges_in_blocks
from vitrail.model.encoder import Encoder

RESULTS = Path(__file__).parent / "results" / "merging.md"
PAGE = """# What merging tokens costs

{today}, torch {torch}, float32, no training. `python -m benchmarks.merging {model} {photos} --write`

{model} on {count} photos of ImageNet classes. r patches are merged in each block
(`src/vitrail/model/efficient/token_merging.py`). 'same answer' compares with the network that merges nothing. One photo
is {one:.2f} points, and the 95 % interval of an accuracy here is about {interval:.1f} points either way: rows a few
photos apart are equal. The loss, cross-entropy of the true class, is steadier.

| r | tokens in the last block | multiply-adds | accuracy | same answer | loss |
|---|---|---|---|---|---|
{rows}
"""


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
    rows, plain = [], outputs_of(engine.checkpoint.model, images)
    for r in range(options.most + 1):
        merged = plain if r == 0 else outputs_of(engine.checkpoint.model.with_merged_tokens(r), images)
        rows.append(row(engine.checkpoint.model, r, plain, merged, classes))
        print(rows[-1], flush=True)
    accuracy = float((plain.argmax(1) == classes).double().mean())
    text = PAGE.format(
        today=datetime.datetime.now(tz=datetime.UTC).date(),
        torch=torch.__version__,
        model=options.model.name,
        photos=options.photos.name,
        count=len(paths),
        one=100 / len(paths),
        interval=196 * (accuracy * (1 - accuracy) / len(paths)) ** 0.5,
        rows="\n".join(rows),
    )
    if options.write:
        RESULTS.write_text(text, encoding="utf-8")


@torch.inference_mode()
def outputs_of(network: Encoder, images: Tensor) -> Tensor:
    """(N, classes)."""
    return torch.cat([network.eval()(batch) for batch in images.split(25)])


def row(network: Encoder, r: int, plain: Tensor, merged: Tensor, classes: Tensor) -> str:
    config = network.config
    left = config.tokens - sum(merges_in_blocks(config, r))
    work = merged_multiply_adds(config, r) / multiply_adds(config)
    right = int((merged.argmax(1) == classes).sum())
    same = int((merged.argmax(1) == plain.argmax(1)).sum())
    share = 100 / len(classes)
    loss = float(F.cross_entropy(merged, classes))
    return f"| {r} | {left} | {100 * work:.0f} % | {right * share:.1f} % | {same * share:.1f} % | {loss:.3f} |"


if __name__ == "__main__":
    main()
