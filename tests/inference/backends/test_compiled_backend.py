"""The compiled network gives the answers of the network, and maps besides."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vitrail.errors import VitrailError
from vitrail.inference.backends import compiled_backend
from vitrail.inference.engine import Engine
from vitrail.model.encoder import Capture


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "classify"},
        {"task": "segment", "head": "mask_linear", "pool": "none"},
        {"task": "detect", "head": "box_tokens", "queries": 4, "pool": "none"},
    ],
    ids=lambda changes: changes["task"],
)
def test_the_answers_are_torchs(
    save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    # as inductor does, but without the C++ compiler, which takes 8 s and more for each of them; with it:
    # `test_familiar_answers.py`
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    path = save(**changes)
    plain, compiled = Engine.open(path), Engine.open(path, engine="compiled")
    assert compiled.backend.name == "compiled"
    for batch in (2, 3):
        images = torch.randn(batch, 3, 32, 32)
        torch.testing.assert_close(compiled.forward(images), plain.forward(images), atol=1e-5, rtol=1e-5)
    capture = Capture(blocks=[-1])
    compiled.forward(images, capture)
    assert len(capture.steps) == 1 and capture.pooled is not None


def test_without_a_compiler(save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_backend.shutil, "which", lambda name: None)
    with pytest.raises(VitrailError, match="the engine compiled needs a C\\+\\+ compiler.*: install g\\+\\+, or"):
        Engine.open(save(), engine="compiled", device="cpu")
