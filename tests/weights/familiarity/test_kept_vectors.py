"""What a model file keeps of its training pictures: read back exactly, refused when damaged, no burden to others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import vitrail
from vitrail.errors import VitrailError
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.weights.adapt import adapt, without_head
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.familiarity.kept_vectors import ENTRY, KeptVectors, kept_text, read_kept
from vitrail.weights.familiarity.reference_vectors import fit_familiarity
from vitrail.weights.preprocessing import Preprocessing


def some(width: int = 64) -> KeptVectors:
    generator = torch.Generator().manual_seed(0)
    kept = fit_familiarity(torch.randn(50, width, generator=generator), torch.randn(30, width, generator=generator))
    assert kept is not None
    return kept


def checkpoint() -> Checkpoint:
    config = preset("mu/4", image_size=16, classes=2)
    kept = some(config.pooled_width)
    return Checkpoint(ViT(config).eval(), Preprocessing(size=(16, 16)), labels=["cat", "dog"], familiarity=kept)


def test_a_text_reads_back_bit_equal() -> None:
    before = some()
    after = read_kept(kept_text(before))
    assert after is not None
    assert np.array_equal(after.vectors, before.vectors) and np.array_equal(after.held_out, before.held_out)
    assert after.vectors.dtype == np.float16


def test_the_file_carries_it_and_its_weights_stay_a_plain_file(tmp_path: Path) -> None:
    saved = checkpoint()
    path = saved.save(tmp_path / "model.safetensors")
    loaded = vitrail.load(path)
    assert saved.familiarity is not None and loaded.familiarity is not None
    vectors = np.random.default_rng(0).normal(size=(5, loaded.config.pooled_width)).astype(np.float32)
    assert np.array_equal(loaded.familiarity.scores(vectors), saved.familiarity.scores(vectors))
    assert load_file(path).keys() == saved.model.state_dict().keys()  # no other tensors: others read it as before


def test_an_earlier_version_reads_the_file(tmp_path: Path) -> None:
    """It knows nothing of the entry, and its checksum is over the same things as before."""
    path = checkpoint().save(tmp_path / "model.safetensors")
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    del metadata[ENTRY]
    save_file(load_file(path), tmp_path / "before.safetensors", metadata)
    assert vitrail.load(tmp_path / "before.safetensors").familiarity is None


def edited(**changes: Any) -> str:
    entry = json.loads(kept_text(some()))
    for name, change in changes.items():
        entry[name] = change(entry[name])
    return json.dumps(entry)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "null",
        "{}",
        edited(width=lambda width: width + 1),
        edited(width=lambda width: -width),
        edited(width=lambda width: 0),
        edited(width=lambda width: True),
        edited(width=lambda width: 10**30),
        edited(vectors=lambda text: text[:-8]),
        edited(vectors=lambda text: ""),
        edited(vectors=lambda text: 5),
        edited(held_out=lambda text: text[:40]),
        edited(held_out=lambda text: "not base64 &&"),
        edited(sha256=lambda text: "0" * 64),
        "[" * 100_000,
    ],
)
def test_a_damaged_text_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(VitrailError, match="damaged"):
        read_kept(text)


def test_too_much_of_it_is_refused_before_it_is_read() -> None:
    with pytest.raises(VitrailError, match="far too many"):
        read_kept(" " * 5_000_000)


def test_values_that_are_no_distances_are_refused() -> None:
    kept = some()
    for wrong in (kept.held_out[::-1], kept.held_out * np.nan, kept.held_out[:5]):
        with pytest.raises(VitrailError, match="damaged"):
            read_kept(kept_text(KeptVectors(kept.vectors, wrong)))
    with pytest.raises(VitrailError, match="damaged"):
        read_kept(kept_text(KeptVectors(kept.vectors * np.float16(np.inf), kept.held_out)))


def test_a_later_format_is_left_aside() -> None:
    assert read_kept(edited(format=lambda number: number + 1)) is None


def test_vectors_of_another_width_are_named(tmp_path: Path) -> None:
    wrong = checkpoint()
    wrong.familiarity = some(7)
    with pytest.raises(VitrailError, match="vectors of width 7, the network's have 32"):
        wrong.save(tmp_path / "model.safetensors")


def test_another_network_has_other_vectors(tmp_path: Path) -> None:
    before = checkpoint()
    path = before.save(tmp_path / "model.safetensors")
    assert without_head(before).familiarity is None
    for changes in ({"classes": 5}, {"image_size": 32}, {"channels": 1}):
        changed = adapt(before, **changes)  # type: ignore[arg-type]
        assert changed.familiarity is None and "was dropped" in changed.notes[-1]
    assert before.familiarity is not None
    assert vitrail.load(path, drop_path=0.1).familiarity is None
    assert adapt(before, classes=2).familiarity is before.familiarity  # nothing changed
