"""One number for every pixel, its depth: L1 of the log depth, AbsRel, the share within 1.25, 16-bit PNGs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitrail.dataset import Item
from vitrail.errors import VitrailError
from vitrail.tasks.agreement import Agreement, largest_difference, same_numbers
from vitrail.tasks.dense_task import DenseTask
from vitrail.tasks.depth.depth_colours import colour_depth
from vitrail.tasks.depth.depth_maps import DepthFile
from vitrail.tasks.depth.depth_metrics import KEPT, QUARTILES, DepthMetrics, compare_depth, depth_words
from vitrail.tasks.depth.depth_report import depth_report
from vitrail.tasks.depth.depth_targets import NEAREST, DepthSums, DepthTargets, depth_sums
from vitrail.tasks.letterbox import Letterbox
from vitrail.tasks.report_part import MeasuredImages, ReportPart
from vitrail.tasks.shared.aligning import aligned, compared_share
from vitrail.tasks.shared.answer_schemas import NUMBER, PNG, TEXT, list_of, object_of
from vitrail.tasks.shared.intervals import Groups, measure
from vitrail.tasks.shared.metric_words import MetricWords
from vitrail.tasks.task import Mix

LARGEST = 65535  # of a 16-bit PNG
SAME = 1.01  # the factor within which two engines see the same depth


class Depth(DenseTask):
    """Targets are depths (B, H, W), 0 where unknown; outputs (B, 1, h', w') are standardised log depths."""

    name = "depth"
    title = "depth"
    answer_schema = object_of(
        nearest=NUMBER,
        quartiles=list_of(NUMBER, minItems=3, maxItems=3),
        farthest=NUMBER,
        unit=TEXT,
        png_scale=NUMBER,
        depth_png=PNG,
    )
    main_metric = "within_1.25"
    quick_names = ("within_1.25", "MAE", "AbsRel")
    percentages = frozenset({"within_1.25", "within_1.25^2", "within_1.25^3"})
    metric_words: ClassVar[dict[str, MetricWords]] = {
        "within_1.25": MetricWords("Within 1.25", "how many pixels are right within a factor of 1.25"),
        "within_1.25^2": MetricWords("Within 1.56", "how many pixels are right within a factor of 1.25 squared"),
        "within_1.25^3": MetricWords("Within 1.95", "how many pixels are right within a factor of 1.25 cubed"),
        "MAE": MetricWords("MAE", "mean absolute error: how far off a pixel is on average"),
        "RMSE": MetricWords("RMSE", "root of the mean squared error: like MAE, but large errors weigh more"),
        "AbsRel": MetricWords("AbsRel", "the error of a pixel as a share of its depth, on average"),
        "SILog": MetricWords("SILog", "the spread of the log error: what is left when all depths may be scaled alike"),
        "MAE_of_the_mean": MetricWords("MAE of the mean", "the MAE of always answering the training mean"),
    }
    sliding_windows = True
    photo_batch = 8  # every pixel is an example
    short_run_batch = 16
    heads = ("mask_decoder", "mask_linear")
    graph_words: ClassVar[dict[str, str]] = {
        "depth": "(B, h, w) the depth at each pixel of the input, in the label's unit"
    }

    def __init__(self, labels: Sequence[str], class_weights: str = "none") -> None:
        super().__init__(labels, class_weights)
        if class_weights != "none":
            raise VitrailError(f"class_weights is {class_weights!r}, but depth has no classes: set it to none")
        if len(self.labels) != 1:
            raise VitrailError(f"a depth map holds one number a pixel, not {len(self.labels)}")
        self.mean, self.most = 1.0, 1.0  # of the training depths
        self.log_mean, self.log_std = 0.0, 1.0

    @property
    def unit(self) -> str:
        """'m' of the label 'depth (m)'."""
        return self.labels[0].rpartition("(")[2].removesuffix(")") if self.labels[0].endswith(")") else ""

    @property
    def png_scale(self) -> float:
        """The depth of a value of 1 in 16-bit PNGs: a power of ten with room for twice the largest training depth."""
        return 10.0 ** math.ceil(math.log10(2 * self.most / LARGEST))

    # ---- training

    def targets(self, items: Sequence[Item], shape: tuple[int, int], gigabytes: float, workers: int) -> DepthTargets:
        maps = [item.target for item in items if isinstance(item.target, DepthFile)]
        return DepthTargets(maps, shape, gigabytes, workers)

    def statistics(self, target: Tensor) -> DepthSums:
        return depth_sums(target.numpy())

    def fit_statistics(self, statistics: Iterable[DepthSums]) -> None:
        """Mean, largest depth, and mean and spread of the log depth over training maps."""
        parts = [part for part in statistics if part.pixels]
        if not parts:
            raise VitrailError("no training depth map has a known pixel: give maps with depths above 0")
        count = sum(part.pixels for part in parts)
        log_mean = sum(part.log_total for part in parts) / count
        variance = max(0.0, sum(part.log_squared for part in parts) / count - log_mean**2)
        self.load_state_dict(
            {
                "mean": sum(part.total for part in parts) / count,
                "most": max(part.largest for part in parts),
                "log_mean": log_mean,
                "log_std": math.sqrt(variance) if variance > 1e-12 else 1.0,
            }
        )

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "most": self.most, "log_mean": self.log_mean, "log_std": self.log_std}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mean, self.most = float(state.get("mean", 1.0)), float(state.get("most", 1.0))
        self.log_mean, self.log_std = float(state.get("log_mean", 0.0)), float(state.get("log_std", 1.0))

    def loss_counts(self, targets: Tensor) -> Tensor:
        """(1,) the known pixels."""
        return (targets > 0).sum()[None]

    def loss_share(
        self, outputs: Tensor, targets: Tensor, counts: Tensor, *, mix: Mix | None = None, smoothing: float = 0.0
    ) -> Tensor:
        """L1 between standardised log depths, averaged over the known pixels of the step; 0 without one.

        In the log an error of a tenth counts the same near and far, and L1 does not let a few pixels at the edge of an
        object rule the rest. Of large targets a quarter of the pixels is compared (shared/aligning.py).
        """
        self.check_mix(mix)
        predicted, truth = aligned(outputs.float(), targets)
        known = truth > 0
        target = (truth.clamp(min=NEAREST * self.most).log() - self.log_mean) / self.log_std
        error = (predicted[:, 0] - target).abs() * known
        return error.sum() / (counts[0] * compared_share(truth, targets)).clamp(min=1)

    # ---- answers in the picture's own pixels

    def decode(self, outputs: Tensor, frames: Sequence[Letterbox]) -> list[Tensor]:
        """(B, 1, h', w') -> float32 (H, W) each: depths in the unit, at the picture's own size."""
        outputs = outputs.detach().float().cpu()
        self.check_finite(outputs)
        log = [sample_at_pixels(one, frame)[0] for one, frame in zip(outputs, frames, strict=True)]
        return [(self.log_mean + self.log_std * one).exp() for one in log]

    def graph_outputs(self, outputs: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
        log = F.interpolate(outputs, size, mode="bilinear", align_corners=False)[:, 0]
        return {"depth": (self.log_mean + self.log_std * log).exp()}

    def answer(self, decoded: Sequence[Tensor], top: int = 5) -> list[dict[str, Any]]:
        """Quartiles of the depth, the nearest and the farthest pixel, and the map itself."""
        return [self._describe(depth) for depth in decoded]

    def same_answers(self, reference: Sequence[Tensor], others: Sequence[Tensor]) -> Agreement:
        """Depths within 1 %, pixel by pixel."""
        expected, given = ([depth.double().log() for depth in depths] for depths in (reference, others))
        same, compared = same_numbers(expected, given, math.log(SAME))
        return Agreement(same, compared, "pixels", math.expm1(largest_difference(expected, given)), "depth's ratio")

    def _describe(self, depth: Tensor) -> dict[str, Any]:
        values = depth.cpu().numpy()
        low, median, high = np.quantile(values, QUARTILES).tolist()
        return {
            "nearest": float(values.min()),
            "quartiles": [low, median, high],
            "farthest": float(values.max()),
            "unit": self.unit,
            "png_scale": self.png_scale,
            "depth": values,
        }

    def words(self, answer: Mapping[str, Any]) -> str:
        unit = f" {answer['unit']}" if answer["unit"] else ""
        return f"depth {depth_words(answer['quartiles'], self.unit)} (nearest {answer['nearest']:.3g}{unit})"

    def columns(self, top: int = 5) -> list[str]:
        return ["nearest", "lower_quartile", "median", "upper_quartile", "farthest"]

    def row(self, answer: Mapping[str, Any]) -> dict[str, str | float]:
        values = [answer["nearest"], *answer["quartiles"], answer["farthest"]]
        return dict(zip(self.columns(), values, strict=True))

    # ---- what `vitrail predict --out` writes

    def pictures(self, answer: Mapping[str, Any], image: np.ndarray) -> dict[str, Image.Image]:
        """A 16-bit PNG of the depths over `png_scale`, and a picture in colours, near ones light."""
        levels = self.png_arrays(answer)["depth"]
        return {".png": Image.fromarray(levels), ".colour.jpg": Image.fromarray(colour_depth(answer["depth"]))}

    def png_arrays(self, answer: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """uint16: the depths over `png_scale`."""
        return {"depth": np.clip(np.rint(answer["depth"] / self.png_scale), 1, LARGEST).astype(np.uint16)}

    def record(self, answer: Mapping[str, Any], name: str, size: tuple[int, ...]) -> dict[str, Any]:
        return {"file": name, "height": size[0], "width": size[1], **self.row(answer)}

    def files(self, records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """depth.json: what a value of the PNGs means, and each image's range."""
        content = {"scale": self.png_scale, "unit": self.unit, "images": list(records)}
        return {"depth.json": json.dumps(content, indent=2) + "\n"}

    def report(self, results: Mapping[str, Any], images: MeasuredImages) -> ReportPart:
        return depth_report(results, images, self.unit)

    # ---- measuring

    def compare(self, decoded: Tensor, truth: Tensor) -> Tensor:
        self.check_size(decoded, truth, "depth map")
        return compare_depth(decoded.cpu(), truth.cpu(), self.mean)

    def quick_metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        return self.quick_values(self._depth_metrics(outputs).metrics, len(outputs))

    def judged_by(self, metrics: Mapping[str, float]) -> tuple[str, float]:
        """AbsRel: a factor of 1.25 is too wide for what engines differ by."""
        return "AbsRel", 1 - metrics["AbsRel"]

    def evaluate(
        self, outputs: Tensor, targets: Tensor, *, bootstrap: int = 1000, seed: int = 0, groups: Groups | None = None
    ) -> dict[str, Any]:
        """`outputs`: a row of `compare` for each image."""
        depth_metrics = self._depth_metrics(outputs)
        measured = measure(depth_metrics.metrics, len(outputs), bootstrap, seed, groups)
        results = self.overall(len(outputs), *measured, groups)
        per_label = depth_metrics.per_label(self.labels[0], results["metrics"])
        known = depth_metrics.sums["known"].any()
        notes = [] if known else ["no pixel of these depth maps is known: the scores of 0 say nothing"]
        return results | {"per_label": per_label, "worst": depth_metrics.worst(self.unit), "notes": notes}

    def _depth_metrics(self, rows: Tensor) -> DepthMetrics:
        """rows (M, KEPT): what `compare` gave for each image."""
        return DepthMetrics(self.comparisons(rows, KEPT, "depth map"))


def sample_at_pixels(maps: Tensor, frame: Letterbox) -> Tensor:
    """(K, h', w') over the model's input -> (K, H, W) at the picture's own pixels, bilinear."""
    top, left, bottom, right = frame.inside
    rows, columns = (
        2 * (begin + (torch.arange(count) + 0.5) * (end - begin) / count) / size - 1
        for begin, end, count, size in (
            (top, bottom, frame.own[0], frame.input[0]),
            (left, right, frame.own[1], frame.input[1]),
        )
    )
    grid = torch.stack([columns.expand(len(rows), -1), rows[:, None].expand(-1, len(columns))], dim=-1)
    return F.grid_sample(maps[None], grid[None], mode="bilinear", padding_mode="border", align_corners=False)[0]
