"""int8 of a checkpoint: what comes out, what is recorded, and how it is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.conftest import lively_vit
from vitrail.errors import VitrailError
from vitrail.graphs import quantize
from vitrail.graphs.openvino_graph import openvino_model
from vitrail.graphs.trace import trace
from vitrail.inference.calibration.calibration_images import CalibrationImages
from vitrail.inference.calibration.quantized_model import quantized_model
from vitrail.inference.image_processor import ModelInput
from vitrail.model.presets import preset
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

PICTURES = [np.random.default_rng(n).integers(0, 255, (32, 32, 3), dtype=np.uint8) for n in range(12)]
CALIBRATION = CalibrationImages([ModelInput(pixels) for pixels in PICTURES], "12 pictures of a test")


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    network = lively_vit(preset("mu/16", image_size=32, classes=5, depth=1))
    return Checkpoint(network, Preprocessing(size=(32, 32)))


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> Any:
    return openvino_model(trace(checkpoint))


def test_the_model_runs_any_batch_and_the_record_says_how_it_was_made(checkpoint: Checkpoint, model: Any) -> None:
    int8, record = quantized_model(checkpoint, model, CALIBRATION, allowed_drop=20)
    images = np.random.default_rng(0).normal(size=(3, 3, 32, 32)).astype(np.float32)
    got, expected = quantize.compiled(int8)(images), quantize.compiled(model)(images)
    assert got.shape == (3, 5) and 0 < np.abs(got - expected).mean() < 0.5 * expected.std()
    assert record == json.loads(json.dumps(record))
    assert record["calibration"] == "12 pictures of a test" and record["layers_in_float"] == []
    assert (record["images"], record["held_out"], record["layers"]) == (12, 4, 7)
    assert list(record["tried"]) == ["off", "0.15", "0.5", "0.95"]
    assert record["loss"]["points"] <= 20 and 0 < record["loss"]["largest_probability_difference"] < 1


def test_what_loses_too_much_is_refused_with_the_figures(checkpoint: Checkpoint, model: Any) -> None:
    with pytest.raises(VitrailError) as refused:
        quantized_model(checkpoint, model, CALIBRATION, allowed_drop=-1)
    text = str(refused.value)
    assert text.startswith("int8 is refused: it loses ") and "points of accuracy" in text and "on 4 pictures" in text
    assert "-1 are allowed; use bf16 or fp32" in text and "of 7 layers in float" in text


def test_calibration_images_are_split_without_a_rest() -> None:
    fitted, held_out = CALIBRATION.split()
    assert len(fitted.images) == 8 and len(held_out.images) == 4
    assert {id(image) for image in [*fitted.images, *held_out.images]} == {id(image) for image in CALIBRATION.images}
    three = CalibrationImages(CALIBRATION.images * 10, "three classes in turn", [0, 1, 2] * 40)
    assert {len(set(part.truths or ())) for part in three.split()} == {3}
    many = CalibrationImages(CALIBRATION.images * 45, "540")
    assert [len(part.images) for part in many.split()] == [300, 240]


@pytest.mark.parametrize("count", [1, 2, 11])
def test_few_pictures_are_refused_for_none_may_judge_what_it_calibrated(
    checkpoint: Checkpoint, model: Any, count: int
) -> None:
    with pytest.raises(
        VitrailError, match=rf"int8 needs 12 pictures or more, .* here are {count} [(]12 pictures of a test"
    ):
        quantized_model(checkpoint, model, CALIBRATION.part(range(count)))
