"""Pictures without labels beside a batch: a function of the seed and the step, shared among processes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from vitrail.data.loading.augment import Augmentation
from vitrail.data.loading.cache import ArrayCache
from vitrail.data.loading.loader import Batch, Loader
from vitrail.data.loading.sampler import Sampler
from vitrail.data.loading.unlabelled_loader import Pile, UnlabelledLoader
from vitrail.tasks.targets import WholeImageTargets
from vitrail.training.stages.build_trainer import pile_loader
from vitrail.weights.preprocessing import Preprocessing

PLAIN = Augmentation(crop=(1.0, 1.0), aspect=(1.0, 1.0), anywhere=False, flip="none", policy="none")


def grey_levels(count: int, first: int) -> ArrayCache:
    """Picture i has the one level first + i."""
    pixels = np.empty((count, 8, 8, 3), np.uint8)
    pixels[:] = (first + np.arange(count))[:, None, None, None]
    return ArrayCache(pixels, np.full((count, 2), 8), {})


def loader(pile: int, share: tuple[int, int] = (0, 1), workers: int = 0, mixup: float = 0.0) -> UnlabelledLoader:
    labelled = Loader(
        cache=grey_levels(6, 0),
        targets=WholeImageTargets(torch.arange(6)),
        sampler=Sampler(6, 4, 7),
        preprocessing=Preprocessing(size=(8, 8), mean=(0.0,) * 3, std=(1.0,) * 3),
        augmentation=PLAIN,
        mixup=mixup,
        seed=7,
        share=share,
        workers=workers,
    )
    return UnlabelledLoader(labelled, pile_loader(labelled, Pile(grey_levels(pile, 100), pile, "", "")))


def levels(batch: Batch) -> list[int]:
    assert batch.unlabelled is not None
    return (batch.unlabelled[:, 0, 0, 0] * 255).round().int().tolist()


def test_a_pass_sees_every_picture_once_and_leaves_labels_alone() -> None:
    both = loader(12)
    batches = [*both.batches(0, 3)]
    assert sorted(level for batch in batches for level in levels(batch)) == list(range(100, 112))
    alone = [*both.labelled.batches(0, 3)]
    for batch, other in zip(batches, alone, strict=True):
        assert torch.equal(batch.images, other.images) and torch.equal(batch.targets, other.targets)
    assert both.sampler is both.labelled.sampler


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_draws_the_same(workers: int) -> None:
    whole = [levels(batch) for batch in loader(9).batches(0, 6)]
    assert [levels(batch) for batch in loader(9, workers=workers).batches(3, 6)] == whole[3:]
    assert len({tuple(one) for one in whole}) == 6


def test_processes_share_a_batch() -> None:
    whole = [levels(batch) for batch in loader(12).batches(0, 3)]
    shares = [[levels(batch) for batch in loader(12, (rank, 2)).batches(0, 3)] for rank in (0, 1)]
    assert [first + second for first, second in zip(*shares, strict=True)] == whole


def test_a_small_pile_is_a_small_batch_and_is_never_mixed() -> None:
    both = loader(3, mixup=0.5)
    assert all(len(set(levels(batch))) == 3 for batch in both.batches(0, 4))
    pile = Pile(both.pile.cache, 3, "", "")
    assert (pile.batch_size(4, 1), pile.batch_size(4, 2), pile.batch_size(2, 1)) == (3, 2, 2)
    assert replace(both.pile, mixup=0.0) == both.pile
