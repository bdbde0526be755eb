"""How many tokens are merged: as told, or as many as the measured drop allows."""

from __future__ import annotations

import re

import pytest
import torch
from PIL import Image

from tests.inference.backends.stub_backend import StubBackend
from vitrail.errors import VitrailError
from vitrail.inference.auto import choose_merging as choose_merging_module
from vitrail.inference.auto.choose_merging import choose_merging, print_merging
from vitrail.inference.auto.merging_record import Merging
from vitrail.inference.backends.graph_cache import fingerprint
from vitrail.inference.engine import Engine
from vitrail.model.cost import merged_multiply_adds, multiply_adds
from vitrail.model.presets import preset
from vitrail.option_types import merged_tokens
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

LABELS = ["cat", "dog", "owl"]


@pytest.fixture(scope="module")
def checkpoint(lively):
    config = preset("mu/4", image_size=16, classes=3, depth=3)
    return Checkpoint(lively(config), Preprocessing(size=(16, 16)), labels=LABELS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, checkpoint):
    """24 pictures in folders of the classes that the model itself gives them, so that its accuracy is 1."""
    root = tmp_path_factory.mktemp("pictures")
    engine = Engine.open(checkpoint, precision="fp32")
    for index in range(24):
        pixels = torch.randint(256, (16, 16, 3), generator=torch.Generator().manual_seed(index), dtype=torch.uint8)
        picture = Image.fromarray(pixels.numpy())
        [answer] = engine.answer(engine.outputs([engine.read(picture)]))
        (root / answer["label"]).mkdir(exist_ok=True)
        picture.save(root / answer["label"] / f"{index}.png")
    return root


def expected_drop(checkpoint, folder, r):
    """How much of the accuracy merging costs if the network's probabilities are right, without what chooses r."""
    engine = Engine.open(checkpoint, precision="fp32")
    images = engine.transform([engine.read(path).pixels for path in sorted(folder.rglob("*.png"))])
    with torch.no_grad():
        plain = checkpoint.model(images).softmax(1)
        merged = checkpoint.model.with_merged_tokens(r)(images).argmax(1, keepdim=True)
    return float((plain.amax(1) - plain.gather(1, merged)[:, 0]).mean())


@pytest.mark.parametrize(("text", "value"), [("8", 8), ("0.5%", 0.005), ("2 %", 0.02), (3, 3), (0.01, 0.01), ("0", 0)])
def test_a_number_of_tokens_or_a_share(text, value):
    assert merged_tokens(text) == value
    assert isinstance(merged_tokens(text), type(value))


@pytest.mark.parametrize("text", ["x", "-1", "1.5", "100%", "nan%", "", -3, None])
def test_anything_else_is_refused_in_one_sentence(text):
    with pytest.raises(VitrailError, match="merge_tokens is"):
        merged_tokens(text)


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("allowed", [0.0, 0.005, 0.02, 0.9])
def test_the_most_tokens_that_stay_within_the_drop(checkpoint, folder, labelled, allowed):
    """24 pictures are too few to count by, with labels or without."""
    calibration = folder if labelled else sorted(folder.rglob("*.png"))
    merging = choose_merging(Engine.open(checkpoint, precision="fp32"), allowed, calibration)
    assert expected_drop(checkpoint, folder, merging.r) <= allowed + 1e-3
    assert merging.r == 5 or expected_drop(checkpoint, folder, merging.r + 1) > allowed - 1e-3
    assert ("labelled" in merging.change) == (labelled and merging.r > 0)


def test_with_enough_labels_the_drop_is_one_of_the_accuracy(checkpoint, folder, monkeypatch):
    """The labels are what the model says, so that each answer that changes is one lost."""
    monkeypatch.setattr(choose_merging_module, "ENOUGH", 24)
    merging = choose_merging(Engine.open(checkpoint, precision="fp32"), 0.5, folder)
    lost, same = (
        float(text) for text in re.findall(r"loses ([0-9.]+) points of accuracy, .* \(([0-9.]+) %\)", merging.change)[0]
    )
    assert merging.r > 0 and 0 < lost == pytest.approx(100 - same, abs=0.01)


