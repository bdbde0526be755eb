"""A backend is one file and one line: then `predict`, `evaluate` and the server run on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

import vitrail
from tests.inference.backends.stub_backend import ADDRESS, StubBackend
from vitrail.errors import VitrailError
from vitrail.inference.backends.backend import BACKENDS, CAPTURES
from vitrail.inference.engine import Engine
from vitrail.inference.predictor import Predictor
from vitrail.model.encoder import Capture


@pytest.fixture(autouse=True)
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "stub", ADDRESS)


def test_predict_runs_on_a_second_backend(save: Callable[..., Path], picture: Callable[..., Image.Image]) -> None:
    engine = Engine.open(save(), engine="stub", batch_size=2)
    pictures = [picture(seed) for seed in range(5)]
    answers = [one.answer for one in Predictor(engine).predict(pictures, top=1)]
    mean = engine.transform([engine.read(one).pixels for one in pictures]).mean(dim=(1, 2, 3))
    expected = torch.stack([mean, 2 * mean, 3 * mean], dim=1).softmax(1)
    for answer, row in zip(answers, expected, strict=True):
        assert answer is not None and answer["label"] == ("cat", "dog", "owl")[int(row.argmax())]
        assert answer["probability"] == pytest.approx(row.max().item(), abs=1e-5)
    assert isinstance(engine.backend, StubBackend) and engine.backend.calls == 3


def test_evaluate_runs_on_a_second_backend(save: Callable[..., Path], photos: Path) -> None:
    engine = Engine.open(save(), engine="stub")
    result = vitrail.evaluate(engine, photos, bootstrap=0)
    assert result["images"] == 12 and result["model"] == "the model"
    assert isinstance(engine.backend, StubBackend) and engine.backend.calls == 1
    guesses = {row.answer["label"] for row in Predictor(engine).predict(photos.rglob("*.png")) if row.answer}
    assert guesses == {"cat", "owl"}  # of a negative mean the first, of a positive one the last
    assert result["metrics"] != vitrail.evaluate(save(), photos, bootstrap=0)["metrics"]


@pytest.mark.parametrize(
    ("capture", "words"), [(Capture(), "embeddings"), (Capture(blocks=[0]), "attention maps"), (None, "")]
)
def test_what_it_cannot_capture_is_refused_in_a_sentence(
    save: Callable[..., Path], capture: Capture | None, words: str
) -> None:
    engine = Engine.open(save(), engine="stub")
    images = torch.zeros(1, 3, 32, 32)
    if capture is None:
        assert engine.forward(images).shape == (1, 3)
        return
    with pytest.raises(VitrailError, match=f"the engine stub gives answers, but not {words}.*: use the engine torch"):
        engine.forward(images, capture)


def test_torch_captures_everything(save: Callable[..., Path]) -> None:
    engine, capture = Engine.open(save()), Capture(blocks=[-1], query_attention=True)
    outputs = engine.forward(torch.zeros(2, 3, 32, 32), capture)
    assert capture.pooled is not None and capture.pooled.shape == (2, engine.checkpoint.config.width)
    assert len(capture.steps) == 1
    assert torch.equal(outputs, engine.forward(torch.zeros(2, 3, 32, 32)))  # looking changes nothing
    assert engine.backend.captures == set(CAPTURES)


def test_an_unknown_backend_is_named(save: Callable[..., Path]) -> None:
    with pytest.raises(VitrailError, match="there is no engine 'toaster'; choose one of auto, torch, .*stub"):
        Engine.open(save(), engine="toaster")
