"""`vitrail.explain`: arrays for any source and any kind of model, and one sentence for what cannot be explained."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.errors import VitrailError
from vitrail.explanation.output.result import METHODS, Explanation
from vitrail.model.config import ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

LABELS = ["cat", "dog", "owl"]


def checkpoint(lively, task="classify", size=None, **changes):
    config = {"image_size": 32, "patch_size": 8, "width": 32, "heads": 2, "depth": 3, "classes": 3, **changes}
    model = lively(ViTConfig(**config))
    labels = LABELS if model.config.classes else None
    preprocessing = Preprocessing(size=size or model.config.image_size).for_channels(model.config.channels)
    return Checkpoint(model, preprocessing, task if labels else "embed", labels)


@pytest.fixture
def photo(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def test_one_image_and_several(lively, photo):
    model = checkpoint(lively)
    one = vitrail.explain(model, photo)
    assert isinstance(one, Explanation)
    assert one.name == str(photo)
    assert one.picture.shape == (32, 32, 3)
    assert one.target == one.answer["label"]
    assert one.value == pytest.approx(one.answer["probability"], abs=1e-5)
    attention, prefix = np.stack(one.attention), np.stack(one.prefix)
    assert attention.shape == (3, 2, 4, 4)
    assert prefix.shape == (3, 2, 1)
    assert attention.sum((2, 3)) + prefix.sum(2) == pytest.approx(np.ones((3, 2)), abs=1e-6)
    assert one.masks.shape == (2, 4, 4)
    assert one.masks.dtype == bool
    assert one.components.shape == (4, 4, 3)
    assert set(one.maps) == {"relevance", "weighted_attention", "rollout", "attention"}
    assert (one.query, one.blocks, one.curves, one.best, one.walk) == ("[CLS]", [0, 1, 2], {}, None, None)
    several = vitrail.explain(model, [photo, photo.read_bytes(), Image.open(photo), np.asarray(Image.open(photo))])
    assert [found.name for found in several] == [str(photo), "image number 2", "image number 3", "image number 4"]
    for found in several:
        assert np.array_equal(found.maps["relevance"], one.maps["relevance"])


def test_the_answer_is_that_of_predict(lively, photo, tmp_path):
    path = checkpoint(lively).save(tmp_path / "model.safetensors")
    found = vitrail.explain(path, photo, top=2)
    expected = vitrail.load(path).predict(photo, top=2)
    assert [guess["label"] for guess in found.answer["top"]] == [guess["label"] for guess in expected["top"]]


def test_what_is_asked_for(lively, photo):
    model = checkpoint(lively, registers=2)
    found = vitrail.explain(
        model, photo, query=(1, 2), blocks=[-1], heads=[1], target="owl", compare=True, walk=True, image_size=(24, 40)
    )
    assert (found.query, found.blocks, found.target, found.grid) == ("patch 1,2", [2], "owl", (3, 5))
    assert [block.shape for block in found.attention] == [(1, 3, 5)]
    assert found.prefix_names == ["[CLS]", "register 0", "register 1"]
    assert set(found.curves) == {"relevance", "weighted_attention", "rollout", "occlusion", "random"}
    assert found.best is None or found.best in METHODS
    assert found.walk.patch == np.unravel_index(found.maps["relevance"].argmax(), (3, 5))
    assert vitrail.explain(model, photo, target=2).target == "owl"


def test_a_model_without_cls_says_so_and_shows_relevance(lively, photo):
    model = checkpoint(lively, cls_token=False, pool="mean")
    found = vitrail.explain(model, photo)
    assert found.attention is None
    assert found.query is None
    assert "no [CLS] token" in found.notes[0]
    assert "relevance" in found.maps
    assert vitrail.explain(model, photo, query="0,0").query == "patch 0,0"
    with pytest.raises(VitrailError, match="no .CLS. token: ask for a patch"):
        vitrail.explain(model, photo, query="cls")


@pytest.mark.parametrize("task", ["classify", "multilabel", "regress", "embed"])
def test_every_task(task, lively, photo):
    model = checkpoint(lively, task, classes=0 if task == "embed" else 3)
    found = vitrail.explain(model, photo, compare=True, walk=True)
    assert (found.target is None) == (task == "embed")
    if task == "regress":
        assert found.value == pytest.approx(found.answer["values"][found.target])
    if task == "embed":
        assert found.answer is None
        with pytest.raises(VitrailError, match="has no classes"):
            vitrail.explain(model, photo, target="cat")


def test_an_untrained_preset_is_the_same_every_time(photo):
    state = torch.get_rng_state()
    found = [vitrail.explain("mu/16", photo) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(found[0].maps["relevance"], found[1].maps["relevance"])
    assert found[0].notes == ["fresh weights: the preset mu/16 is untrained"]


def test_a_grey_model_of_a_wide_picture(lively, photo):
    found = vitrail.explain(checkpoint(lively, channels=1, image_size=(16, 48)), photo, walk=True)
    assert found.picture.shape == (16, 48, 1)
    assert found.maps["relevance"].shape == (2, 6)


def test_what_is_not_there_is_one_sentence(lively, photo, tmp_path):
    model = checkpoint(lively)
    with pytest.raises(VitrailError, match="knows no 'cow': choose one of cat, dog, owl"):
        vitrail.explain(model, photo, target="cow")
    with pytest.raises(VitrailError, match="height 30 is not divisible by the patch size 8: choose 24 or 32"):
        vitrail.explain(model, photo, image_size=30)
    with pytest.raises(VitrailError, match="no block 7"):
        vitrail.explain(model, photo, blocks=[7])
    with pytest.raises(vitrail.UnreadableImage, match="does not exist"):
        vitrail.explain(model, tmp_path / "nothing.jpg")


def test_explain_is_a_function_of_the_package():
    assert callable(vitrail.explain)


@pytest.mark.parametrize("changes", [{}, {"pool": "attention", "cls_token": False}, {"activation": "swiglu"}], ids=str)
def test_an_explanation_in_the_precision_of_the_answer(lively, photo, changes):
    model = checkpoint(lively, **changes)
    [expected] = vitrail.Predictor(model, precision="bf16").predict([photo])
    exact, mixed = (vitrail.explain(model, photo, precision=p, walk=True, compare=True) for p in ("fp32", "bf16"))
    assert mixed.answer == expected.answer != exact.answer
    assert mixed.notes == exact.notes
    for name, values in exact.maps.items():
        assert mixed.maps[name].dtype == np.float32
        if name != "occlusion":
            assert np.corrcoef(mixed.maps[name].ravel(), values.ravel())[0, 1] > 0.95, name


def test_that_predict_computes_in_another_precision_is_said(lively, photo, monkeypatch):
    model = checkpoint(lively)
    plain = vitrail.explain(model, photo, precision="fp32")
    monkeypatch.setattr("vitrail.model.precision.computes_bf16", lambda device: True)
    explanation = vitrail.explain(model, photo)
    assert explanation.answer == plain.answer
    [note] = [note for note in explanation.notes if note not in plain.notes]
    assert "computed in float32; `predict` computes in bfloat16 here" in note
