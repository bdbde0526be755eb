"""One engine for all: opened once, the same answer whoever asks, and what cannot answer is refused in a sentence."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vitrail
from tests.inference.backends.stub_backend import ADDRESS
from vitrail.commands.predict import run_predict
from vitrail.errors import VitrailError
from vitrail.inference import engine as engine_module
from vitrail.inference.backends.backend import BACKENDS
from vitrail.inference.engine import Engine, open_model, task_of
from vitrail.inference.image_processor import ImageProcessor
from vitrail.inference.predictor import Predictor
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.serving.forward_batch import ForwardRequest
from vitrail.serving.limits import Limits
from vitrail.serving.served_model import ServedModel
from vitrail.training.distributed import Processes
from vitrail.training.validate import HeldOutImages, outputs_of
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing


@pytest.mark.parametrize("name", ["S/16", "mu/4", "DINOv2-B/14"])
def test_a_preset_is_untrained(name: str) -> None:
    with pytest.raises(VitrailError, match=f"{name} is a preset with untrained weights"):
        open_model(name)


def test_a_file_or_folder_with_the_name_of_a_preset_is_a_file(
    save: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(name="S/16/model.safetensors")
    assert open_model("S/16").labels == ["cat", "dog", "owl"]


def test_a_model_without_a_head_has_no_answers(save: Callable[..., Path]) -> None:
    with pytest.raises(VitrailError, match="gives embeddings, not answers"):
        task_of(open_model(save(None, task="embed", classes=0)))


def test_outputs_without_names_are_numbered(save: Callable[..., Path]) -> None:
    assert task_of(open_model(save(None))).labels == ["class 0", "class 1", "class 2"]
    assert task_of(open_model(save(None, task="regress", classes=1))).labels == ["number 0"]


def test_a_task_that_has_no_answers_here_is_named(save: Callable[..., Path]) -> None:
    with pytest.raises(VitrailError, match="segment does not go with the head 'linear'"):
        task_of(open_model(save(task="segment")))


# ---- everyone goes through it


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batch size of each call of `Engine.forward`."""
    sizes: list[int] = []
    forward = Engine.forward

    def counted(self: Engine, images: Tensor, capture: Any = None) -> Tensor:
        sizes.append(len(images))
        return forward(self, images, capture)

    monkeypatch.setattr(Engine, "forward", counted)
    return sizes


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that were opened."""
    sources: list[str] = []
    load = engine_module.load

    def counted(source: Any, **settings: Any) -> Any:
        sources.append(str(source))
        return load(source, **settings)

    monkeypatch.setattr(engine_module, "load", counted)
    return sources


def test_predict_opens_the_file_once_and_runs_the_engine(
    save: Callable[..., Path], photos: Path, calls: list[int], loads: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = save()
    assert run_predict(str(path), [str(photos)], batch_size=5) == 0
    assert calls == [5, 5, 2] and loads == [str(path)]


def test_evaluate_opens_the_file_once_and_runs_the_engine(
    save: Callable[..., Path], photos: Path, calls: list[int], loads: list[str]
) -> None:
    path = save()
    vitrail.evaluate(path, photos, bootstrap=0)
    assert calls == [12] and loads == [str(path)]


def test_the_evaluation_in_training_runs_the_engine(photos: Path, calls: list[int], lively: Callable[..., ViT]) -> None:
    model = lively(preset("mu/8", image_size=32, classes=3)).train()
    images = HeldOutImages(sorted(photos.rglob("*.png")), ImageProcessor(Preprocessing(size=(32, 32))), 1)
    assert outputs_of(model, images, range(12), Processes()).shape == (12, 3)
    assert calls == [12] and model.training


def test_the_server_runs_the_engine(
    save: Callable[..., Path], picture: Callable[..., Image.Image], calls: list[int], loads: list[str]
) -> None:
    buffer = io.BytesIO()
    picture(0).save(buffer, "PNG")
    path = save()
    served = ServedModel(open_model(path), "m", Limits(), device="cpu")
    image = served.read(buffer.getvalue(), "it")
    requests = [ForwardRequest(image.pixels, lambda result: served.answer(image, result, 1))] * 3
    [one, *others] = served.run(requests)
    assert one == others[0] and one["label"] == vitrail.load(path).predict(buffer.getvalue(), top=1)["label"]
    assert calls == [3, 1] and loads == [str(path)]


def test_explain_opens_the_file_once_and_runs_the_engine(
    save: Callable[..., Path], picture: Callable[..., Image.Image], calls: list[int], loads: list[str]
) -> None:
    path = save()
    explanation = vitrail.explain(path, picture(0), walk=True)
    assert calls == [1] and loads == [str(path)]
    answer = vitrail.load(path).predict(picture(0))
    assert explanation.answer is not None and explanation.answer["label"] == answer["label"]


def test_explanations_need_gradients(save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "stub", ADDRESS)
    with pytest.raises(VitrailError, match="explanations need gradients, which the engine stub lacks: use torch"):
        vitrail.explain(Engine.open(save(), engine="stub"), "any.jpg")


def test_an_engine_is_opened_once_for_all() -> None:
    engine = Engine.open("mu/8", untrained=True)
    assert Engine.open(engine) is engine
    assert Predictor(engine).engine is engine
    again = Engine.open("mu/8", untrained=True).checkpoint.model.state_dict()  # fresh weights, the same every time
    assert all(torch.equal(tensor, again[name]) for name, tensor in engine.checkpoint.model.state_dict().items())


# ---- from a source to an answer


@pytest.mark.parametrize(
    ("task", "head", "resize"),
    [
        ("classify", "linear", "crop"),
        ("segment", "mask_linear", "pad"),
        ("segment", "mask_linear", "window"),
        ("detect", "box_tokens", "squash"),
    ],
)
def test_step_by_step_is_the_same_as_at_once(task: str, head: str, resize: str, lively: Callable[..., ViT]) -> None:
    config = preset("mu/4", image_size=32, classes=3, head=head)
    checkpoint = Checkpoint(lively(config), Preprocessing(size=(32, 32), resize=resize), task, ["a", "b", "c"])
    engine = Engine.open(checkpoint, batch_size=3)
    pixels = np.random.default_rng(0).integers(0, 256, (45, 70, 3), np.uint8)
    image = engine.read(pixels)
    assert image.pixels.shape == (32, 32, 3)
    assert (image.letterbox is not None) == (head != "linear") and (image.whole is not None) == (resize == "window")
    [(outputs, letterboxes)] = engine.run([image])
    [answer] = engine.answer(list(engine.decode(outputs, letterboxes)))
    [expected] = Predictor(checkpoint).predict([pixels])
    assert expected.answer is not None and answer.keys() == expected.answer.keys()
    if task == "segment":
        assert answer["mask"].shape == (45, 70) and (answer["mask"] == expected.answer["mask"]).all()
    else:
        assert answer == expected.answer
    assert engine.answer([]) == []
