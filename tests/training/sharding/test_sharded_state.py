"""A saved step that is a folder: whole by its marker, each byte of it known, read into any cut of the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from vitrail.errors import VitrailError
from vitrail.training.checkpointing import Checkpoints, own_tensors, restore_tensors
from vitrail.training.distributed import Processes
from vitrail.training.optim.ema import EMA
from vitrail.training.sharding.sharded_state import INDEX, MARKER, read_marker, read_parts, write_parts

Parts = tuple[nn.Module, list[AdamW], EMA]


def trained(steps: int, width: int = 6) -> Parts:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 2))
    parts = model, [AdamW(model.parameters())], EMA(model, 3)
    for step in range(steps):
        train_step(*parts, step)
    return parts


def train_step(model: nn.Module, optimizers: list[AdamW], average: EMA, step: int) -> None:
    torch.manual_seed(step)
    model(torch.randn(8, 4)).square().sum().backward()
    optimizers[0].step()
    optimizers[0].zero_grad()
    average.update(model, step)


def saved_at(folder: Path, *steps: int) -> Checkpoints:
    states = Checkpoints(folder)
    for step in steps:
        states.save_parts(step, own_tensors(*trained(step)), {"seconds": 1.5}, Processes())
    return states


def test_restored_parts_go_on_bit_by_bit(tmp_path):
    write_parts(tmp_path / "parts", own_tensors(*trained(3)), {"step": 3}, Processes())
    assert read_marker(tmp_path / "parts") == {"step": 3}
    fresh = trained(0)
    restore_tensors(read_parts(tmp_path / "parts", *fresh[:2]), *fresh)
    for step in range(3, 6):
        train_step(*fresh, step)
    one, other = own_tensors(*trained(6)), own_tensors(*fresh)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_model_of_another_shape_is_refused(tmp_path):
    write_parts(tmp_path / "parts", own_tensors(*trained(1)), {}, Processes())
    with pytest.raises(ValueError, match="another shape"):
        read_parts(tmp_path / "parts", *trained(0, width=8)[:2])


def test_the_last_two_are_kept_whatever_they_are(tmp_path):
    states = saved_at(tmp_path, 1, 2, 3)
    assert states.steps() == [2, 3]
    states.save(3, own_tensors(*trained(3)), {})  # by one process, which fell back to step 2 and went on
    assert [path.name for _, path in states.found()] == ["step-00000002", "step-00000003.safetensors"]
    saved_at(tmp_path, 4, 5)
    assert [path.name for _, path in states.found()] == ["step-00000004", "step-00000005"]


@pytest.mark.parametrize("text", ["[1]", "3", "[" * 100_000])
def test_a_marker_of_something_else_is_damage(tmp_path, text):
    (tmp_path / MARKER).write_text(text)
    with pytest.raises(VitrailError, match="is damaged: the checksum"):
        read_marker(tmp_path)


@pytest.mark.parametrize("name", ["__0_0.distcp", INDEX, MARKER])
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_a_damaged_or_unfinished_one_falls_back_to_the_one_before(tmp_path, name, damage):
    states = saved_at(tmp_path, 1, 2)
    folder = states.path(2).with_suffix("")
    content = (folder / name).read_bytes()
    if damage == "gone":
        (folder / name).unlink()
    else:
        place = len(content) // 2
        rest = b"" if damage == "cut" else bytes([content[place] ^ 4]) + content[place + 1 :]
        (folder / name).write_bytes(content[:place] + rest)
    with pytest.raises(VitrailError, match="step-00000002 is (damaged|unfinished)"):
        read_marker(folder)
    saved, notes = states.load_last()
    assert saved is not None and saved.facts["step"] == 1 and saved.parts == states.path(1).with_suffix("")
    [note] = notes
    assert "step-00000002" in note and note.endswith("going on from the one before")
    assert not (damage == "gone" and name == MARKER) or states.steps() == [1]
    saved_at(tmp_path, 2)
    assert states.load_last()[1] == []


def test_a_full_disk_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(VitrailError, match="cannot write"):
        write_parts(tmp_path / "file" / "parts", own_tensors(*trained(1)), {}, Processes())
