"""What parity with another library's model takes: weights in which every parameter matters, and the comparison.

And what every family must survive: files that are damaged.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.peers.families import outputs_of, randomise_all
from vitrail.errors import VitrailError
from vitrail.model.vit import ViT
from vitrail.weights.checkpoint import filled_model
from vitrail.weights.families import recognise
from vitrail.weights.source import Source

OUTPUTS, HIDDEN = 1e-4, 1e-3  # largest differences allowed, float32


def compare_outputs(ours: ViT, images: Tensor, answer: Tensor, hidden: Sequence[Tensor]) -> tuple[float, float]:
    """The largest differences of the answer and of any block, both within the limits and neither trivially."""
    with torch.no_grad():
        own_answer = ours(images)
        own_hidden = ours.features(images, blocks=range(ours.config.depth)).blocks
    assert len(own_hidden) == len(hidden) == ours.config.depth
    of_answer = (own_answer - answer).abs().max().item()
    of_hidden = max((own - theirs).abs().max().item() for own, theirs in zip(own_hidden, hidden, strict=True))
    assert 0.1 < answer.std() < 100 and all(0.1 < block.std() < 100 for block in hidden)
    assert of_answer <= OUTPUTS, f"outputs differ by {of_answer}"
    assert of_hidden <= HIDDEN, f"hidden states differ by {of_hidden}"
    return of_answer, of_hidden


JUNK: tuple[Any, ...] = (
    None,
    -1,
    0,
    7,
    0.5,
    float("nan"),
    "x",
    "",
    [],
    [1, 2],
    [3, 32, "x"],
    {},
    {"a": 1},
    True,
    10**9,
)


def convert_damaged(source: Source, rounds: int = 120) -> None:
    """Tensors lost, cut and reshaped, settings replaced by junk: every time a model or a sentence."""
    chance = random.Random(0)
    refused = 0
    for _ in range(rounds):
        damaged = replace(source, tensors=dict(source.tensors), config=json.loads(json.dumps(source.config)))
        for _ in range(chance.choice((0, 1, 1, 3))):
            _damage_a_tensor(damaged.tensors, chance)
        for values in (damaged.config, *(part for part in damaged.config.values() if isinstance(part, dict))):
            if values and chance.random() < 0.5:
                values[chance.choice(list(values))] = chance.choice(JUNK)
        try:
            foreign = recognise(damaged).convert(damaged, {"heads": 3})
            filled_model(foreign.config, {name: tensor.float() for name, tensor in foreign.tensors.items()})
        except VitrailError as error:
            assert "\n" not in str(error)
            refused += 1
    assert 0 < refused < rounds


def _damage_a_tensor(tensors: dict[str, Tensor], chance: random.Random) -> None:
    name = chance.choice(list(tensors))
    tensor = tensors[name]
    changes = (
        lambda: tensors.pop(name),
        lambda: tensors.update({name: torch.zeros([chance.choice((0, 1, 3, 24)) for _ in range(chance.randrange(5))])}),
        lambda: tensors.update({name: tensor.unsqueeze(-1)}),
        lambda: tensors.update({name: tensor.flatten()}),
        lambda: tensors.update({name: tensor[: chance.randrange(len(tensor) + 1)]}),
        lambda: tensors.update({chance.choice(("blocks.7.x", "blocks.x.y", "something")): tensor}),
    )
    chance.choice(changes)()


@pytest.fixture(scope="session")
def damaged() -> Callable[[Source], None]:
    return convert_damaged


@pytest.fixture(scope="session")
def randomise() -> Callable[..., nn.Module]:
    return randomise_all


@pytest.fixture(scope="session")
def outputs() -> Callable[..., tuple[Tensor, list[Tensor]]]:
    return outputs_of


@pytest.fixture(scope="session")
def compare() -> Callable[..., tuple[float, float]]:
    return compare_outputs
