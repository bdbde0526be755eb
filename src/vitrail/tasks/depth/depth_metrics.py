"""What is measured of depth maps: MAE, RMSE, AbsRel, and the share of pixels within a factor of 1.25."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.tasks.shared.intervals import ratio
from vitrail.tasks.task import WORST

FACTOR = 1.25
# The numbers that are kept of an image: sums over its known pixels, then quartiles of the truth and of the answer.
SUMS = (
    "known",
    "absolute",
    "squared",
    "relative",
    "within_1",
    "within_2",
    "within_3",
    "log",
    "log_squared",
    "mean_absolute",
)
QUARTILES = (0.25, 0.5, 0.75)
KEPT = len(SUMS) + 2 * len(QUARTILES)
SAMPLE = 1 << 16  # pixels from which quartiles are taken


def compare_depth(answer: Tensor, truth: Tensor, mean: float) -> Tensor:
    """(KEPT,) of an answer and its truth (H, W); 0 in the truth is unknown. mean: what a constant answer would say."""
    known = truth > 0
    y, t = answer[known].double(), truth[known].double()
    if not len(t):
        return torch.zeros(KEPT)
    error, log_error = (y - t).abs(), (y / t).log()
    factor = log_error.abs().exp()
    sums = [
        torch.tensor(float(len(t))),
        error.sum(),
        error.square().sum(),
        (error / t).sum(),
        *((factor < FACTOR**power).sum() for power in (1, 2, 3)),
        log_error.sum(),
        log_error.square().sum(),
        (t - mean).abs().sum(),
    ]
    quartiles = [_quartiles(values) for values in (t, y)]
    return torch.cat([torch.stack([part.double() for part in sums]), *quartiles]).float()


def _quartiles(values: Tensor) -> Tensor:
    step = -(-len(values) // SAMPLE)
    return values[::step].quantile(torch.tensor(QUARTILES, dtype=values.dtype))


class DepthMetrics:
    """What is measured from the rows of `compare_depth` of M images."""

    def __init__(self, rows: np.ndarray) -> None:
        self.sums = dict(zip(SUMS, rows[:, : len(SUMS)].astype(np.float64).T, strict=True))  # (M,) each
        self.truth, self.answer = np.split(rows[:, len(SUMS) :], 2, axis=1)  # (M, 3) quartiles each

    def metrics(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Each (R,) for weights (M, R): the known pixels of all images are counted together."""
        total = {name: values @ weights for name, values in self.sums.items()}
        known = total["known"]
        log_error, log_squared = ratio(total["log"], known), ratio(total["log_squared"], known)
        return {
            "within_1.25": ratio(total["within_1"], known),
            "MAE": ratio(total["absolute"], known),
            "RMSE": np.sqrt(ratio(total["squared"], known)),
            "AbsRel": ratio(total["relative"], known),
            "SILog": np.sqrt(np.maximum(log_squared - log_error**2, 0)),
            "within_1.25^2": ratio(total["within_2"], known),
            "within_1.25^3": ratio(total["within_3"], known),
            "MAE_of_the_mean": ratio(total["mean_absolute"], known),
        }

    def worst(self, unit: str) -> list[dict[str, Any]]:
        """The images with the largest relative error."""
        error = ratio(self.sums["relative"], self.sums["known"])
        ranked = np.argsort(-error, kind="stable")
        order = [int(i) for i in ranked if self.sums["known"][i] and error[i] > 0][:WORST]
        within = ratio(self.sums["within_1"], self.sums["known"])
        return [
            {
                "index": i,
                "truth": depth_words(self.truth[i].tolist(), unit),
                "answer": depth_words(self.answer[i].tolist(), unit),
                "AbsRel": float(error[i]),
                "remark": f"AbsRel {error[i]:.3f}: {100 * within[i]:.0f} % of its pixels are within a factor of 1.25",
            }
            for i in order
        ]

    def per_label(self, label: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{"label": label, **{name: values[name] for name in ("MAE", "RMSE", "AbsRel", "within_1.25")}}]


def depth_words(quartiles: Sequence[float], unit: str) -> str:
    """'2.31 m, half of it 1.9 to 4 m'."""
    low, median, high = quartiles
    ending = f" {unit}" if unit else ""
    return f"{median:.3g}{ending}, half of it {low:.3g} to {high:.3g}{ending}"
