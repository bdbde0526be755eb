"""What is dropped of an image follows from its key, wherever in a batch it stands."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from vitrail.model.encoder import Encoder
from vitrail.model.noise import Dropout, draw, drawing_by, keys_for, place_of
from vitrail.model.presets import build_network, preset

NOISE = {"dropout": 0.3, "attention_dropout": 0.3, "head_dropout": 0.3, "drop_path": 0.3}
TINY = {"image_size": 16, "classes": 3, **NOISE}


def keys_of(count: int) -> Tensor:
    return torch.randint(-(2**31), 2**31, (count,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)


def networks() -> dict[str, Encoder]:
    torch.manual_seed(0)
    return {
        "linear": build_network(preset("mu/4", **TINY)),
        "windows": build_network(preset("mu/4", **TINY, attention_window=2, depth=3, global_blocks=1)),
        "attention pooling": build_network(preset("mu/4", **TINY, pool="attention", cls_token=False)),
        "masks": build_network(preset("mu/4", **TINY, head="mask_decoder")),
        "swin": build_network(preset("swin-mu", **TINY | {"image_size": (32, 48)})),
    }


@pytest.mark.parametrize("name", ["linear", "windows", "attention pooling", "masks", "swin"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_image_meets_the_same_noise_in_any_part_of_a_batch(name, checkpointing):
    """Forward and backward, as 1, 2 and 4 processes share a batch."""
    model = networks()[name].train()
    model.checkpointing = checkpointing
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
    images, keys = torch.randn(8, 3, *model.config.image_size), keys_of(8)

    def in_parts(size: int) -> tuple[Tensor, Tensor]:
        model.zero_grad()
        answers = []
        for part, own in zip(images.split(size), keys.split(size), strict=True):
            with drawing_by(own):
                answers.append(model(part))
            answers[-1].square().sum().backward()  # outside: what is computed again must draw the same
        return torch.cat(answers), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    whole = in_parts(8)
    for size in (4, 2):
        torch.testing.assert_close(in_parts(size), whole, atol=1e-5, rtol=1e-4)
    keys = keys + 1
    assert not torch.allclose(in_parts(8)[0], whole[0])


def test_without_keys_torchs_generator_draws():
    model, images = networks()["linear"].train(), torch.randn(2, 3, 16, 16)
    answers = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        answers.append(model(images))
    assert torch.equal(answers[0], answers[1]) and not torch.equal(answers[0], answers[2])


@pytest.mark.parametrize("p", [0.01, 0.1, 0.9])
def test_dropout_drops_its_part_and_keeps_the_mean(p):
    x = torch.ones(64, 50, 40)
    with drawing_by(keys_of(64)):
        out = Dropout(p, "here").train()(x)
        assert torch.equal(Dropout(p, "here").eval()(x), x)
    torch.testing.assert_close(out.unique(), torch.tensor([0, 1 / (1 - p)]))
    dropped = (out == 0).double()
    deviation = (p * (1 - p)) ** 0.5
    for dims, count in (((0, 1, 2), 128_000), ((1, 2), 2_000), ((0,), 64)):  # over all, of an image, of a place
        assert ((dropped.mean(dims) - p).abs() < 5.5 * deviation / count**0.5).all()


def test_images_places_and_neighbours_are_not_alike():
    keys = keys_of(40)
    with drawing_by(keys):
        others = torch.stack([keys_for(number) for number in range(4)])
    assert len(torch.cat([keys[None], others]).unique()) == 200
    rows = [draw(keys, 5_000, place_of(name)) for name in ("one", "other")]
    rows += [draw(key[None], 5_000, place_of("one")) for key in others[:, 0]]
    drawn = torch.cat(rows).double().numpy()  # (84, 5000)
    assert abs(np.corrcoef(drawn) - np.eye(len(drawn))).max() < 5.5 / 5_000**0.5
    assert abs(np.corrcoef(drawn[:, :-1].ravel(), drawn[:, 1:].ravel())[0, 1]) < 0.01
    counts = np.histogram(drawn, bins=16, range=(-(2**31), 2**31))[0]
    assert ((counts - drawn.size / 16) ** 2 / (drawn.size / 16)).sum() < 45  # chi-squared with 15 degrees


def test_a_channel_is_dropped_as_a_whole():
    with drawing_by(keys_of(8)):
        out = Dropout(0.5, "here", channels=True).train()(torch.ones(8, 16, 3, 3))
    assert torch.equal(out, out[..., :1, :1].expand_as(out)) and 30 < (out[..., 0, 0] == 0).sum() < 98
