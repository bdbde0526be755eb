"""A sharded run with all that saves memory and time learns what a plain one does."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.training.running import tiny_settings, vitrail
from vitrail.errors import VitrailError
from vitrail.model.noise import drawing_by
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.training.stages.build_trainer import compile_blocks


def losses(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


@pytest.mark.parametrize(("precision", "off"), [("float32", 1e-4), ("bfloat16", 1e-2)])
def test_sharded_checkpointed_and_accumulated(tmp_path, pictures, precision, off):
    noise = {"train__dropout": 0.1, "train__drop_path": 0.1, "train__precision": precision}
    plain = tiny_settings(train__optimizer="adamw", train__average=0.1, **noise)
    plain.write(tmp_path / "plain.toml")
    plain.with_values({"train.checkpointing": True, "train.accumulate": 2}).write(tmp_path / "saving.toml")
    for name, flags, processes in (("plain", [], 1), ("saving", ["--shard"], 2)):
        arguments = ["train", pictures, "--out", tmp_path / name, "--settings", tmp_path / f"{name}.toml", *flags]
        done = vitrail(*arguments, processes=processes)
        assert done.returncode == 0, done.stdout + done.stderr
    one, two = losses(tmp_path / "plain"), losses(tmp_path / "saving")
    assert len(one) > 3 and one[-1] < one[0]
    assert two == pytest.approx(one, abs=off)


def test_compiling_needs_a_compiler(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
        VitrailError, match="train.compile needs a C\\+\\+ compiler.*: install g\\+\\+, or set it to false"
    ):
        compile_blocks(ViT(preset("mu/4", image_size=16)), torch.device("cpu"))


def test_compiled_blocks_learn_the_same(monkeypatch):
    """With checkpointing and noise; as inductor does, but without the C++ compiler, which takes most of a minute."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    images, keys = torch.randn(4, 3, 16, 16), torch.arange(4, dtype=torch.int32)

    def gradient(compiled: bool) -> Tensor:
        torch.manual_seed(0)
        model = ViT(preset("mu/4", image_size=16, classes=3, depth=3, dropout=0.1, drop_path=0.2)).train()
        model.checkpointing = True
        if compiled:
            compile_blocks(model, torch.device("cpu"))
        for shift in (1, 0):  # other keys than those that were seen when it was compiled
            model.zero_grad()
            with drawing_by(keys + shift):
                model(images).square().sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    torch.testing.assert_close(gradient(compiled=True), gradient(compiled=False), atol=1e-5, rtol=1e-4)
