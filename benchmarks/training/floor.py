"""`floor`: how fast a step could be at best: its matrix products and its attention alone, in float32.

No data, no norms, no activations, no residuals, no optimizer: all blocks on all tokens. A pipeline can be below that
only by products that it need not make: with [CLS] pooling vitrail carries no patches through most of the last block,
10/12 of that block's linear maps, so 14 % of all with 6 blocks and 7 % with 12.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.nn.functional as F

from training.results import write_section
from training.throughput import KINDS, PEERS, Kind, install_accelerate, measure_peer
from vitrail.training.optim.memory import keep_freed_memory

PACKAGES = ("torch", "timm", "transformers")


def products(kind: Kind) -> float:
    """Seconds of all products of one step: each linear map forward, for its input's gradient, and for its own."""
    rows, width = kind.batch * ((kind.image // kind.patch) ** 2 + 1), kind.width
    maps = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    sets = [(torch.randn(rows, i), torch.randn(o, i), torch.randn(rows, o)) for i, o in maps]
    heads = torch.randn(3, kind.batch, kind.heads, rows // kind.batch, width // kind.heads, requires_grad=True)
    grown = torch.ones_like(heads[0])
    like_outputs = {o: torch.empty(rows, o) for o in (width, 3 * width, 4 * width)}  # new memory would cost time too
    begun = time.perf_counter()
    for _ in range(kind.depth):
        for inputs, weight, gradient in sets:
            torch.mm(inputs, weight.T, out=like_outputs[weight.shape[0]])
            torch.mm(gradient, weight, out=like_outputs[weight.shape[1]])
            torch.mm(gradient.T, inputs)
        F.scaled_dot_product_attention(*heads).backward(grown)
    return time.perf_counter() - begun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", choices=tuple(KINDS), required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2, help="of the peers' DataLoader")
    parser.set_defaults(keep_blocks=False)


def run(arguments: argparse.Namespace) -> None:
    install_accelerate(arguments.work)
    keep_freed_memory()
    kind = KINDS[arguments.kind]
    floors, fastest = [], []
    for number in range(arguments.rounds):
        print(f"-- {arguments.kind}, round {number + 1} of {arguments.rounds}", flush=True)
        seconds = min(products(kind) for _ in range(arguments.steps))
        floors.append(kind.batch / seconds)
        peers = [measure_peer(arguments.kind, module, arguments) for _, module in PEERS.values()]
        fastest.append(max(one["images_per_second"] for one in peers))
    ratio = statistics.median(floor / peer for floor, peer in zip(floors, fastest, strict=True))
    lines = [
        f"{kind.image} px, patch {kind.patch}, {kind.width} x {kind.depth}, batch {kind.batch}, float32: the matrix",
        "products and the attention of a step, forward and backward, and nothing else (the shortest of "
        f"{arguments.steps}), beside the whole pipelines of the peers; {arguments.rounds} interleaved rounds.",
        "",
        "| what | images/s of each round | times the faster peer |",
        "|---|---|---|",
        f"| products and attention alone | {', '.join(f'{one:,.1f}' for one in floors)} | **{ratio:.2f}** |",
        f"| the faster peer, a whole pipeline | {', '.join(f'{one:,.1f}' for one in fastest)} | 1 |",
    ]
    write_section(arguments.results, f"Floor: {arguments.kind}", lines, PACKAGES)
