"""Our models as folders that transformers loads, with equal answers, and back again."""

from __future__ import annotations

import json
import os

import pytest
import torch

import vitrail
from vitrail.commands.convert import convert
from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.families.transformers_vit import write_folder
from vitrail.weights.preprocessing import IMAGENET, Preprocessing

transformers = pytest.importorskip("transformers")

SMALL = {"image_size": 32, "patch_size": 8, "width": 48, "depth": 2, "heads": 4, "classes": 3, "resample": "bicubic"}


def checkpoint(randomise, task="classify", labels=None, preprocessing=None, **fields):
    config = ViTConfig(**{**SMALL, **fields})
    preprocessing = preprocessing or Preprocessing(size=config.image_size).for_channels(config.channels)
    return Checkpoint(randomise(ViT(config)), preprocessing, task, labels)


def loaded_by_transformers(folder, kind="AutoModelForImageClassification"):
    """Their model, once it is sure that it found every tensor and no other."""
    model, report = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


def images(config):
    return torch.randn(2, config.channels, *config.image_size, generator=torch.Generator().manual_seed(1))


WITH_HEAD = {
    "ViT": ({}, "ViTForImageClassification"),
    "no qkv bias": ({"qkv_bias": False}, "ViTForImageClassification"),
    "no patch bias": ({"patch_bias": False}, "ViTForImageClassification"),
    "no head bias": ({"head_bias": False}, "ViTForImageClassification"),
    "tanh": ({"activation": "gelu_tanh"}, "ViTForImageClassification"),
    "quick": ({"activation": "quick_gelu"}, "ViTForImageClassification"),
    "eps": ({"norm_eps": 0.5}, "ViTForImageClassification"),
    "narrow MLP": ({"mlp_width": 40}, "ViTForImageClassification"),
    "sincos 1-D": ({"positions": "sincos1d"}, "ViTForImageClassification"),
    "sincos 2-D": ({"positions": "sincos2d"}, "ViTForImageClassification"),
    "sincos, learned cls": ({"positions": "sincos2d", "cls_position": "learned"}, "ViTForImageClassification"),
    "cls without position": ({"cls_position": "none"}, "ViTForImageClassification"),
    "no positions": ({"positions": "none"}, "ViTForImageClassification"),
    "norm after pooling": ({"final_norm": "pooled"}, "ViTForImageClassification"),
    "one channel": ({"channels": 1}, "ViTForImageClassification"),
    "not square": ({"image_size": (32, 48)}, "ViTForImageClassification"),
    "patch not square": ({"patch_size": (8, 16)}, "ViTForImageClassification"),
    "distilled": ({"distillation": True}, "DeiTForImageClassificationWithTeacher"),
    "distilled, no head bias": ({"distillation": True, "head_bias": False}, "DeiTForImageClassificationWithTeacher"),
    "layer scale": ({"layer_scale": 1e-5, "pool": "cls_mean"}, "Dinov2ForImageClassification"),
    "layer scale, cls": ({"layer_scale": 1.0}, "Dinov2ForImageClassification"),
    "cls and mean": ({"pool": "cls_mean"}, "Dinov2ForImageClassification"),
    "mean": ({"pool": "mean"}, "Dinov2ForImageClassification"),
    "SwiGLU": ({"activation": "swiglu", "mlp_width": 128}, "Dinov2ForImageClassification"),
    "registers": ({"registers": 4, "resample": "bicubic_antialias"}, "Dinov2WithRegistersForImageClassification"),
    "DINOv2 with registers": (
        {"registers": 2, "layer_scale": 1.0, "pool": "cls_mean", "activation": "swiglu", "mlp_width": 128},
        "Dinov2WithRegistersForImageClassification",
    ),
}
WITHOUT_HEAD = {
    "ViT": ({}, "ViTModel"),
    "distilled": ({"distillation": True}, "DeiTModel"),
    "DINOv2": ({"layer_scale": 1.0}, "Dinov2Model"),
    "registers": ({"registers": 4}, "Dinov2WithRegistersModel"),
}


# ---- equal answers


