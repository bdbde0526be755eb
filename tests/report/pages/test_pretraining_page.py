"""The page that `vitrail pretrain` leaves behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.pretraining.attention_record import forget_attention_after, record_attention, recorded_attention
from vitrail.pretraining.pretraining_run import Pretrained
from vitrail.report.pages.pretraining_page import pretraining_page
from vitrail.training.loop import TrainState
from vitrail.training.plan import Plan, length_of
from vitrail.training.run_folder import RunFolder
from vitrail.training.settings import Settings
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing


@pytest.fixture
def pretrained(tmp_path: Path) -> Pretrained:
    folder = RunFolder(tmp_path / "<run>")
    folder.path.mkdir()
    rows = [
        '{"step": 1, "epoch": 0.5, "seconds": 1.0, "loss": 8.3, "lr": 0.1, "images_per_second": 12.0}',
        '{"step": 2, "epoch": 1.0, "seconds": 2.0, "validation": {"rank": 3.5, "entropy": 0.4, "prototypes": 9.0}}',
    ]
    folder.metrics.write_text("\n".join(rows) + "\n")
    for step in (1, 2):
        record_attention(folder.path, step, torch.rand(2, 4, 4))
    preprocessing = Preprocessing(size=(16, 16))
    return Pretrained(
        folder=folder,
        checkpoint=Checkpoint(ViT(preset("mu/4", image_size=16, classes=0)), preprocessing, "embed"),
        settings=Settings(),
        plan=Plan(lengths=(length_of(2, 0, 0),), data="", started="today", command="vitrail pretrain <x>"),
        state=TrainState(step=2, seconds=2.0),
        description="9 images without labels",
        findings=(),
        metrics={"rank": 3.5, "entropy": 0.4, "prototypes": 9.0},
        images=3,
        labelled=False,
        concerns=["the loss rests at ln K"],
        fixed=torch.rand(2, 3, 16, 16),
        root=tmp_path,
    )


def test_the_page_shows_health_and_attention(pretrained):
    page = pretraining_page(pretrained)
    for words in ("Rank of the embedding", "Entropy of the teacher", "Prototypes in use", "The loss rests at ln K."):
        assert words in page
    assert page.count("<td><img") == 2 * (1 + 2)  # two pictures, each with its map at two steps
    assert "step 1" in page and "9 images without labels" in page and "classes only measure" not in page
    assert "<run>" not in page and "&lt;run&gt;" in page  # names are text


def test_maps_that_are_damaged_are_left_out(tmp_path):
    for step in (1, 2):
        record_attention(tmp_path, step, torch.ones(2, 4, 4))
    record_attention(tmp_path, 3, torch.ones(2, 4, 4))
    folder = tmp_path / "attention"
    (folder / "step-00000001.npy").write_bytes(b"PK\x03\x04")
    np.save(folder / "step-00000002.npy", np.ones((1, 4, 4), np.float32))
    (folder / "step-last.npy").touch()
    forget_attention_after(tmp_path, 5)
    assert list(recorded_attention(tmp_path)) == [3]


def test_maps_of_steps_that_are_done_again_are_forgotten(pretrained):
    forget_attention_after(pretrained.folder.path, 1)
    recorded = recorded_attention(pretrained.folder.path)
    assert list(recorded) == [1] and recorded[1].shape == (2, 4, 4) and recorded[1].dtype == np.float32
