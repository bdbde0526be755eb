"""Static int8 of an OpenVINO model by NNCF, and its layers one by one.

A quantised layer is a matrix product or a convolution whose inputs each go through a FakeQuantize, which rounds to 256
levels. Weights stay in float32 behind theirs until `store_int8`, so that a layer can go back to higher precision.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.graphs.graph_file import Forward
from vitrail.graphs.no_telemetry import import_silently
from vitrail.graphs.vnni import saturates_int8

LAYERS = ("MatMul", "Convolution", "GroupConvolution", "ConvolutionBackpropData")
ATTENTION = "ScaledDotProductAttention"
ROUNDING = "FakeQuantize"
OURS = "network_"  # what the names of traced weights begin with
OFF = -1.0  # NNCF's alpha for: no SmoothQuant


def quantize(model: Any, images: Sequence[NDArray[np.float32]], alpha: float | None) -> Any:
    """The model (an `openvino.Model`) with every layer in int8; the given one is kept as it is.

    images: normalised (1, C, h, w) each: for a transformer, NNCF's statistics are right at batch 1 only. alpha: how
    much of the activations' range SmoothQuant moves into the weights, 0 to 1; None: no SmoothQuant.
    """
    quantized = with_nncf(model, images, alpha, lambda image: image, _products_without_weights(model))
    _free_attention(quantized)
    return quantized


def with_nncf(
    model: Any,
    images: Sequence[NDArray[np.float32]],
    alpha: float | None,
    feed: Callable[..., Any],
    in_float: Sequence[str] = (),
) -> Any:
    """An OpenVINO or ONNX model as NNCF quantises it. feed: what the model is given for an image. in_float: names of
    operations that are left as they are."""
    nncf = import_silently("nncf")
    nncf.set_log_level(logging.ERROR)
    advanced = import_silently("nncf.quantization.advanced_parameters")
    alphas = advanced.AdvancedSmoothQuantParameters(matmul=OFF if alpha is None else alpha)
    fix = advanced.OverflowFix  # 7 bits for weights: in the first layer, or in all, where the sums of 8 are wrong
    with _without_progress_bars():
        return nncf.quantize(
            model,
            nncf.Dataset(images, feed),
            preset=nncf.QuantizationPreset.MIXED,
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(images),
            ignored_scope=nncf.IgnoredScope(names=list(in_float)),
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                smooth_quant_alphas=alphas,
                overflow_fix=fix.ENABLE if saturates_int8() else fix.FIRST_LAYER,
                backend_params={"compress_weights": False},
            ),
        )


def layer_titles(model: Any) -> dict[str, str]:
    """What people may call a layer, by its name: `blocks_0_attention_qkv` for the one with that weight.

    model: before it is quantised, for then weights get new names.
    """
    titles = {}
    for op in model.get_ordered_ops():
        if op.get_type_name() in LAYERS:
            names = sorted(op.input_value(1).get_names())
            weights = [name for name in names if name.startswith(OURS) and "_weight" in name]
            titles[op.get_friendly_name()] = (
                weights[0].removeprefix(OURS).partition("_weight")[0] if weights else op.get_friendly_name()
            )
    return titles


def quantized_layers(model: Any) -> list[str]:
    """The names of the layers in int8, in the order in which they run."""
    return [op.get_friendly_name() for op in model.get_ordered_ops() if _is_quantized(op)]


def layers_in_float(model: Any, names: Collection[str]) -> Any:
    """A copy in which these layers are no longer in int8: inputs and weights reach them without rounding."""
    copy = model.clone()
    for op in copy.get_ordered_ops():
        if op.get_friendly_name() in names:
            _without_rounding(op)
    copy.validate_nodes_and_infer_types()
    return copy


def store_int8(model: Any) -> Any:
    """The same model with its weights as int8 constants: a quarter of the size."""
    import_silently("openvino")
    transformations = import_silently("openvino._offline_transformations")
    copy = model.clone()
    transformations.compress_quantize_weights_transformation(copy)
    return copy


def compiled(model: Any, hint: str = "f32") -> Forward:
    """The model ready to run on this CPU. OpenVINO computes in bf16 where it can, unless it is told."""
    core = import_silently("openvino").Core()
    ready = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": hint})

    def forward(images: NDArray[np.float32]) -> NDArray[np.float32]:
        outputs: NDArray[np.float32] = ready(images)[0]
        return outputs

    return forward


def _products_without_weights(model: Any) -> list[str]:
    """The names of those products whose inputs are both computed. Tokens that are compared and merged are such
    (`token_merging.py`): 8 bits would take other pairs, and round the tokens that are only handed on."""
    return [
        op.get_friendly_name()
        for op in model.get_ordered_ops()
        if op.get_type_name() == "MatMul" and not any(_is_constant(source) for source in op.inputs())
    ]


def _is_constant(source: Any) -> bool:
    return bool(source.get_source_output().get_node().get_type_name() == "Constant")


def _free_attention(model: Any) -> None:
    """Queries, keys and values are not rounded: the CPU has no attention in int8, so it would cost time and answers."""
    for op in model.get_ordered_ops():
        if op.get_type_name() == ATTENTION:
            _without_rounding(op)
    model.validate_nodes_and_infer_types()


def _is_quantized(op: Any) -> bool:
    return op.get_type_name() in LAYERS and any(_is_rounded(source) for source in op.inputs())


def _is_rounded(source: Any) -> bool:
    return bool(source.get_source_output().get_node().get_type_name() == ROUNDING)


def _without_rounding(op: Any) -> None:
    """Each input is taken from before its FakeQuantize, which others may go on using."""
    for source in op.inputs():
        if _is_rounded(source):
            source.replace_source_output(source.get_source_output().get_node().input_value(0))


@contextlib.contextmanager
def _without_progress_bars() -> Iterator[None]:
    """NNCF draws its own through rich, to where our answers go."""
    console = import_silently("rich").get_console()
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before
