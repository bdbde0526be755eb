"""transformers' Swins in and out, against transformers itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForImageClassification,
    SwinConfig,
    SwinForImageClassification,
    SwinForMaskedImageModeling,
    SwinModel,
    Swinv2Config,
    Swinv2ForImageClassification,
    Swinv2Model,
    ViTImageProcessor,
)

from vitrail.commands.convert import convert
from vitrail.errors import VitrailError
from vitrail.model.presets import build_network, preset
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.families.swin import transformers_swin as family
from vitrail.weights.load import load
from vitrail.weights.preprocessing import IMAGENET, Preprocessing
from vitrail.weights.source import Source

SMALL = {"image_size": 64, "embed_dim": 12, "depths": [2, 2, 2], "num_heads": [1, 2, 3], "num_labels": 10}
WIDE = {"depths": [1, 2, 1, 1], "num_labels": 10}  # real width, few blocks
V1 = [{**SMALL, "window_size": 4}, {**SMALL, "window_size": 3, "qkv_bias": False, "num_channels": 1}, WIDE]
V2 = [
    {**SMALL, "window_size": 4},
    {**SMALL, "window_size": 8, "pretrained_window_sizes": [6, 6, 3]},  # larger than the last grid
    {**WIDE, "image_size": 256, "window_size": 8},
]


def sizes(config: dict[str, Any]) -> list[tuple[int, int]]:
    """Native, another, and one that neither windows nor merging divide."""
    native = config.get("image_size", 224)
    return [(native, native), (native + 32, native + 32), (native + 84, native + 100)]


def theirs_at(make: type, config: dict[str, Any], state: dict, size: tuple[int, int], outputs: Callable) -> Any:
    """A fresh model of theirs at a size: one that ran on a small image keeps a smaller window, and v2's windows are
    those of its config."""
    model = make(make.config_class(**{**config, "image_size": list(size)})).eval()
    model.load_state_dict(state)
    images = torch.randn(1, config.get("num_channels", 3), *size, generator=torch.Generator().manual_seed(1))
    encoder = model.base_model.encoder
    answer, hidden = outputs(model, [block for stage in encoder.layers for block in stage.blocks], images)
    return images, answer.logits, hidden


@pytest.mark.parametrize(
    ("make", "config"),
    [
        *((SwinForImageClassification, config) for config in V1),
        *((Swinv2ForImageClassification, config) for config in V2),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_outputs_and_every_block_agree_at_every_size(make, config, tmp_path, randomise, outputs, compare):
    model = randomise(make(make.config_class(**config)))
    model.save_pretrained(tmp_path)
    ViTImageProcessor(size=64, resample=3, image_mean=IMAGENET[0], image_std=IMAGENET[1]).save_pretrained(tmp_path)
    checkpoint = load(tmp_path)
    for size in sizes(config):
        compare(checkpoint.model, *theirs_at(make, config, model.state_dict(), size, outputs))
    assert checkpoint.config.padding == "before_shift"
    assert (checkpoint.preprocessing.resize, checkpoint.preprocessing.interpolation) == ("squash", "bicubic")


@pytest.mark.parametrize(
    ("make", "config"), [(SwinForImageClassification, V1[0]), (Swinv2ForImageClassification, V2[0])]
)
def test_names_in_memory_are_read_as_those_in_files(make, config, tmp_path, randomise):
    model = randomise(make(make.config_class(**config)))
    model.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    from_memory = family.convert(Source(name="x", file="x", tensors=model.state_dict(), config=stored), {})
    from_file = load(tmp_path)
    assert from_memory.config == from_file.config
    assert all(torch.equal(from_memory.tensors[name], tensor) for name, tensor in from_file.model.state_dict().items())


@pytest.mark.parametrize(("name", "prefix"), [("swin-mu", "swin."), ("swinv2-mu", "swinv2.")])
@pytest.mark.parametrize("classes", [0, 3])
def test_what_is_written_loads_in_transformers_and_comes_back(name, prefix, classes, tmp_path, randomise):
    config = preset(name, classes=classes, channels=1)
    model = randomise(build_network(config))
    labels = ["cat", "dog", "owl"] if classes else None
    task = "classify" if classes else "embed"
    preprocessing = Preprocessing(size=(64, 64), resize="squash", mean=(0.5,), std=(0.5,))
    Checkpoint(model, preprocessing, task, labels).save(tmp_path / "ours.safetensors")
    convert(tmp_path / "ours.safetensors", tmp_path / "theirs", to="transformers")
    images = torch.randn(2, 1, 64, 64)
    with torch.no_grad():
        if classes:
            theirs, report = AutoModelForImageClassification.from_pretrained(
                tmp_path / "theirs", output_loading_info=True
            )
            answer = theirs.eval()(images).logits
            assert theirs.config.id2label[2] == "owl"
        else:
            kind = SwinModel if name == "swin-mu" else Swinv2Model
            theirs, report = kind.from_pretrained(tmp_path / "theirs", output_loading_info=True)
            answer = theirs.eval()(images).pooler_output
        torch.testing.assert_close(model(images), answer, atol=1e-4, rtol=0)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    written = load_file(tmp_path / "theirs" / "model.safetensors")
    assert all(name.startswith((prefix, "classifier.")) for name in written) == bool(classes)
    assert any("attention.self.query" in name for name in written)  # published names, not those in memory
    back = load(tmp_path / "theirs")
    assert (back.config, back.labels, back.preprocessing) == (config, labels, preprocessing)


def test_masked_pretraining_is_read_without_its_decoder(tmp_path, randomise):
    model = randomise(SwinForMaskedImageModeling(SwinConfig(**V1[0], encoder_stride=16)))
    model.save_pretrained(tmp_path)
    checkpoint = load(tmp_path)
    assert (checkpoint.task, checkpoint.config.classes) == ("embed", 0)
    assert any("decoder was left out" in note for note in checkpoint.notes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "swinv2"}, "model_type 'swinv2', but the weights are a swin's"),
        ({"use_absolute_embeddings": True}, "use_absolute_embeddings"),
        ({"layer_norm_eps": 1e-6}, "layer_norm_eps 1e-06"),
        ({"depths": [2, 2]}, r"depths \[2, 2\], but the weights have \[2, 2, 2\]"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(changes, message, tmp_path):
    model = SwinForImageClassification(SwinConfig(**V1[0]))
    stored = {**model.config.to_dict(), **changes}
    with pytest.raises(VitrailError, match=message):
        family.convert(Source(name="x", file="x", tensors=model.state_dict(), config=stored), {})


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("swin-mu", {"image_size": 16, "window_size": 7}, "does not run where a grid is smaller than a window"),
        ("swinv2-mu", {"window_size": (4, 8)}, "its windows are squares"),
        ("swin-mu", {"head": "mlp"}, "its head is one linear layer"),
    ],
)
def test_what_transformers_cannot_be_is_refused(name, changes, message, tmp_path: Path):
    model = build_network(preset(name, classes=3, **changes))
    with pytest.raises(VitrailError, match=message):
        family.write_folder(Checkpoint(model, Preprocessing(size=model.config.image_size)), tmp_path)


@pytest.mark.parametrize("kind", [SwinForImageClassification, Swinv2ForImageClassification])
def test_a_damaged_file_gives_a_sentence(kind, damaged):
    model = kind((SwinConfig if kind is SwinForImageClassification else Swinv2Config)(**{**SMALL, "window_size": 4}))
    stored = model.config.to_dict()
    stored = {name: stored[name] for name in ("depths", "num_heads", "window_size", "image_size", "model_type")}
    damaged(Source(name="x", file="x", tensors=dict(model.state_dict()), config=stored))
