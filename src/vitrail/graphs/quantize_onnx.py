"""Static int8 of an ONNX model by NNCF, for ONNX Runtime: the functions of `quantize.py`, with QuantizeLinear and
DequantizeLinear in the place of a FakeQuantize."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.graphs.graph_file import IMAGES, Forward
from vitrail.graphs.no_telemetry import import_onnxruntime, import_silently
from vitrail.graphs.quantize import with_nncf

LAYERS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
TO_INT8, TO_FLOAT = "QuantizeLinear", "DequantizeLinear"


def quantize(model: Any, images: Sequence[NDArray[np.float32]], alpha: float | None) -> Any:
    """The model (an `onnx.ModelProto`) with every layer in int8, but products without weights, such as attention's, in
    float."""
    constants = _constants(model)
    in_float = [node.name for node in model.graph.node if node.op_type in LAYERS and not constants & set(node.input)]
    return with_nncf(model, images, alpha, lambda image: {IMAGES: image}, in_float)


def layer_titles(model: Any) -> dict[str, str]:
    """Layers by their names; the exporter's constants have no names that say more."""
    return {node.name: node.name for node in model.graph.node if node.op_type in LAYERS}


def quantized_layers(model: Any) -> list[str]:
    """The names of the layers in int8, in the order in which they run."""
    nodes = _producers(model)
    return [
        node.name
        for node in model.graph.node
        if node.op_type in LAYERS and any(_is_rounded(name, nodes) for name in node.input)
    ]


def layers_in_float(model: Any, names: Collection[str]) -> Any:
    """A copy in which these layers are no longer in int8."""
    restored = copy.deepcopy(model)
    nodes = _producers(restored)
    for node in restored.graph.node:
        if node.name in names:
            _without_rounding(node, nodes)
    return _without_unused(restored)


def store_int8(model: Any) -> Any:
    """The same model with its weights as int8 constants."""
    stored = copy.deepcopy(model)
    import_silently("nncf.onnx.graph.passes").compress_quantize_weights_transformation(stored)
    return stored


def compiled(model: Any, hint: str = "f32") -> Forward:
    """The model ready to run on this CPU. hint: ONNX Runtime has no other than f32."""
    session = import_onnxruntime().InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    def forward(images: NDArray[np.float32]) -> NDArray[np.float32]:
        outputs: NDArray[np.float32] = session.run(None, {IMAGES: images})[0]
        return outputs

    return forward


def _producers(model: Any) -> dict[str, Any]:
    return {output: node for node in model.graph.node for output in node.output}


def _constants(model: Any) -> set[str]:
    return {tensor.name for tensor in model.graph.initializer}


def _is_rounded(name: str, nodes: Mapping[str, Any]) -> bool:
    """Whether a tensor comes out of QuantizeLinear and DequantizeLinear, or of int8 constants."""
    return name in nodes and nodes[name].op_type == TO_FLOAT


def _before_rounding(name: str, nodes: Mapping[str, Any]) -> str:
    """The tensor that was rounded; the rounded one where it is stored in int8 only."""
    before = nodes[name].input[0]
    return str(nodes[before].input[0]) if before in nodes and nodes[before].op_type == TO_INT8 else name


def _without_rounding(node: Any, nodes: Mapping[str, Any]) -> None:
    for place, name in enumerate(node.input):
        if _is_rounded(name, nodes):
            node.input[place] = _before_rounding(name, nodes)


def _without_unused(model: Any) -> Any:
    """Rounding that nobody reads is taken out, with its scales: a runtime would go on computing it, or warn of it."""
    for kind in (TO_FLOAT, TO_INT8):
        used = _used(model)
        for node in [one for one in model.graph.node if one.op_type == kind and not used & set(one.output)]:
            model.graph.node.remove(node)
    used = _used(model)
    for tensor in [one for one in model.graph.initializer if one.name not in used]:
        model.graph.initializer.remove(tensor)
    return model


def _used(model: Any) -> set[str]:
    return {name for node in model.graph.node for name in node.input} | {one.name for one in model.graph.output}
