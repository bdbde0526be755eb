"""int8 of a checkpoint: searched, judged by its task's metric, and refused with the figures where it loses too much."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vitrail.errors import VitrailError
from vitrail.graphs import quantize, quantize_onnx
from vitrail.graphs.quantize_search import Int8Choice, Int8Graph, make_int8, search_int8
from vitrail.inference.calibration.answer_loss import ENOUGH, AnswerJudge, AnswerLoss, NormalisedImages
from vitrail.inference.calibration.calibration_file import MOST
from vitrail.inference.calibration.calibration_images import CalibrationImages
from vitrail.text import counted
from vitrail.weights.checkpoint import Checkpoint

ALLOWED_DROP = 0.5  # points of the task's metric


def quantized_model(
    checkpoint: Checkpoint,
    model: Any,
    calibration: CalibrationImages,
    allowed_drop: float = ALLOWED_DROP,
    hint: str = "f32",
) -> tuple[Any, dict[str, Any]]:
    """The int8 model, and the record of what was chosen and what it loses, fit for JSON.

    The choice is made on two thirds of the pictures and judged on the others; the model is then calibrated on all, or
    of more than 300 on those of the choice.
    model: the checkpoint's network as an `openvino.Model` or an `onnx.ModelProto` (`graphs/`), of a free batch or of
    one; it is kept as it is. allowed_drop: points that it may lose; VitrailError above. hint: what runs between int8
    layers, f32 or, with OpenVINO, bf16.
    """
    graphs = graphs_of(model)
    fitted, held_out = calibration.split()
    judge = AnswerJudge(checkpoint, held_out, ENOUGH)
    choice = search_int8(
        graphs, model, NormalisedImages(fitted.images, checkpoint.preprocessing), judge, allowed_drop, hint
    )
    check_loss(choice, allowed_drop)
    final = calibration if len(calibration.images) <= MOST else fitted
    int8 = make_int8(graphs, model, NormalisedImages(final.images, checkpoint.preprocessing), choice)
    measured = judge(graphs.compiled(int8, hint))  # it has seen these pictures: no praise, but a surprise counts
    choice = replace(choice, loss=max(choice.loss, measured, key=lambda loss: loss.points))
    check_loss(choice, allowed_drop)
    return int8, record_of(choice, final) | {"between": hint}


def graphs_of(model: Any) -> Int8Graph:
    """What quantises an `onnx.ModelProto`, or an `openvino.Model`."""
    return quantize_onnx if type(model).__name__ == "ModelProto" else quantize


def check_loss(choice: Int8Choice, allowed_drop: float) -> None:
    """VitrailError with the figures where it loses more than so many points."""
    if choice.loss.points > allowed_drop:
        raise VitrailError(f"int8 is refused: {in_words(choice)}, {allowed_drop:g} are allowed; use bf16 or fp32")


def record_of(choice: Int8Choice, calibration: CalibrationImages) -> dict[str, Any]:
    """What a file, a cache and `vitrail info` say about it."""
    return {
        "smooth_quant_alpha": choice.alpha,
        "layers": choice.layers,
        "layers_in_float": list(choice.titles),
        "loss": _loss(choice.loss),
        "tried": {_alpha(alpha): _loss(loss) for alpha, loss in choice.tried.items()},
        "calibration": calibration.source,
        "images": len(calibration.images),
        "held_out": len(choice.loss.each),  # that the loss is of
    }


def in_words(choice: Int8Choice) -> str:
    """One line on a choice: what it loses, and how it was made."""
    loss: AnswerLoss = choice.loss
    agreement = "" if loss.agreement is None else f", {loss.agreement.in_words()}"
    kept = f"{len(choice.in_float)} of {counted(choice.layers, 'layer')} in float"
    made = f"SmoothQuant {_alpha(choice.alpha)}, {kept}"
    pictures = counted(len(loss.each), "picture")
    return f"it loses {loss.points:.2f} points of {loss.metric} on {pictures}{agreement} ({made})"


def _loss(loss: AnswerLoss) -> dict[str, Any]:
    same = loss.agreement
    return {
        "metric": loss.metric,
        "points": loss.points,
        "distance": loss.distance,
        "agreement": None if same is None else same.share,
        "largest_probability_difference": same.largest if same is not None and same.of == "probability" else None,
    }


def _alpha(alpha: float | None) -> str:
    return "off" if alpha is None else f"{alpha:g}"