def test_the_checkpoint_itself_never_merges(checkpoint, folder):
    paths = sorted(folder.rglob("*.png"))
    plain = Engine.open(checkpoint, precision="fp32")
    merging = Engine.open(checkpoint, precision="fp32", merge_tokens=5)
    images = plain.transform([plain.read(path).pixels for path in paths])
    before = plain.forward(images)
    assert not torch.equal(merging.forward(images), before)
    assert torch.equal(merging.forward(images), checkpoint.model.with_merged_tokens(5)(images))
    assert torch.equal(plain.forward(images), before)
    assert fingerprint(plain.network) != fingerprint(merging.network)  # a kept graph of one is none of the other


def test_a_line_says_what_merging_brings_and_costs(checkpoint, folder, capfd):
    Engine.open(checkpoint, merge_tokens="90%", calibration=folder)
    line = capfd.readouterr().err
    assert "merging 12 of 16 patch tokens: " in line and "fewer multiply-adds" in line and "times as fast" in line
    assert "accuracy" in line and "24 labelled pictures" in line and "--merge-tokens 5" in line
    Engine.open(checkpoint, merge_tokens=2)
    line = capfd.readouterr().err
    assert "merging 6 of 16 patch tokens: " in line and "times as fast" not in line
    assert "of a number neither speed nor cost is measured: --merge-tokens 0.5% measures both" in line
    print_merging(Engine(checkpoint, StubBackend(3)), Merging(2, "it loses 0.1 points", date="2026-11-19"))  # in int8
    assert "in int8 its speed is not measured; it loses 0.1 points" in capfd.readouterr().err


def test_what_was_measured_is_remembered(checkpoint, folder, capfd, monkeypatch, tmp_path):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    pictures = sorted(folder.rglob("*.png"))
    first = Engine.open(checkpoint, merge_tokens="20%", calibration=pictures).network.model.merge_tokens
    line = capfd.readouterr().err
    calls = []
    monkeypatch.setattr(choose_merging_module, "choose_merging", lambda *given: calls.append(given) or Merging(1, "x"))
    monkeypatch.setattr(choose_merging_module, "_speedup", lambda engine: 1 / 0)
    again = Engine.open(checkpoint, merge_tokens="20%", calibration=pictures[:20])  # no more than there were
    assert again.network.model.merge_tokens == first and capfd.readouterr().err == line and not calls
    monkeypatch.setattr(choose_merging_module, "_speedup", lambda engine: 1.5)
    for other in (
        {"merge_tokens": "10%", "calibration": pictures},  # another drop
        {"merge_tokens": "20%", "calibration": folder},  # with labels
        {"merge_tokens": "20%", "calibration": [*pictures, *pictures]},  # more of them
    ):
        assert Engine.open(checkpoint, **other).network.model.merge_tokens == 1
    assert len(calls) == 3
    for record in (tmp_path / "merging").iterdir():
        record.write_text('{"r": "many"}')
    assert Engine.open(checkpoint, merge_tokens="20%", calibration=pictures).network.model.merge_tokens == 1


def test_without_pictures_the_drop_cannot_be_measured(checkpoint):
    with pytest.raises(VitrailError, match="no pictures to measure"):
        Engine.open(checkpoint, merge_tokens="0.5%")


def test_multiply_adds_are_those_of_the_tokens_that_are_left():
    config = preset("S/16")
    assert merged_multiply_adds(config, [0] * 12) == multiply_adds(config)
    by_hand, tokens, width = multiply_adds(config) - 12 * (12 * 197 * 384**2 + 2 * 197**2 * 384), 197, 384
    for block in range(12):
        by_hand += 4 * tokens * width**2 + 2 * tokens**2 * width
        if block in (3, 6):
            by_hand += 64 * tokens**2 + (tokens - 48) * tokens * width  # what is like what, and the product that merges
            tokens -= 48
        by_hand += 8 * tokens * width**2
    assert merged_multiply_adds(config, [0, 0, 0, 48, 0, 0, 48, 0, 0, 0, 0, 0]) == by_hand


@pytest.mark.parametrize("name", ["openvino", "onnxruntime"])
def test_every_engine_merges_as_torch_does_for_batches_that_come_and_go(checkpoint, name):
    merging = Engine.open(checkpoint, engine=name, precision="fp32", merge_tokens=3, calibration=[])
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        expected = checkpoint.model.with_merged_tokens(3)(images)
    for count in (3, 1, 4, 3):
        torch.testing.assert_close(merging.forward(images[:count]), expected[:count], atol=1e-4, rtol=1e-4)
