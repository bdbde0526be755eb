"""int8 that loses as little as possible: SmoothQuant's alpha by measurement, then the worst layers back in float."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vitrail.graphs.no_telemetry import import_silently
from vitrail.graphs.quantize import layer_titles, layers_in_float, quantize, quantized_layers, store_int8

ALPHAS = (None, 0.15, 0.5, 0.95)  # NNCF's default is the last; it costs Swin-B 1.7 points, None 0.1
RANKED_BY = 32  # images, those that int8 changes most, that a layer's share of the loss is measured on
MOST_IN_FLOAT = 0.25  # of the layers: with more of them there is little left of the speed

Forward = Callable[[NDArray[np.float32]], NDArray[np.float32]]


class Loss(Protocol):
    """What a quantised model loses against float32."""

    points: float  # of the task's metric, in per cent; below 0 where it gains
    distance: float  # between the outputs: finer than points, which few images make coarse
    each: NDArray[np.float64]  # (N,) the distance of each image


class Judge(Protocol):
    """Measures a model on the calibration images."""

    def __call__(self, forward: Forward) -> Any:
        """Its `Loss`."""
        ...

    def distance(self, forward: Forward, indices: Sequence[int]) -> float:
        """The mean distance on some of the images."""
        ...


@dataclass(frozen=True)
class Int8Choice:
    """How a model becomes int8, and what it loses by it."""

    alpha: float | None
    in_float: tuple[str, ...]  # names of the layers that stay in higher precision
    titles: tuple[str, ...]  # what people may call them
    layers: int  # that could be in int8
    loss: Any  # of images that it was not calibrated on
    tried: dict[float | None, Any]  # the loss of each alpha, before layers went back


def search_int8(
    model: Any, images: Sequence[NDArray[np.float32]], judge: Judge, allowed: float, hint: str = "f32"
) -> Int8Choice:
    """The alpha, and the layers in float, that come nearest to float32.

    model: of a free batch, or of one. images: normalised (1, C, h, w) each, to calibrate on. judge: by other images,
    for SmoothQuant fits those that it has seen. allowed: points; layers go back to float only where the loss is above.
    hint: what runs between int8 layers, f32 or bf16.
    """
    tried, models = {}, {}
    for alpha in ALPHAS:
        models[alpha] = quantize(model, images, alpha)
        tried[alpha] = judge(compiled(models[alpha], hint))
    best = min(ALPHAS, key=lambda alpha: (tried[alpha].points > allowed, tried[alpha].distance))
    loss = tried[best]
    in_float: tuple[str, ...] = ()
    layers = len(quantized_layers(models[best]))
    if loss.points > allowed:
        in_float, loss = _restore_layers(models[best], loss, judge, allowed, hint)
    titles = layer_titles(model)
    return Int8Choice(best, in_float, tuple(titles[name] for name in in_float), layers, loss, tried)


def make_int8(model: Any, images: Sequence[NDArray[np.float32]], choice: Int8Choice) -> Any:
    """The `openvino.Model` of a choice, calibrated on all these images, its weights stored in int8."""
    return store_int8(layers_in_float(quantize(model, images, choice.alpha), choice.in_float))


def compiled(model: Any, hint: str = "f32") -> Forward:
    """The model ready to run on this CPU. OpenVINO computes in bf16 where it can, unless it is told."""
    core = import_silently("openvino").Core()
    ready = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": hint})

    def forward(images: NDArray[np.float32]) -> NDArray[np.float32]:
        outputs: NDArray[np.float32] = ready(images)[0]
        return outputs

    return forward


def _restore_layers(quantized: Any, loss: Any, judge: Judge, allowed: float, hint: str) -> tuple[tuple[str, ...], Any]:
    """The worst layers back to float, one more at a time, until the loss is allowed or too few are left in int8: the
    names of those with which it was least, and the loss."""
    ranked = rank_layers(quantized, judge, loss, hint)
    best: tuple[tuple[str, ...], Any] = ((), loss)
    for count in range(1, int(MOST_IN_FLOAT * len(ranked)) + 1):
        names = tuple(ranked[:count])
        measured = judge(compiled(layers_in_float(quantized, names), hint))
        if measured.points < best[1].points:
            best = names, measured
        if measured.points <= allowed:
            break
    return best


def rank_layers(quantized: Any, judge: Judge, loss: Any, hint: str = "f32") -> list[str]:
    """The names of the int8 layers, first the one whose return to float brings the outputs nearest to float32."""
    worst = np.argsort(-loss.each, kind="stable")[:RANKED_BY].tolist()
    distance = {
        name: judge.distance(compiled(layers_in_float(quantized, [name]), hint), worst)
        for name in quantized_layers(quantized)
    }
    return sorted(distance, key=lambda name: distance[name])
