"""int8 of tiny networks: every layer, and some of them back in float."""

from __future__ import annotations

import platform
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import lively_vit
from vitrail.graphs import quantize as openvino_int8
from vitrail.graphs import quantize_onnx as onnx_int8
from vitrail.graphs.onnx_graph import onnx_model
from vitrail.graphs.openvino_graph import openvino_model
from vitrail.graphs.quantize_search import Int8Graph, LayerRestoring, make_int8, search_int8
from vitrail.graphs.trace import trace
from vitrail.model.presets import preset
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

IMAGES = [np.random.default_rng(n).normal(size=(1, 3, 32, 32)).astype(np.float32) for n in range(6)]


@dataclass(frozen=True)
class Quantized:
    """A tiny network as a graph, and the same in int8."""

    graphs: Int8Graph
    model: Any
    int8: Any

    @property
    def layers(self) -> int:
        """The stem, qkv or q and kv, projection and two of the MLP in each block, the head. In ONNX the weights of q
        and kv, of which the last block needs but one row, are cut in the graph, and these two stay in float."""
        return 11 if self.graphs is openvino_int8 else 9

    def outputs(self, model: Any) -> np.ndarray:
        forward = self.graphs.compiled(model)
        return np.concatenate([np.array(forward(image)) for image in IMAGES])

    def error(self, model: Any) -> float:
        return float(np.abs(self.outputs(model) - self.outputs(self.model)).mean() / self.outputs(self.model).std())


@pytest.fixture(scope="module", params=["openvino", "onnx"])
def quantized(request: pytest.FixtureRequest) -> Quantized:
    network = lively_vit(preset("mu/16", image_size=32, classes=5, depth=2))
    program = trace(Checkpoint(network, Preprocessing(size=(32, 32))))
    graphs: Int8Graph = openvino_int8 if request.param == "openvino" else onnx_int8
    model = openvino_model(program) if request.param == "openvino" else onnx_model(program)
    return Quantized(graphs, model, graphs.quantize(model, IMAGES, 0.5))


def kinds(model: Any) -> Counter[str]:
    """How many nodes of each kind a model has."""
    if hasattr(model, "graph"):
        return Counter(node.op_type for node in model.graph.node)
    return Counter(op.get_type_name() for op in model.get_ops())


def test_every_layer_is_in_int8_but_attention_is_not(quantized: Quantized, capsys: pytest.CaptureFixture[str]) -> None:
    graphs, before, after = quantized.graphs, kinds(quantized.model), kinds(quantized.int8)
    layers = graphs.quantized_layers(quantized.int8)
    assert len(layers) == quantized.layers
    assert before["FakeQuantize"] + before["QuantizeLinear"] == 0, "the given model is kept as it is"
    rounded = after["FakeQuantize"] + after["QuantizeLinear"]
    assert rounded - 2 * len(layers) in (0, 1)  # input and weights; of ONNX what q and kv are cut from; no attention
    assert 1e-4 < quantized.error(quantized.int8) < 0.4
    assert capsys.readouterr().out == ""  # NNCF's progress bars would stand in the way of answers
    assert set(layers) <= set(graphs.layer_titles(quantized.model))


