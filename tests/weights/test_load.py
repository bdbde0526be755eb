"""Where a model may come from: a preset, a file, a folder, a hub id out of the cache."""

import subprocess
import sys

import pytest
import torch

import vitrail
from vitrail.errors import VitrailError
from vitrail.weights import hub


def test_a_preset_has_fresh_weights_and_says_so():
    loaded = vitrail.load("mu/16", classes=2)
    assert "untrained" in loaded.notes[0]
    assert loaded.model(torch.zeros(1, 3, 224, 224)).shape == (1, 2)


@pytest.mark.parametrize("source", ["nothing-here.safetensors", "no/such/folder", "", "S/16/32", "plain"])
def test_a_source_that_is_not_there_is_named(source):
    with pytest.raises(VitrailError, match="there is no file"):
        vitrail.load(source)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A hub cache as huggingface_hub lays it out, and a hub that cannot be reached."""
    commit = "0123456789012345678901234567890123456789"
    snapshot = tmp_path / "models--someone--flowers_16.v1" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (tmp_path / "models--someone--flowers_16.v1" / "refs").mkdir()
    for ref in ("main", "v2"):
        (tmp_path / "models--someone--flowers_16.v1" / "refs" / ref).write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return snapshot


def saved_by_transformers(folder):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8)
    model = transformers.ViTForImageClassification(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("form", ["{}", "{}@v2", "hf-hub:{}", "hf://{}"])
def test_a_hub_id_loads_from_the_cache_without_a_network(cache, form):
    theirs = saved_by_transformers(cache)
    loaded = vitrail.load(form.format("someone/flowers_16.v1"))
    images = torch.randn(1, 3, 32, 32)
    assert torch.allclose(loaded.model(images), theirs(images).logits, atol=1e-5)
    assert loaded.provenance["family"] == "transformers"


def test_a_hub_id_that_is_nowhere_says_what_to_do(cache):
    with pytest.raises(VitrailError, match="someone/else.*hub"):
        vitrail.load("someone/else")


def test_without_the_hub_extra_the_sentence_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(VitrailError, match=r"pip install 'vitrail\[hub\]'"):
        hub.fetch("someone/flowers")


def test_loading_needs_neither_timm_nor_transformers(tmp_path):
    saved_by_transformers(tmp_path)
    code = (
        f"import sys, vitrail; vitrail.load({str(tmp_path)!r}); "
        "print(sorted({'timm', 'transformers'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
