"""Held-out images go through the model exactly as `predict` sends them."""

import numpy as np
import torch

import vitrail
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.training.distributed import Processes
from vitrail.training.validate import Pictures, outputs_of
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing


def test_outputs_are_those_of_predict(tmp_path, pictures):
    torch.manual_seed(0)
    how = Preprocessing(size=(16, 16), resize="pad")
    model = ViT(preset("mu/4", image_size=16, classes=3, dropout=0.5))
    Checkpoint(model, how, "classify", ["a", "b", "c"]).save(tmp_path / "m.safetensors")
    paths = sorted(pictures.rglob("*.png"))
    held = Pictures(paths, how, workers=2)
    model.train()
    found = outputs_of(model, held, range(len(held)), Processes())
    assert model.training  # as it was before
    torch.testing.assert_close(found, vitrail.load(tmp_path / "m.safetensors").outputs(paths), atol=1e-5, rtol=1e-5)
    some = [5, 2, 40]
    torch.testing.assert_close(outputs_of(model, held, some, Processes()), found[some], atol=1e-5, rtol=1e-5)


def test_without_room_nothing_is_kept(pictures, monkeypatch):
    paths = sorted(pictures.rglob("*.png"))[:4]
    kept = Pictures(paths, Preprocessing(size=(8, 8)), 1)
    monkeypatch.setattr("vitrail.training.validate.IN_MEMORY", 10)
    fresh = Pictures(paths, Preprocessing(size=(8, 8)), 1)
    assert torch.equal(kept.take([0, 3]), fresh.take([0, 3]))
    assert len(kept._kept) == 2 and not fresh._kept
    np.testing.assert_array_equal(len(kept), 4)
