"""Which answer belongs to which object."""

from __future__ import annotations

import itertools

import pytest
import torch

from vitrail.tasks.detect.box_matching import assign, cost, match


def answers(batch, queries, classes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, queries, classes, generator=generator), boxes(batch, queries, generator)


def boxes(batch, count, generator):
    centre = torch.rand(batch, count, 2, generator=generator)
    return torch.cat([centre, 0.05 + 0.3 * torch.rand(batch, count, 2, generator=generator)], dim=-1)


def objects(counts, classes, most=None, seed=1):
    """(B, M, 5), padded with class -1 at the end."""
    generator = torch.Generator().manual_seed(seed)
    most = max(counts) if most is None else most
    targets = torch.zeros(len(counts), most, 5)
    targets[..., 0] = -1
    for row, count in zip(targets, counts, strict=True):
        row[:count, 0] = torch.randint(classes, (count,), generator=generator).float()
        row[:count, 1:] = boxes(1, count, generator)[0]
    return targets


def test_single_equals_batched():
    counts = [0, 1, 7, 3, 30]
    chances, found = answers(5, 40, 4)
    targets = objects(counts, 4)
    together = match(chances, found, targets)
    for i, count in enumerate(counts):
        alone = match(chances[i : i + 1], found[i : i + 1], targets[i : i + 1, :count])
        assert torch.equal(together[i : i + 1, :count], alone)
        assert (together[i, count:] == -1).all()


def test_padding_changes_nothing_wherever_it_stands():
    chances, found = answers(1, 20, 3)
    targets = objects([6], 3, most=9)
    order = torch.tensor([6, 0, 1, 7, 2, 3, 8, 4, 5])
    assert torch.equal(match(chances, found, targets)[:, order], match(chances, found, targets[:, order]))


def test_it_is_the_cheapest_of_all():
    chances, found = answers(1, 5, 3)
    targets = objects([3], 3)
    costs = cost(chances[0], found[0], targets[0])
    matched = match(chances, found, targets)[0]
    best = min(itertools.permutations(range(5), 3), key=lambda queries: sum(costs[q, t] for t, q in enumerate(queries)))
    assert tuple(matched.tolist()) == best


def test_perfect_answers_find_their_objects():
    targets = objects([10], 4)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(3))
    chances = torch.nn.functional.one_hot(targets[0, order, 0].long(), 4).float()[None]
    matched = match(chances, targets[:, order, 1:], targets)
    assert torch.equal(order[matched[0]], torch.arange(10))


@pytest.mark.parametrize("count", [0, 1, 300])
def test_none_one_and_many(count):
    chances, found = answers(2, 320, 3)
    targets = objects([count, 0], 3, most=max(count, 1))
    matched = match(chances, found, targets)
    queries = matched[0][matched[0] >= 0]
    assert len(queries) == count == len(set(queries.tolist()))
    assert (matched[1] == -1).all()


def test_more_objects_than_queries():
    chances, found = answers(1, 4, 3)
    matched = match(chances, found, objects([9], 3))[0]
    assert sorted(matched[matched >= 0].tolist()) == [0, 1, 2, 3]
    assert (matched == -1).sum() == 5


def test_answers_that_are_no_numbers_are_matched_somehow():
    chances, found = answers(1, 4, 3)
    assert (match(chances * float("nan"), found, objects([2], 3)) >= 0).all()


def grid(side):
    steps = (torch.arange(side) + 0.5) / side
    return torch.stack([steps.expand(side, -1), steps[:, None].expand(-1, side)], dim=-1).flatten(0, 1)


def test_every_object_is_learned_somewhere_however_small():
    places = grid(16)
    chances, found = answers(1, 256, 3)
    targets = objects([20], 3)[0]
    targets[:5, 3:] = 0.001
    assigned = assign(chances[0], found[0], places, targets)
    assert len(set(assigned.place.tolist())) == len(assigned.place)  # a place learns one object
    assert ((assigned.quality >= 0) & (assigned.quality <= 1)).all()
    away = (places[assigned.place] - targets[assigned.target, 1:3]).abs()
    assert (away <= targets[assigned.target, 3:] / 2 + 1 / 16).all()


def test_of_two_objects_in_a_place_the_closer_fit_is_learned():
    places = grid(4)
    targets = torch.tensor([[0.0, 0.5, 0.5, 1.0, 1.0], [1.0, 0.375, 0.375, 0.25, 0.25]])
    found = targets[1, 1:].expand(16, 4)
    assigned = assign(torch.full((16, 2), 0.5), found, places, targets)
    owner = dict(zip(assigned.place.tolist(), assigned.target.tolist(), strict=True))
    assert owner[5] == 1  # the place at (0.375, 0.375)
    assert 0 in owner.values()
