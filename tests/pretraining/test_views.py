"""Views of an image depend on (seed, epoch, index) alone, and come from one decoded picture."""

from __future__ import annotations

import numpy as np
import torch

from vitrail.data.loading.augment import Augmentation
from vitrail.data.loading.sampler import BatchIndices, Sampler
from vitrail.pretraining.views import View, ViewBatch, ViewLoader, make_view
from vitrail.tasks.targets import WholeImageTargets
from vitrail.weights.preprocessing import Preprocessing

PIXELS = np.random.default_rng(0).integers(0, 255, (12, 20, 20, 3), dtype=np.uint8)
MEAN = torch.full((1, 3, 1, 1), 0.5)
VIEWS = (
    View(size=(16, 16), area=(0.4, 1.0)),
    View(size=(16, 16), area=(0.4, 1.0), solarize=0.5),
    View(size=(8, 8), area=(0.1, 0.3)),
    View(size=(8, 8), area=(0.1, 0.3)),
)


class CountingCache:
    """Images in memory that count how often they are taken."""

    def __init__(self) -> None:
        self.broken, self.taken = {}, 0

    def take(self, indices):
        self.taken += len(indices)
        return torch.from_numpy(PIXELS[indices]), np.full((len(indices), 2), 20)


def loader(batch: int = 4, seed: int = 0, share: tuple[int, int] = (0, 1), workers: int = 0) -> ViewLoader:
    return ViewLoader(
        cache=CountingCache(),
        targets=WholeImageTargets(torch.zeros(12, dtype=torch.int64)),
        sampler=Sampler(12, batch, seed),
        preprocessing=Preprocessing(size=(16, 16), mean=(0.5,) * 3, std=(0.25,) * 3),
        augmentation=Augmentation(),
        seed=seed,
        share=share,
        workers=workers,
        views=VIEWS,
    )


def by_index(batches: list[ViewBatch]) -> dict[int, list[torch.Tensor]]:
    return {
        int(index): [view[place] for view in batch.views]
        for batch in batches
        for place, index in enumerate(batch.indices)
    }


def assert_equal_views(one: dict, other: dict) -> None:
    assert one.keys() == other.keys()
    for index in one:
        assert all(torch.equal(left, right) for left, right in zip(one[index], other[index], strict=True))


def test_several_views_of_one_decode():
    made = loader()
    [batch] = list(made.batches(0, 1))
    assert [tuple(view.shape) for view in batch.views] == [(4, 3, 16, 16)] * 2 + [(4, 3, 8, 8)] * 2
    assert made.cache.taken == 4
    assert batch.images is batch.views[0]
    assert not torch.equal(batch.views[2], batch.views[3])


def test_views_do_not_depend_on_batch_workers_or_restart():
    whole = by_index(list(loader(batch=12).batches(1, 2)))  # the second epoch
    assert_equal_views(whole, by_index(list(loader(batch=4, workers=2).batches(3, 6))))
    assert_equal_views(whole, by_index([*loader(batch=4).batches(3, 4), *loader(batch=4).batches(4, 6)]))
    shared = [batch for rank in (0, 1) for batch in loader(batch=4, share=(rank, 2)).batches(3, 6)]
    assert_equal_views(whole, by_index(shared))


def test_another_epoch_or_seed_shows_other_views():
    first = by_index(list(loader(batch=12).batches(0, 1)))
    for other in (loader(batch=12).batches(1, 2), loader(batch=12, seed=1).batches(0, 1)):
        views = by_index(list(other))
        assert not any(torch.equal(first[index][0], views[index][0]) for index in first)


def test_a_whole_view_without_changes_is_the_picture():
    view = View(size=(20, 20), area=(1.0, 1.0), flip="none", colour=0.0)
    made = loader()
    object.__setattr__(made, "views", (view,))
    [batch] = list(made.batches(0, 1))
    expected = (torch.from_numpy(PIXELS[batch.indices]).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    inside = batch.views[0][..., 4:-4, 4:-4]  # an aspect other than 1 cuts away a little
    assert inside.shape == expected[..., 4:-4, 4:-4].shape


def test_two_views_of_an_image_face_the_same_way_only_by_chance():
    """Pictures that are dark on the left: over the epochs a pair of views agrees half of the time, for every image."""
    view = View(size=(16, 16), area=(0.5, 1.0), colour=0.0)
    pictures, sizes = torch.linspace(0, 1, 16).expand(64, 3, 16, 16), torch.full((64, 2), 16.0)
    ways = []
    for epoch in range(32):
        drawn = BatchIndices(epoch, np.arange(64), np.arange(64))
        made = [make_view(pictures, sizes, view, "crop", MEAN, seed=seed, drawn=drawn) for seed in (1, 2)]
        ways.append([images[..., :8].mean((1, 2, 3)) < images[..., 8:].mean((1, 2, 3)) for images in made])
    same = torch.stack([one == other for one, other in ways]).float()  # (epochs, images)
    assert same.mean(0).min() > 0.1 and same.mean(0).max() < 0.9
