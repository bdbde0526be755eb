"""A class for every pixel: cross-entropy and dice, mean IoU, masks and areas as answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitrail.dataset import Item
from vitrail.errors import VitrailError
from vitrail.tasks.agreement import Agreement, same_numbers
from vitrail.tasks.dense_options import IGNORE
from vitrail.tasks.dense_task import DenseTask
from vitrail.tasks.letterbox import Letterbox
from vitrail.tasks.report_part import MeasuredImages, ReportPart
from vitrail.tasks.segment.boundaries import COUNTS, boundary_counts
from vitrail.tasks.segment.dice import dice_loss
from vitrail.tasks.segment.mask_files import Mask
from vitrail.tasks.segment.mask_metrics import MaskMetrics, named
from vitrail.tasks.segment.mask_report import mask_report
from vitrail.tasks.segment.mask_targets import MaskTargets
from vitrail.tasks.shared.aligning import aligned, compared_share
from vitrail.tasks.shared.answer_schemas import PNG, PROBABILITY, TEXT, WHOLE_NUMBER, list_of, object_of
from vitrail.tasks.shared.entropy import entropy
from vitrail.tasks.shared.intervals import Groups, measure
from vitrail.tasks.shared.labels.labelling import CLASS_WEIGHTS
from vitrail.tasks.shared.metric_words import MetricWords
from vitrail.tasks.shared.resampling import classes_at
from vitrail.tasks.task import Mix
from vitrail.visuals.palette import hexadecimal, index_picture, overlay, palette


class Segment(DenseTask):
    """Targets are class numbers (B, H, W), 255 where nothing is known; outputs are logits (B, K, h', w')."""

    name = "segment"
    title = "segmentation"
    answer_schema = object_of(
        areas=list_of(object_of(label=TEXT, share=PROBABILITY, pixels=WHOLE_NUMBER)), mask_png=PNG
    )
    main_metric = "mIoU"
    quick_names = ("mIoU", "pixel_accuracy", "boundary_f1")
    percentages = frozenset({"pixel_accuracy"})
    sliding_windows = True
    unknown = IGNORE
    photo_batch = 8  # every pixel is an example
    metric_words: ClassVar[dict[str, MetricWords]] = {
        "mIoU": MetricWords(
            "Mean IoU",
            "of the pixels that are of a class or were answered to be, how many are both; the mean over classes",
        ),
        "pixel_accuracy": MetricWords(
            "Pixel accuracy", "how many of all pixels were given the right class; large areas decide it"
        ),
        "boundary_f1": MetricWords("Boundary F1", "how well outlines are met, within a small tolerance"),
    }
    heads = ("mask_decoder", "mask_linear", "mask_queries")
    graph_words: ClassVar[dict[str, str]] = {
        "mask": "(B, h, w) uint8, the number of the best label at each pixel of the input",
        "logits": "(B, labels, h', w') before that, at the head's own resolution",
    }

    def __init__(self, labels: Sequence[str], class_weights: str = "none") -> None:
        super().__init__(labels, class_weights)
        if len(self.labels) > IGNORE:
            raise VitrailError(f"a mask has at most {IGNORE} classes, not {len(self.labels)}: leave some out")
        if class_weights not in CLASS_WEIGHTS:
            raise VitrailError(f"class_weights is {class_weights!r}; choose one of {', '.join(CLASS_WEIGHTS)}")
        self.pixels: list[int] = []  # of each class in training
        self.weights = torch.ones(self.outputs)

    # ---- training

    def targets(self, items: Sequence[Item], shape: tuple[int, int], gigabytes: float, workers: int) -> MaskTargets:
        return MaskTargets([item.target for item in items if isinstance(item.target, Mask)], shape, gigabytes, workers)

    def renumber(self, target: Tensor, numbers: Tensor) -> Tensor:
        return numbers[target.long()].to(target.dtype)

    def statistics(self, target: Tensor) -> Tensor:
        """(256,) the pixels of each class in one mask."""
        return torch.from_numpy(np.bincount(target.numpy().ravel(), minlength=256))

    def fit_statistics(self, statistics: Iterable[Tensor]) -> None:
        """Sum the pixels of each class over masks of training images."""
        pixels = sum(statistics, start=torch.zeros(256, dtype=torch.int64))
        self._check_classes(pixels)
        self.load_state_dict({"pixels": pixels[: self.outputs].tolist()})

    def _check_classes(self, pixels: Tensor) -> None:
        unknown = [int(k) for k in pixels.nonzero().flatten() if self.outputs <= k != IGNORE]
        if unknown:
            raise VitrailError(
                f"a mask has the class number {unknown[0]}, {self.outputs} labels have 0 to {self.outputs - 1}, "
                f"and {IGNORE} stands for unknown"
            )

    def state_dict(self) -> dict[str, Any]:
        return {"pixels": list(self.pixels)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pixels = list(state.get("pixels", ()))
        if pixels and len(pixels) != self.outputs:
            raise VitrailError(f"the saved state counts {len(pixels)} labels, this task has {self.outputs}")
        self.pixels = pixels
        if pixels and self.class_weights != "none":
            counts = torch.tensor(pixels, dtype=torch.float64)
            rarity = counts.clamp(min=1) ** (-1.0 if self.class_weights == "inverse" else -0.5)
            # scaled so that a training pixel weighs 1 on average: the learning rate stays right
            self.weights = (rarity * counts.sum() / (rarity * counts).sum().clamp(min=1e-9)).float()

    def loss_counts(self, targets: Tensor) -> Tensor:
        """(K,) the known pixels of each class."""
        return torch.bincount(targets.flatten(), minlength=IGNORE + 1)[: self.outputs]

    def loss_share(
        self, outputs: Tensor, targets: Tensor, counts: Tensor, *, mix: Mix | None = None, smoothing: float = 0.0
    ) -> Tensor:
        """Cross-entropy, weighted and smoothed, averaged over the known pixels of the step, plus dice over the classes
        that occur in it.

        Of large targets a quarter of the pixels is compared (tasks/aligning.py). Without a known pixel both are 0, and
        so is their gradient.
        """
        self.check_mix(mix)
        if self.class_weights != "none" and not self.pixels:
            raise RuntimeError("class weights come from the training masks: call fit(masks) before loss")
        logits, compared = aligned(outputs.float(), targets)
        pixels = counts * compared_share(compared, targets)  # (K,)
        known = compared != IGNORE
        truth = torch.where(known, compared, 0)
        log_p = torch.log_softmax(logits, 1)  # (B, K, H, W)
        nll = -log_p.gather(1, truth[:, None])[:, 0]  # (B, H, W)
        if smoothing:
            nll = (1 - smoothing) * nll - smoothing * log_p.mean(1)
        weight = known.to(logits.dtype)
        if self.class_weights != "none":
            weight = weight * self.weights.to(logits.device)[truth]
        cross_entropy = (nll * weight).sum() / pixels.sum().clamp(min=1)
        return cross_entropy + dice_loss(log_p.exp(), truth, known, pixels)

    # ---- answers

    def decode(self, outputs: Tensor, frames: Sequence[Letterbox]) -> list[Tensor]:
        """(B, K, h', w') -> uint8 (H, W) each, at the picture's own size."""
        self.check_finite(outputs)
        return [classes_at(logits, frame) for logits, frame in zip(outputs, frames, strict=True)]

    def uncertainty(self, outputs: Tensor) -> Tensor:
        """The mean over pixels."""
        return entropy(outputs.float().softmax(1), 1).flatten(1).mean(1).double()

    def expected_score(self, reference: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
        """mIoU over the classes that the reference answers somewhere: a pixel is of a class as much as the reference's
        probability says. At the head's own resolution."""
        hits, answered, true = (torch.zeros(self.outputs, dtype=torch.float64) for _ in range(3))
        first = torch.zeros(self.outputs, dtype=torch.bool)
        for one, other in zip(reference, outputs, strict=True):
            wanted = one.double().softmax(1).movedim(1, -1).flatten(0, -2)  # (pixels, K)
            answers = other.argmax(1).flatten()
            hits.index_add_(0, answers, wanted.gather(1, answers[:, None])[:, 0])
            answered += torch.bincount(answers, minlength=self.outputs)
            true += wanted.sum(0)
            first[wanted.argmax(1)] = True
        return float((hits / (true + answered - hits))[first].mean())

    def graph_outputs(self, outputs: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
        at_pixels = F.interpolate(outputs, size, mode="bilinear", align_corners=False)
        return {"mask": at_pixels.argmax(1).to(torch.uint8), "logits": outputs}

    def answer(self, decoded: Sequence[Tensor], top: int = 5) -> list[dict[str, Any]]:
        """The areas of all classes that were found, the largest first, and the mask itself."""
        return [{"areas": self.areas(mask), "mask": mask.cpu().numpy()} for mask in decoded]

    def same_answers(self, reference: Sequence[Tensor], others: Sequence[Tensor]) -> Agreement:
        """The class of each pixel of the pictures; beside it, the largest share of one picture that differs."""
        same, compared = same_numbers([mask.short() for mask in reference], [mask.short() for mask in others], 0)
        pairs = zip(reference, others, strict=True)
        largest = max((float((one != other).float().mean()) for one, other in pairs), default=0.0)
        return Agreement(same, compared, "pixels", largest, "picture's share of pixels")

    def areas(self, mask: Tensor) -> list[dict[str, Any]]:
        """Of the known pixels; shares are 0..1."""
        pixels = torch.bincount(mask.flatten().long(), minlength=256)[: self.outputs]
        total = max(1, int(pixels.sum()))
        order = torch.argsort(-pixels, stable=True).tolist()
        return [
            {"label": self.labels[k], "share": int(pixels[k]) / total, "pixels": int(pixels[k])}
            for k in order
            if pixels[k]
        ]

    def row(self, answer: Mapping[str, Any]) -> dict[str, str | float]:
        """The share of every class, 0 where it was not found: the same columns for every image."""
        shares = {area["label"]: area["share"] for area in answer["areas"]}
        return {label: shares.get(label, 0.0) for label in self.labels}

    def columns(self, top: int = 5) -> list[str]:
        return list(self.labels)

    def words(self, answer: Mapping[str, Any]) -> str:
        return named(answer["areas"])

    def pictures(self, answer: Mapping[str, Any], image: np.ndarray) -> dict[str, Image.Image]:
        mask = answer["mask"]
        return {
            ".png": index_picture(mask, self.labels),
            ".overlay.jpg": Image.fromarray(overlay(mask, image, self.labels)),
        }

    def record(self, answer: Mapping[str, Any], name: str, size: tuple[int, ...]) -> dict[str, Any]:
        return {"file": name, "height": size[0], "width": size[1], "areas": answer["areas"]}

    def files(self, records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """areas.json: the labels with their numbers in the masks, and each image's areas."""
        classes = [
            {"number": number, "label": label, "colour": hexadecimal(colour)}
            for number, (label, colour) in enumerate(zip(self.labels, palette(self.labels), strict=True))
        ]
        return {"areas.json": json.dumps({"classes": classes, "images": list(records)}, indent=2) + "\n"}

    def report(self, results: Mapping[str, Any], images: MeasuredImages) -> ReportPart:
        return mask_report(results, images, self.labels)

    # ---- measuring

    def compare(self, decoded: Tensor, truth: Tensor) -> Tensor:
        """(K K + 4 K,): pixels of class i (row) that the model gave class j, then counts of boundary pixels."""
        self.check_size(decoded, truth, "mask")
        classes = self.outputs
        truth = truth.cpu()
        self._check_classes(torch.bincount(truth.flatten().long(), minlength=256))
        known = truth != IGNORE
        cells = truth[known].long() * classes + decoded.cpu()[known].long()
        confusion = torch.bincount(cells, minlength=classes**2)
        boundary = boundary_counts(decoded.cpu().numpy(), truth.numpy(), classes, IGNORE)
        return torch.cat([confusion, torch.from_numpy(boundary).flatten()]).float()

    def quick_metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        return self.quick_values(self._mask_metrics(outputs).metrics, len(outputs))

    def evaluate(
        self, outputs: Tensor, targets: Tensor, *, bootstrap: int = 1000, seed: int = 0, groups: Groups | None = None
    ) -> dict[str, Any]:
        """`outputs`: a row of `compare` for each image."""
        mask_metrics = self._mask_metrics(outputs)
        measured = measure(mask_metrics.metrics, len(outputs), bootstrap, seed, groups)
        return {
            **self.overall(len(outputs), *measured, groups),
            "per_label": mask_metrics.per_label(self.labels, *measured),
            "worst": mask_metrics.worst(self.labels),
            "pixel_confusion": mask_metrics.confusion.sum(0, dtype=np.float64).astype(np.int64).tolist(),
            "confused_pairs": mask_metrics.confused_pairs(self.labels),
            "notes": mask_metrics.left_out(self.labels),
        }

    def _mask_metrics(self, rows: Tensor) -> MaskMetrics:
        """rows (M, K K + 4 K): what `compare` gave for each image."""
        return MaskMetrics(self.comparisons(rows, self.outputs * (self.outputs + COUNTS), "mask"), self.outputs)
