"""Which parameters learn, how fast, and by which rule: the optimizers of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vitrail.model.encoder import Encoder
from vitrail.training.optim.lora import is_low_rank
from vitrail.training.optim.muon import Muon

BETAS = (0.9, 0.95)  # the second shorter than AdamW's usual 0.999: a run of a few thousand steps must forget its start
CNN_RATE = 0.1  # of a pre-trained CNN below a fresh encoder, as DETR's backbone
CNN = "stem.cnn."  # how the names of its parameters begin


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The peak learning rates, and what else tells parameters apart."""

    adamw: float
    muon: float | None = None  # None: AdamW for all
    weight_decay: float = 0.05
    layer_decay: float = 1.0
    cnn: float = 1.0  # share of the rate at which the CNN of a stem learns


def choose_trained(model: Encoder, train_only: str, freeze_cnn: bool = False) -> None:
    """Freeze what is not trained. LoRA's own matrices are added by `add_low_rank` and stay free."""
    if freeze_cnn:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not name.startswith(CNN))
    if train_only == "all":
        return
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(in_head(name) or (train_only == "lora" and is_low_rank(name)))


def optimizers(model: Encoder, rates: Rates, others: Iterable[tuple[str, nn.Parameter]] = ()) -> list[Optimizer]:
    """AdamW, and Muon for the matrices. A group knows its peak as "peak" and its share of it. others: parameters by
    name that are trained beside the model's."""
    groups: dict[tuple[str, float, float, int], list[Tensor]] = defaultdict(list)
    for name, parameter in chain(trained(model), others):
        decay = rates.weight_decay if parameter.dim() > 1 and not is_token(name) else 0.0
        by_muon = rates.muon is not None and is_matrix(name, parameter, model.config.channels)
        scale = layer_scale(name, model.config.depth, rates.layer_decay)
        scale *= rates.cnn if name.startswith(CNN) else 1.0
        stacks = 3 if by_muon and ".qkv." in name else 1
        groups["muon" if by_muon else "adamw", scale, decay, stacks].append(parameter)
    by_kind: dict[str, list[dict]] = defaultdict(list)
    for (kind, scale, decay, stacks), parameters in groups.items():
        peak = scale * (rates.muon if kind == "muon" and rates.muon is not None else rates.adamw)
        group = {"params": parameters, "lr": peak, "peak": peak, "weight_decay": decay}
        by_kind[kind].append(group | {"stacks": stacks} if kind == "muon" else group)
    result: list[Optimizer] = []
    if by_kind["adamw"]:
        result.append(torch.optim.AdamW(by_kind["adamw"], betas=BETAS, fused=True))
    if by_kind["muon"]:
        result.append(Muon(by_kind["muon"]))
    return result


def trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def in_head(name: str) -> bool:
    return name.startswith(("head.", "distillation_head."))


def is_matrix(name: str, parameter: Tensor, channels: int) -> bool:
    """What Muon takes: the blocks' matrices and the stem's kernels, but for the one that reads pixels, and a dense
    head's. LoRA's are slim on purpose. Kernels too: CIFAR-10 after 4.2 epochs, one run each: 77.5 %, with AdamW for
    them 69.2 %."""
    if is_low_rank(name) or is_token(name):
        return False
    if name.startswith(("stem.layers.", "head.convs.")) and parameter.dim() == 4:
        return parameter.shape[1] != channels
    in_block = name.startswith(("blocks.", "merges.", "head.blocks.", "head.layers."))
    return in_block and parameter.dim() == 2


def is_token(name: str) -> bool:
    """[CLS], registers, queries, positions, scales: numbers that stand for something, which decay would pull away from
    it. Swin's relative positions too, be they a table or an MLP."""
    tables = ("positions.table", "relative_bias.table", ".logit_scale")
    tokens = ("cls_token", "distillation_token", "registers", "queries")
    return name in tokens or name.endswith(tables) or ".attention.positions." in name


def layer_scale(name: str, depth: int, decay: float) -> float:
    """Fine-tuning: the head learns at the full rate, each block below `decay` times the one above, the stem least."""
    if name.startswith(("blocks.", "merges.")):  # patches are merged for the block of that number
        return decay ** (depth - int(name.split(".")[1]))
    below = name.startswith(("stem", "positions")) or is_token(name)
    return decay ** (depth + 1) if below else 1.0
