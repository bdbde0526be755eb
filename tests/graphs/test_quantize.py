"""int8 of tiny networks: every layer, some of them back in float, and nothing sent anywhere."""

from __future__ import annotations

import socket
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import lively_vit
from vitrail.graphs.openvino_graph import openvino_model
from vitrail.graphs.quantize import layer_titles, layers_in_float, quantize, quantized_layers, store_int8
from vitrail.graphs.quantize_search import compiled, make_int8, rank_layers, search_int8
from vitrail.graphs.trace import trace
from vitrail.model.presets import preset
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

IMAGES = [np.random.default_rng(n).normal(size=(1, 3, 32, 32)).astype(np.float32) for n in range(6)]


@pytest.fixture(scope="module")
def model() -> Any:
    network = lively_vit(preset("mu/16", image_size=32, classes=5, depth=2))
    return openvino_model(trace(Checkpoint(network, Preprocessing(size=(32, 32)))))


@pytest.fixture(scope="module")
def int8(model: Any) -> Any:
    """Quantised while nobody may open a socket."""

    class Refused(socket.socket):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            raise AssertionError("a socket was opened")

    original = socket.socket
    socket.socket = Refused  # type: ignore[misc]
    try:
        return quantize(model, IMAGES, 0.5)
    finally:
        socket.socket = original  # type: ignore[misc]


def outputs(model: Any) -> np.ndarray:
    forward = compiled(model)
    return np.concatenate([np.array(forward(image)) for image in IMAGES])


def kinds(model: Any) -> Counter[str]:
    return Counter(op.get_type_name() for op in model.get_ops())


def test_every_layer_is_in_int8_but_attention_is_not(model: Any, int8: Any, capsys: pytest.CaptureFixture[str]) -> None:
    layers = quantized_layers(int8)
    assert len(layers) == kinds(model)["MatMul"] > 8
    assert kinds(model)["FakeQuantize"] == 0, "the given model is kept as it is"
    assert kinds(int8)["FakeQuantize"] == 2 * len(layers)  # its input and its weights, and none before attention
    difference = np.abs(outputs(int8) - outputs(model)).mean() / outputs(model).std()
    assert 1e-4 < difference < 0.4
    assert capsys.readouterr().out == ""  # NNCF's progress bars would stand in the way of answers


def test_layers_are_called_by_their_weights(model: Any, int8: Any) -> None:
    titles = layer_titles(model)
    assert list(titles) == quantized_layers(int8)
    assert list(titles.values())[:2] == ["stem_projection", "blocks_0_attention_qkv"]
    assert list(titles.values())[-1] == "head_out"


def test_with_all_layers_in_float_the_answers_are_float32s(model: Any, int8: Any) -> None:
    restored = layers_in_float(int8, quantized_layers(int8))
    assert quantized_layers(restored) == [] and len(quantized_layers(int8)) > 8
    error = np.abs(outputs(restored) - outputs(model)).max()  # NNCF's correction of biases is left
    assert error < np.abs(outputs(int8) - outputs(model)).max()


def test_stored_weights_are_int8_and_give_the_same_answers(int8: Any) -> None:
    stored = store_int8(int8)
    types = Counter(
        op.get_element_type().get_type_name() for op in stored.get_ops() if op.get_type_name() == "Constant"
    )
    assert types["i8"] + types["u8"] == len(quantized_layers(int8))
    np.testing.assert_allclose(outputs(stored), outputs(int8), atol=1e-4)


class OutputJudge:
    """By the outputs alone; each alpha loses what it is told to, until so many layers are in float."""

    def __init__(self, model: Any, layers_needed: int) -> None:
        self.expected, self.layers_needed, self.calls = outputs(model), layers_needed, 0

    def __call__(self, forward: Any) -> SimpleNamespace:
        self.calls += 1
        pairs = zip(IMAGES, self.expected, strict=True)
        each = np.array([np.abs(np.array(forward(image)) - want).mean() for image, want in pairs])
        points = 0.0 if self.calls - 4 >= self.layers_needed else 9.0
        return SimpleNamespace(points=points, distance=each.mean(), each=each)

    def distance(self, forward: Any, indices: list[int]) -> float:
        pairs = ((np.array(forward(IMAGES[index])), self.expected[index]) for index in indices)
        return float(np.mean([np.abs(got - want).mean() for got, want in pairs]))


def test_the_search_takes_the_nearest_alpha_and_then_the_worst_layers(model: Any) -> None:
    judge = OutputJudge(model, layers_needed=2)
    choice = search_int8(model, IMAGES, judge, allowed=0.5)
    assert list(choice.tried) == [None, 0.15, 0.5, 0.95]
    assert choice.alpha == min(choice.tried, key=lambda alpha: choice.tried[alpha].distance)
    assert len(choice.in_float) == len(choice.titles) == 2 and choice.loss.points == 0
    assert choice.loss.distance < choice.tried[choice.alpha].distance
    final = make_int8(model, IMAGES, choice)
    assert kinds(final)["MatMul"] == choice.layers
    assert not set(choice.in_float) & set(quantized_layers(final))


def test_layers_are_ranked_by_what_they_cost(model: Any, int8: Any) -> None:
    judge = OutputJudge(model, 0)
    ranked = rank_layers(int8, judge, judge(compiled(int8)))
    assert sorted(ranked) == sorted(quantized_layers(int8))
    first, last = (
        judge.distance(compiled(layers_in_float(int8, [name])), range(6)) for name in (ranked[0], ranked[-1])
    )
    assert first <= last