@pytest.mark.parametrize("case", WITH_HEAD)
def test_transformers_gives_our_logits(case, randomise, tmp_path):
    fields, name = WITH_HEAD[case]
    ours = checkpoint(randomise, **fields)
    write_folder(ours, tmp_path)
    theirs = loaded_by_transformers(tmp_path)
    assert type(theirs).__name__ == name
    with torch.no_grad():
        expected = ours.model(images(ours.config))
        assert expected.std() > 0.05
        assert (theirs(images(ours.config)).logits - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("case", WITHOUT_HEAD)
def test_transformers_gives_our_embedding_as_its_pooled_output(case, randomise, tmp_path):
    fields, name = WITHOUT_HEAD[case]
    ours = checkpoint(randomise, task="embed", classes=0, **fields)
    write_folder(ours, tmp_path)
    theirs = loaded_by_transformers(tmp_path, "AutoModel")
    assert type(theirs).__name__ == name
    with torch.no_grad():
        assert (theirs(images(ours.config)).pooler_output - ours.model(images(ours.config))).abs().max() <= 1e-4


@pytest.mark.parametrize(
    "fields",
    [
        {"width": 384, "heads": 6},
        {"width": 768, "heads": 12, "distillation": True},
        {"width": 384, "heads": 6, "patch_size": 14, "layer_scale": 1.0, "pool": "cls_mean"},
    ],
    ids=str,
)
def test_transformers_gives_our_logits_at_a_real_width(fields, randomise, tmp_path):
    ours = checkpoint(randomise, **{"image_size": 224, "patch_size": 16, "classes": 1000, **fields})
    write_folder(ours, tmp_path)
    with torch.no_grad():
        expected = ours.model(images(ours.config))
        assert (loaded_by_transformers(tmp_path)(images(ours.config)).logits - expected).abs().max() <= 1e-4


def test_a_foreign_model_may_be_converted_with_a_new_head(randomise, tmp_path):
    """DINOv2 with a head of ours that reads [CLS]: what one has after training on it."""
    backbone = checkpoint(randomise, task="embed", classes=0, layer_scale=1.0)
    write_folder(backbone, tmp_path / "backbone")
    ours = convert(tmp_path / "backbone", tmp_path / "out", to="transformers", labels=["cat", "dog"])
    theirs = loaded_by_transformers(tmp_path / "out")
    assert theirs.config.id2label == {0: "cat", 1: "dog"}
    with torch.no_grad():
        expected = ours.model(images(ours.config))
        assert (theirs(images(ours.config)).logits - expected).abs().max() <= 1e-4


# ---- and back again


SAME = ["ViT", "no qkv bias", "tanh", "eps", "not square", "distilled", "layer scale", "DINOv2 with registers"]


@pytest.mark.parametrize("case", SAME)
def test_a_round_trip_gives_the_same_model(case, randomise, tmp_path):
    preprocessing = Preprocessing(size=(32, 32), crop_fraction=0.8, mean=IMAGENET[0], std=IMAGENET[1])
    if case == "not square":
        preprocessing = preprocessing.replace(size=(32, 48), resize="squash", crop_fraction=1.0)
    ours = checkpoint(randomise, "multilabel", ["a", "b", "é"], preprocessing, **WITH_HEAD[case][0])
    write_folder(ours, tmp_path)
    back = vitrail.load(tmp_path)
    rule = "bicubic_antialias" if ours.config.registers else "bicubic"
    assert back.config == ours.config.replace(resample=rule)
    assert (back.task, back.labels, back.preprocessing) == (ours.task, ours.labels, ours.preprocessing)
    state = back.model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in ours.model.state_dict().items())


@pytest.mark.parametrize("case", WITH_HEAD)
def test_a_round_trip_gives_the_same_answers(case, randomise, tmp_path):
    ours = checkpoint(randomise, **WITH_HEAD[case][0])
    write_folder(ours, tmp_path)
    with torch.no_grad():
        answers = [c.model(images(ours.config)) for c in (ours, vitrail.load(tmp_path))]
    assert (answers[0] - answers[1]).abs().max() <= 1e-5


def test_labels_that_nobody_gave_stay_none(randomise, tmp_path):
    write_folder(checkpoint(randomise), tmp_path)
    assert vitrail.load(tmp_path).labels is None
    assert loaded_by_transformers(tmp_path).config.num_labels == 3


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        ("classify", "single_label_classification"),
        ("multilabel", "multi_label_classification"),
        ("regress", "regression"),
    ],
)
def test_the_task_is_written_as_problem_type(task, problem, randomise, tmp_path):
    write_folder(checkpoint(randomise, task), tmp_path)
    assert loaded_by_transformers(tmp_path).config.problem_type == problem
    assert vitrail.load(tmp_path).task == task


def test_a_classifier_of_one_class_loads(randomise, tmp_path):
    write_folder(checkpoint(randomise, classes=1), tmp_path)
    assert loaded_by_transformers(tmp_path).config.num_labels == 1


# ---- preprocessing


