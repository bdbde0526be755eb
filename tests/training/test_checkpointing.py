"""Checkpoints: complete or not there, damaged ones noticed, the last two kept."""

import pytest
import torch
from torch import nn

from vitrail.errors import VitrailError
from vitrail.training.checkpointing import Checkpoints, collect_tensors, read_state, restore_tensors, write_state
from vitrail.training.optim.ema import EMA
from vitrail.training.optim.muon import Muon


def trained(steps):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    optimizers = [torch.optim.AdamW(model[0].parameters(), fused=True), Muon([model[1].weight])]
    average = EMA(model, 3)
    for step in range(steps):
        train_step(model, optimizers, average, step)
    return model, optimizers, average


def train_step(model, optimizers, average, step):
    torch.manual_seed(step)
    model(torch.randn(8, 4)).square().sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    average.update(model, step)


def test_restored_parts_go_on_bit_by_bit(tmp_path):
    whole = trained(6)
    half = trained(3)
    write_state(tmp_path / "s.safetensors", collect_tensors(*half), {"step": 3})
    saved = read_state(tmp_path / "s.safetensors")
    fresh = trained(0)
    restore_tensors(saved.tensors, *fresh)
    for step in range(3, 6):
        train_step(*fresh, step)
    one, other = collect_tensors(*whole), collect_tensors(*fresh)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert saved.facts == {"step": 3}


def test_the_last_two_and_the_best_are_kept(tmp_path):
    states = Checkpoints(tmp_path)
    for step in (1, 5, 12, 100):
        states.save(step, {"model.x": torch.full((2,), float(step))}, {})
        if step == 5:
            states.save_best({"model.x": torch.zeros(1)}, {"best": 0.5})
    assert states.steps() == [12, 100]
    assert states.load_last()[0].facts["step"] == 100
    assert states.load_best().facts == {"best": 0.5}
    assert {path.name for path in tmp_path.iterdir()} == {
        "step-00000012.safetensors", "step-00000100.safetensors", "best.safetensors"
    }  # fmt: skip


def test_every_flipped_byte_is_noticed(tmp_path):
    path = tmp_path / "step-00000001.safetensors"
    Checkpoints(tmp_path).save(1, {"model.x": torch.arange(3.0)}, {"seconds": 1.5})
    good = path.read_bytes()
    for place in range(0, len(good), 3):
        path.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        with pytest.raises(VitrailError, match="step-00000001"):
            read_state(path)
    saved, notes = Checkpoints(tmp_path).load_last()
    assert saved is None and len(notes) == 1


def test_no_state_at_all_is_a_start(tmp_path):
    assert Checkpoints(tmp_path / "none").load_last() == (None, [])
    assert Checkpoints(tmp_path).load_best() is None