def test_without_vnni_sums_do_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests hold OpenVINO to AVX2 (`tests/conftest.py`), whose sums of 8-bit products saturate at 16 bits."""
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("only x86 processors add up products of bytes in 16 bits")
    network = lively_vit(preset("mu/16", image_size=32, classes=5, depth=1))
    model = openvino_model(trace(Checkpoint(network, Preprocessing(size=(32, 32)))))
    errors = []
    for saturates in (True, False):
        if not saturates:  # as if it had VNNI
            monkeypatch.setattr(openvino_int8, "saturates_int8", lambda: False)
        int8 = openvino_int8.quantize(model, IMAGES, None)
        errors.append(Quantized(openvino_int8, model, int8).error(int8))
    assert errors[0] < 0.5 * errors[1], errors


def test_tokens_are_compared_and_merged_in_float(quantized: Quantized) -> None:
    network = lively_vit(preset("mu/16", image_size=32, classes=5, depth=2)).with_merged_tokens(1)
    program = trace(Checkpoint(network, Preprocessing(size=(32, 32))))
    model = openvino_model(program) if quantized.graphs is openvino_int8 else onnx_model(program)
    int8 = quantized.graphs.quantize(model, IMAGES, None)
    assert len(quantized.graphs.quantized_layers(int8)) == quantized.layers
    rounded = kinds(int8)["FakeQuantize"] + kinds(int8)["QuantizeLinear"]
    assert rounded - 2 * quantized.layers in (0, 1)


def test_openvinos_layers_are_called_by_their_weights(quantized: Quantized) -> None:
    if quantized.graphs is not openvino_int8:
        pytest.skip("the names of ONNX say nothing")
    titles = list(quantized.graphs.layer_titles(quantized.model).values())
    assert titles[:2] == ["stem_projection", "blocks_0_attention_qkv"] and titles[-1] == "head_out"


def test_with_all_layers_in_float_the_answers_are_nearly_float32s(quantized: Quantized) -> None:
    layers = quantized.graphs.quantized_layers(quantized.int8)
    restored = quantized.graphs.layers_in_float(quantized.int8, layers)
    assert quantized.graphs.quantized_layers(restored) == [] and len(layers) == quantized.layers
    assert kinds(restored)["FakeQuantize"] + kinds(restored)["QuantizeLinear"] <= 1
    assert quantized.error(restored) < quantized.error(quantized.int8)  # NNCF's correction of biases is left


def test_stored_weights_are_int8_and_give_the_same_answers(quantized: Quantized) -> None:
    stored = quantized.graphs.store_int8(quantized.int8)
    after = kinds(stored)
    assert after["FakeQuantize"] + after["QuantizeLinear"] - quantized.layers in (0, 1)  # of the inputs alone
    np.testing.assert_allclose(quantized.outputs(stored), quantized.outputs(quantized.int8), atol=0.02)


class OutputJudge:
    """By the outputs alone: too much is lost until so many layers are in float."""

    def __init__(self, quantized: Quantized, layers_needed: int) -> None:
        self.expected, self.layers_needed, self.calls = quantized.outputs(quantized.model), layers_needed, 0

    def __call__(self, forward: Any) -> SimpleNamespace:
        self.calls += 1
        each = np.array([self.distance(forward, [index]) for index in range(len(IMAGES))])
        points = 0.0 if self.calls - 4 >= self.layers_needed else 9.0
        return SimpleNamespace(points=points, distance=each.mean(), each=each)

    def distance(self, forward: Any, indices: list[int]) -> float:
        pairs = ((np.array(forward(IMAGES[index])), self.expected[index]) for index in indices)
        return float(np.mean([np.abs(got - want).mean() for got, want in pairs]))


def test_the_search_takes_the_nearest_alpha_and_then_the_worst_layers(quantized: Quantized) -> None:
    graphs, judge = quantized.graphs, OutputJudge(quantized, layers_needed=2)
    choice = search_int8(graphs, quantized.model, IMAGES, judge, allowed=0.5)
    assert list(choice.tried) == [None, 0.15, 0.5, 0.95] and choice.layers == quantized.layers
    assert choice.alpha == min(choice.tried, key=lambda alpha: choice.tried[alpha].distance)
    assert len(choice.in_float) == len(choice.titles) == 2 and choice.loss.points == 0
    final = make_int8(graphs, quantized.model, IMAGES, choice)
    assert len(graphs.quantized_layers(final)) == quantized.layers - 2
    assert not set(choice.in_float) & set(graphs.quantized_layers(final))


def test_layers_are_ranked_by_what_they_cost(quantized: Quantized) -> None:
    graphs, judge = quantized.graphs, OutputJudge(quantized, 0)
    restoring = LayerRestoring(graphs, quantized.int8, judge)
    ranked = restoring.ranked(judge(graphs.compiled(quantized.int8)))
    assert sorted(ranked) == sorted(graphs.quantized_layers(quantized.int8))
    first, last = (
        judge.distance(graphs.compiled(graphs.layers_in_float(quantized.int8, [name])), list(range(6)))
        for name in (ranked[0], ranked[-1])
    )
    assert first <= last
