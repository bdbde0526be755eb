"""int8 that loses as little as possible: SmoothQuant's alpha by measurement, then the worst layers back in float.

NNCF has a loop of its own for the second step (`quantize_with_accuracy_control`). It gives a layer its first weights
back, while SmoothQuant's scale stays before the layer (3.4, `quantizer_removal.py`): with SmoothQuant that is another
network. Ours takes the rounding away and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vitrail.graphs.graph_file import Forward

ALPHAS = (None, 0.15, 0.5, 0.95)  # NNCF's default is the last; it costs Swin-B 1.7 points, None 0.1
RANKED_BY = 32  # images, those that int8 changes most, that a layer's share of the loss is measured on
MOST_IN_FLOAT = 0.25  # of the layers: with more of them there is little left of the speed


class Int8Graph(Protocol):
    """The module `quantize`, for OpenVINO, or `quantize_onnx`."""

    def quantize(self, model: Any, images: Sequence[NDArray[np.float32]], alpha: float | None) -> Any: ...
    def layer_titles(self, model: Any) -> dict[str, str]: ...
    def quantized_layers(self, model: Any) -> list[str]: ...
    def layers_in_float(self, model: Any, names: Collection[str]) -> Any: ...
    def store_int8(self, model: Any) -> Any: ...
    def compiled(self, model: Any, hint: str = "f32") -> Forward: ...


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
    graphs: Int8Graph,
    model: Any,
    images: Sequence[NDArray[np.float32]],
    judge: Judge,
    allowed: float,
    hint: str = "f32",
) -> Int8Choice:
    """The alpha, and the layers in float, that come nearest to float32.

    model: of a free batch, or of one. images: normalised (1, C, h, w) each, to calibrate on. judge: by other images,
    for SmoothQuant fits those that it has seen. allowed: points; layers go back to float only where the loss is above.
    hint: what runs between int8 layers, f32 or bf16.
    """
    tried: dict[float | None, Any] = {}
    best, quantized = None, None

    def rank(alpha: float | None) -> tuple[bool, float]:
        return tried[alpha].points > allowed, tried[alpha].distance

    for alpha in ALPHAS:  # one model is kept at a time: it holds all weights
        candidate = graphs.quantize(model, images, alpha)
        tried[alpha] = judge(graphs.compiled(candidate, hint))
        if quantized is None or rank(alpha) < rank(best):
            best, quantized = alpha, candidate
    loss = tried[best]
    in_float: tuple[str, ...] = ()
    layers = len(graphs.quantized_layers(quantized))
    if loss.points > allowed:
        in_float, loss = LayerRestoring(graphs, quantized, judge, hint).until(allowed, loss)
    titles = graphs.layer_titles(model)
    return Int8Choice(best, in_float, tuple(titles[name] for name in in_float), layers, loss, tried)


def make_int8(graphs: Int8Graph, model: Any, images: Sequence[NDArray[np.float32]], choice: Int8Choice) -> Any:
    """The model of a choice, calibrated on all these images, its weights stored in int8."""
    quantized = graphs.quantize(model, images, choice.alpha)
    return graphs.store_int8(graphs.layers_in_float(quantized, choice.in_float))


@dataclass(frozen=True)
class LayerRestoring:
    """Brings the worst layers of a quantised model back to float."""

    graphs: Int8Graph
    quantized: Any
    judge: Judge
    hint: str = "f32"

    def until(self, allowed: float, loss: Any) -> tuple[tuple[str, ...], Any]:
        """One more layer at a time, until the loss is allowed or too few are left in int8: the names of those with
        which it was least, and the loss. loss: with all layers in int8."""
        ranked = self.ranked(loss)
        best: tuple[tuple[str, ...], Any] = ((), loss)
        for count in range(1, int(MOST_IN_FLOAT * len(ranked)) + 1):
            names = tuple(ranked[:count])
            measured = self.judge(self._forward(names))
            if measured.points < best[1].points:
                best = names, measured
            if measured.points <= allowed:
                break
        return best

    def ranked(self, loss: Any) -> list[str]:
        """The names of the int8 layers, first the one whose return to float brings the outputs nearest to float32."""
        worst = np.argsort(-loss.each, kind="stable")[:RANKED_BY].tolist()
        names = self.graphs.quantized_layers(self.quantized)
        distance = {name: self.judge.distance(self._forward([name]), worst) for name in names}
        return sorted(names, key=lambda name: distance[name])

    def _forward(self, in_float: Collection[str]) -> Forward:
        return self.graphs.compiled(self.graphs.layers_in_float(self.quantized, in_float), self.hint)
