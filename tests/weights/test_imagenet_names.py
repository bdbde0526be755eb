"""Published heads answer with names: the right ones, in the right order, and only where the file has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
from safetensors.torch import save_file

import vitrail
from vitrail.weights.imagenet_names import SETS, imagenet_names, name_outputs

TABLES = Path(timm.__file__).parent / "data" / "_info"
FILES = {1000: "", 11821: "12k", 21841: "22k", 21843: "21k_goog"}


@pytest.mark.parametrize("classes", SETS)
def test_each_name_is_that_of_its_synset(classes: int) -> None:
    lines = (TABLES / "imagenet_synset_to_lemma.txt").read_text().splitlines()
    words = dict(line.split("\t") for line in lines)
    synsets = (TABLES / f"imagenet{FILES[classes]}_synsets.txt").read_text().split()
    names = imagenet_names(classes)
    assert len(names) == len(set(names)) == classes
    for synset, name in zip(synsets, names, strict=True):
        first = words[synset].split(", ")[0]
        assert name == first or name.startswith(f"{first} (")


def test_what_imagenet_calls_alike_is_told_apart() -> None:
    names = imagenet_names(1000)
    assert (names[134], names[517]) == ("crane (bird)", "crane (machine)")
    assert (names[638], names[639]) == ("maillot (tights)", "maillot (tank suit)")
    assert names[207] == "golden retriever"


def test_only_outputs_without_names_are_named() -> None:
    own = [f"my {i}" for i in range(1000)]
    assert name_outputs(own, 1000) == (own, [])
    assert name_outputs(None, 999) == (None, [])
    assert name_outputs([f"LABEL_{i}" for i in range(3)], 3)[0] == ["LABEL_0", "LABEL_1", "LABEL_2"]
    labels, notes = name_outputs([f"LABEL_{i}" for i in range(1000)], 1000)
    assert labels == imagenet_names(1000) and "ImageNet-1k" in notes[0]


def saved(folder: Path, classes: int, **more: Any) -> Path:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=classes)
    save_file(model.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architecture": "vit_tiny_patch16_224", **more}))
    return folder


def test_a_head_of_timm_answers_with_names(tmp_path: Path) -> None:
    model = vitrail.load(saved(tmp_path, 1000))
    assert model.labels == imagenet_names(1000)
    assert any("ImageNet-1k" in note for note in model.notes)
    assert vitrail.load(saved(tmp_path, 1000), classes=5).labels is None
    named = [f"mine {i}" for i in range(1000)]
    assert vitrail.load(saved(tmp_path, 1000, label_names=named)).labels == named
    assert vitrail.load(saved(tmp_path, 12)).labels is None


def test_labels_that_transformers_made_up_are_replaced(tmp_path: Path) -> None:
    import transformers

    shape = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 48}
    config = transformers.ViTConfig(**shape, image_size=32, num_labels=1000)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    stored["id2label"] = {str(i): f"LABEL_{i}" for i in range(1000)}
    (tmp_path / "config.json").write_text(json.dumps(stored))
    assert vitrail.load(tmp_path).labels == imagenet_names(1000)
    stored["problem_type"] = "multi_label_classification"  # not a head that was trained on ImageNet-1k
    (tmp_path / "config.json").write_text(json.dumps(stored))
    assert vitrail.load(tmp_path).labels[0] == "LABEL_0"
