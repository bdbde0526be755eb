"""Mixup and cutmix: labels follow pixels exactly, and any even part of a batch is mixed as it is in the whole."""

import pytest
import torch

from vitrail.data.loading.mixup import mix


def flat(batch, height=12, width=16):
    """Image i is i everywhere, so a pixel tells where it came from."""
    return torch.arange(batch, dtype=torch.float32).view(-1, 1, 1, 1).expand(batch, 3, height, width).clone()


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.4, 0), (0, 1.0), (0.4, 1.0)])
@pytest.mark.parametrize("batch", [2, 7, 32])
def test_the_ratio_is_the_share_of_the_pixels(mixup, cutmix, batch):
    images, told = mix(flat(batch), mixup, cutmix, seed=0, step=5)
    assert torch.equal(told.partner[told.partner], torch.arange(batch))
    own, other = torch.arange(batch).float(), told.partner.float()
    expected = told.ratio * own + (1 - told.ratio) * other
    torch.testing.assert_close(images.mean(dim=(1, 2, 3)), expected, atol=1e-5, rtol=1e-5)
    assert ((told.ratio >= 0) & (told.ratio <= 1)).all()


def test_cutmix_pastes_one_rectangle():
    images, told = mix(flat(64), 0, 1.0, seed=0, step=0)
    for place in range(64):
        other = images[place, 0] == told.partner[place]
        rows, columns = other.any(1), other.any(0)
        assert torch.equal(other, rows[:, None] & columns[None, :])
    assert told.ratio.std() > 0.2


def test_mixup_blends_whole_pictures():
    images, told = mix(flat(8), 0.4, 0, seed=0, step=0)
    assert images.flatten(1).std(dim=1).max() < 1e-6
    assert told.ratio.unique().numel() > 1


@pytest.mark.parametrize("world", [2, 4])
def test_parts_of_a_batch_mix_as_the_whole_does(world):
    whole, told = mix(flat(16), 0.3, 1.0, seed=1, step=9)
    size = 16 // world
    for rank in range(world):
        here = slice(rank * size, (rank + 1) * size)
        part, said = mix(flat(16)[here], 0.3, 1.0, seed=1, step=9, share=(rank, world))
        assert torch.equal(part, whole[here])
        assert torch.equal(said.ratio, told.ratio[here])
        assert torch.equal(said.partner + rank * size, told.partner[here])


def test_off_changes_nothing_and_steps_differ():
    images = flat(4)
    same, told = mix(images, 0, 0, seed=0, step=0)
    assert same is images and told is None
    assert not torch.equal(mix(flat(32), 0.4, 0, 0, 1)[1].ratio, mix(flat(32), 0.4, 0, 0, 2)[1].ratio)