@pytest.mark.parametrize("resize", ["crop", "squash"])
def test_transformers_prepares_an_image_as_asked(resize, randomise, tmp_path):
    from PIL import Image

    preprocessing = Preprocessing(size=(32, 32), resize=resize, crop_fraction=0.8 if resize == "crop" else 1.0)
    preprocessing = preprocessing.replace(interpolation="bilinear", mean=IMAGENET[0], std=IMAGENET[1])
    ours = checkpoint(randomise, preprocessing=preprocessing)
    write_folder(ours, tmp_path)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    # left half black, right half white: what is cut off and what is squashed shows in where the edge lies
    picture = Image.new("RGB", (100, 50))
    picture.paste((255, 255, 255), (60, 0, 100, 50))
    pixels = processor(picture, return_tensors="pt")["pixel_values"]
    assert pixels.shape == (1, 3, 32, 32)
    black, white = ((value - torch.tensor(IMAGENET[0])) / torch.tensor(IMAGENET[1]) for value in (0.0, 1.0))
    assert torch.allclose(pixels[0, :, 16, 0], black, atol=1e-4)
    assert torch.allclose(pixels[0, :, 16, 31], white, atol=1e-4)
    # crop: 80 x 40, the middle 32 columns are 24..56, the edge at 48 is column 24; squash: 60 of 100 is column 19
    edge = (pixels[0, 0, 16] > pixels[0, 0, 16].mean()).nonzero().min().item()
    assert abs(edge - (24 if resize == "crop" else 19)) <= 1


def test_what_transformers_cannot_do_alike_is_noted(randomise, tmp_path):
    padded = checkpoint(randomise, preprocessing=Preprocessing(size=(32, 32), resize="pad"))
    write_folder(padded, tmp_path)
    assert any("'pad' cannot be written" in note for note in padded.notes)
    assert transformers.AutoImageProcessor.from_pretrained(tmp_path).size["height"] == 32
    resampled = checkpoint(randomise, resample="bicubic_offset")
    write_folder(resampled, tmp_path)
    assert any("resamples positions by 'bicubic'" in note for note in resampled.notes)
    fixed = checkpoint(randomise, positions="sincos2d")
    write_folder(fixed, tmp_path)
    assert any("written as a table" in note for note in fixed.notes)
    plain = checkpoint(randomise)
    write_folder(plain, tmp_path)
    assert plain.notes == []


# ---- what is refused


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"pool": "attention"}, "pool 'attention' cannot be written for transformers"),
        ({"pool": "none"}, "pool 'none' cannot"),
        ({"pool": "mean", "classes": 0}, "pool 'mean' cannot"),
        ({"pool": "mean", "final_norm": "pooled"}, "final_norm 'pooled' cannot"),
        ({"cls_token": False, "pool": "attention"}, "pool 'attention' cannot"),
        ({"cls_token": False, "pool": "mean", "registers": 1}, "registers 1 cannot"),
        ({"mlp_norm": True}, "mlp_norm True cannot"),
        ({"attention_norm": True}, "attention_norm True cannot"),
        ({"stem": "conv"}, "stem 'conv' cannot"),
        ({"positions": "rotary"}, "positions 'rotary' cannot"),
        ({"stem_norm": True}, "stem_norm True cannot"),
        ({"norm": "post"}, "norm 'post' cannot"),
        ({"qk_norm": True}, "qk_norm True cannot"),
        ({"head": "mlp"}, "head 'mlp' cannot"),
        ({"distillation": True, "registers": 1}, "registers 1 cannot"),
        ({"distillation": True, "layer_scale": 1.0}, "layer_scale 1.0 cannot"),
        ({"distillation": True, "activation": "swiglu"}, "activation 'swiglu' cannot"),
        ({"layer_scale": 1.0, "mlp_width": 100}, "mlp_width 100 cannot"),
    ],
    ids=str,
)
def test_a_model_that_transformers_has_not_is_refused_by_its_field(fields, sentence, randomise, tmp_path):
    with pytest.raises(VitrailError, match=sentence) as refusal:
        write_folder(checkpoint(randomise, **fields), tmp_path / "out")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("task", "head"), [("segment", "mask_linear"), ("detect", "box_decoder")])
def test_another_task_is_refused(task, head, randomise, tmp_path):
    with pytest.raises(VitrailError, match=f"task '{task}' cannot"):
        write_folder(checkpoint(randomise, task, head=head), tmp_path)


def test_a_write_that_fails_leaves_what_stood_there(randomise, tmp_path, monkeypatch):
    write_folder(checkpoint(randomise, labels=["a", "b", "c"]), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(VitrailError, match="No space left"):
        write_folder(checkpoint(randomise, labels=["x", "y", "z"]), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert json.loads(before["config.json"])["id2label"] == {"0": "a", "1": "b", "2": "c"}
