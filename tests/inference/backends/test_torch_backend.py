"""The network as it is, in the precision that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vitrail.inference.backends.torch_backend import TorchBackend
from vitrail.inference.engine import Engine
from vitrail.model.vit import ViT


def test_precision_is_set_and_named(save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = save()
    images = torch.randn(2, 3, 32, 32)
    engines = {name: Engine.open(path, precision=name) for name in ("auto", "float32", "bfloat16")}
    assert {name: engine.backend.precision for name, engine in engines.items()} == {
        "auto": "float32",
        "float32": "float32",
        "bfloat16": "bfloat16",
    }
    outputs = {name: engine.forward(images) for name, engine in engines.items()}
    assert all(output.dtype == torch.float32 for output in outputs.values())
    assert torch.equal(outputs["auto"], outputs["float32"])
    assert not torch.equal(outputs["bfloat16"], outputs["float32"])
    torch.testing.assert_close(outputs["bfloat16"], outputs["float32"], atol=0.1, rtol=0.1)
    monkeypatch.setattr("vitrail.model.precision.computes_bf16", lambda device: True)
    assert engines["auto"].backend.precision == "bfloat16"
    assert engines["float32"].backend.precision == "float32"
    assert torch.equal(engines["auto"].forward(images), outputs["bfloat16"])


def test_what_goes_on_training_gets_tensors_that_autograd_takes(lively: Callable[..., ViT]) -> None:
    from vitrail.model.presets import preset

    model = lively(preset("mu/8", image_size=32, classes=3))
    images = torch.randn(1, 3, 32, 32)
    assert TorchBackend(model)(images).is_inference()
    outputs = TorchBackend(model, autograd="no_grad")(images)
    assert not outputs.is_inference() and not outputs.requires_grad
    assert TorchBackend(model, autograd="grad")(images).requires_grad
