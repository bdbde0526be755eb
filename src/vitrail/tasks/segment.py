"""A class for every pixel: cross-entropy and dice, mean IoU, masks and areas as answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.tasks.aligning import aligned
from vitrail.tasks.boundaries import COUNTS, boundary_counts
from vitrail.tasks.dense import IGNORE, Dense
from vitrail.tasks.dice import dice_loss
from vitrail.tasks.frame import Frame
from vitrail.tasks.intervals import bootstrap as bootstrap_intervals
from vitrail.tasks.intervals import plain, ratio
from vitrail.tasks.labelling import CLASS_WEIGHTS
from vitrail.tasks.palette import hexadecimal, index_picture, overlay, palette
from vitrail.tasks.resampling import classes_at
from vitrail.tasks.task import WORST, Mix, NotFinite

NAMED = 4  # classes that one line for people names
PAIRS = 20  # most confused pairs to tell


class Segment(Dense):
    """Targets are class numbers (B, H, W), 255 where nothing is known; outputs are logits (B, K, h', w')."""

    name = "segment"
    main_metric = "mIoU"
    percentages = frozenset({"pixel_accuracy"})
    heads = ("mask_decoder", "mask_linear", "mask_queries")

    def __init__(self, labels: Sequence[str], class_weights: str = "none") -> None:
        super().__init__(labels)
        if len(self.labels) > IGNORE:
            raise VitrailError(f"a mask has at most {IGNORE} classes, not {len(self.labels)}: leave some out")
        if class_weights not in CLASS_WEIGHTS:
            raise VitrailError(f"class_weights is {class_weights!r}; choose one of {', '.join(CLASS_WEIGHTS)}")
        self.class_weights = class_weights
        self.pixels: list[int] = []  # of each class in training
        self.weights = torch.ones(self.outputs)

    # ---- training

    def fit(self, targets: Iterable[Tensor]) -> None:
        """Count the pixels of each class in masks of training images."""
        pixels = torch.zeros(256, dtype=torch.int64)
        for mask in targets:
            pixels += torch.bincount(mask.flatten().long(), minlength=256)
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

    def loss(self, outputs: Tensor, targets: Tensor, *, mix: Mix | None = None, smoothing: float = 0.0) -> Tensor:
        """Cross-entropy, weighted and smoothed, averaged over the known pixels, plus dice over the classes that occur.

        Of large targets a quarter of the pixels is compared (tasks/aligning.py). Without a known pixel both are 0, and
        so is their gradient.
        """
        self.check_mix(mix)
        if self.class_weights != "none" and not self.pixels:
            raise RuntimeError("class weights come from the training masks: call fit(masks) before loss")
        logits, targets = aligned(outputs.float(), targets)
        known = targets != IGNORE
        truth = torch.where(known, targets, 0)
        log_p = torch.log_softmax(logits, 1)  # (B, K, H, W)
        surprise = -log_p.gather(1, truth[:, None])[:, 0]  # (B, H, W)
        if smoothing:
            surprise = (1 - smoothing) * surprise - smoothing * log_p.mean(1)
        weight = known.to(logits.dtype)
        if self.class_weights != "none":
            weight = weight * self.weights.to(logits.device)[truth]
        cross_entropy = (surprise * weight).sum() / known.sum().clamp(min=1)
        return cross_entropy + dice_loss(log_p.exp(), truth, known)

    # ---- answers

    def decode(self, outputs: Tensor, frames: Sequence[Frame]) -> list[Tensor]:
        """(B, K, h', w') -> uint8 (H, W) each, at the picture's own size."""
        self._check_finite(outputs)
        return [classes_at(logits, frame) for logits, frame in zip(outputs, frames, strict=True)]

    def _check_finite(self, outputs: Tensor) -> None:
        finite = torch.isfinite(outputs.flatten(1)).all(1)
        if not finite.all():
            raise NotFinite(
                f"the model's outputs are not finite for {int((~finite).sum())} of {len(outputs)} images of a batch: "
                f"train it again with a lower learning rate, or load another model file"
            )

    def answer(self, decoded: Sequence[Tensor], top: int = 5) -> list[dict[str, Any]]:  # type: ignore[override]
        """The areas of all classes that were found, the largest first, and the mask itself."""
        return [{"areas": self.areas(mask), "mask": mask.cpu().numpy()} for mask in decoded]

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

    # ---- measuring

    def compare(self, decoded: Tensor, truth: Tensor) -> Tensor:
        """(K K + 4 K,): pixels of class i (row) that were told to be of class j, then counts of boundary pixels."""
        if decoded.shape != truth.shape:
            raise VitrailError(
                f"the answer has {decoded.shape[0]} x {decoded.shape[1]} pixels, the mask {truth.shape[0]} x "
                f"{truth.shape[1]}: give every image a mask of its own size"
            )
        classes = self.outputs
        truth = truth.cpu()
        self._check_classes(torch.bincount(truth.flatten().long(), minlength=256))
        known = truth != IGNORE
        cells = truth[known].long() * classes + decoded.cpu()[known].long()
        confusion = torch.bincount(cells, minlength=classes**2)
        boundary = boundary_counts(decoded.cpu().numpy(), truth.numpy(), classes, IGNORE)
        return torch.cat([confusion, torch.from_numpy(boundary).flatten()]).float()

    def quick_metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        values = plain(Told(self._kept(outputs), self.outputs).metrics, len(outputs))
        return {name: values[name] for name in ("mIoU", "pixel_accuracy", "boundary_f1")}

    def evaluate(self, outputs: Tensor, targets: Tensor, *, bootstrap: int = 1000, seed: int = 0) -> dict[str, Any]:
        """`outputs`: a row of `compare` for each image."""
        told = Told(self._kept(outputs), self.outputs)
        images = len(outputs)
        values = plain(told.metrics, images)
        intervals = bootstrap_intervals(told.metrics, images, bootstrap, seed)
        return {
            "task": self.name,
            "images": images,
            "main_metric": self.main_metric,
            "metrics": {name: value for name, value in values.items() if not name.startswith("each ")},
            "intervals": {name: value for name, value in intervals.items() if not name.startswith("each ")},
            "per_label": told.per_label(self.labels, values, intervals),
            "worst": told.worst(self.labels),
            "pixel_confusion": told.confusion.sum(0, dtype=np.float64).astype(np.int64).tolist(),
            "confused_pairs": told.confused_pairs(self.labels),
        }

    def _kept(self, kept: Tensor) -> np.ndarray:
        expected = self.outputs * (self.outputs + COUNTS)
        if kept.dim() != 2 or kept.shape[1] != expected:
            raise VitrailError(
                f"the comparisons have shape {tuple(kept.shape)}, {self.outputs} labels need (images, {expected})"
            )
        if not len(kept):
            raise VitrailError("there is no image to measure the model on: give it at least one with its mask")
        return kept.detach().cpu().numpy()


class Told:
    """What the model told about M images with masks, and all that is measured from it."""

    def __init__(self, kept: np.ndarray, classes: int) -> None:
        self.confusion = kept[:, : classes**2].reshape(-1, classes, classes)  # (M, K, K) rows are the truth
        self.boundary = kept[:, classes**2 :].reshape(-1, classes, COUNTS).astype(np.float64)  # (M, K, 4)
        self.hits = np.einsum("mkk->mk", self.confusion).astype(np.float64)  # (M, K) each
        self.true = self.confusion.sum(2, dtype=np.float64)
        self.answered = self.confusion.sum(1, dtype=np.float64)

    def metrics(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Each (R,) for weights (M, R): the pixels of all images are counted together. Means are over the classes that
        occur in the truth of the weighted images. 'each' (K, R)."""
        hits, true, answered = (part.T @ weights for part in (self.hits, self.true, self.answered))  # (K, R)
        iou = ratio(hits, true + answered - hits)
        told, told_met, real, real_met = (self.boundary[..., i].T @ weights for i in range(COUNTS))
        precision, recall = ratio(told_met, told), ratio(real_met, real)
        boundary = ratio(2 * precision * recall, precision + recall)
        return {
            "mIoU": _mean(iou, true),
            "pixel_accuracy": ratio(hits.sum(0), true.sum(0)),
            "boundary_f1": _mean(boundary, real),
            "each iou": iou,
            "each boundary_f1": boundary,
        }

    def per_label(
        self, labels: Sequence[str], values: Mapping[str, Any], intervals: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """IoU, recall and boundary F1 of a class without true pixels are not known."""
        hits, true, answered = (part.sum(0) for part in (self.hits, self.true, self.answered))
        boundary = self.boundary[..., 2].sum(0)
        return [
            {
                "label": label,
                "iou": values["each iou"][k] if true[k] else None,
                "iou_interval": intervals["each iou"][k] if intervals and true[k] else None,
                "precision": float(hits[k] / answered[k]) if answered[k] else 0.0,
                "recall": float(hits[k] / true[k]) if true[k] else None,
                "boundary_f1": values["each boundary_f1"][k] if boundary[k] else None,
                "pixels": int(true[k]),
                "support": int((self.true[:, k] > 0).sum()),
            }
            for k, label in enumerate(labels)
        ]

    def worst(self, labels: Sequence[str]) -> list[dict[str, Any]]:
        """The images whose own mean IoU, over the classes in their truth, is lowest."""
        iou = ratio(self.hits, self.true + self.answered - self.hits)
        each = _mean(iou.T, self.true.T)  # (M,)
        measured = np.flatnonzero((self.true.sum(1) > 0) & (each < 1))
        order = measured[np.argsort(each[measured], kind="stable")][:WORST]
        return [self._miss(int(i), float(each[i]), labels) for i in order]

    def _miss(self, i: int, iou: float, labels: Sequence[str]) -> dict[str, Any]:
        mistakes = self.confusion[i] * (1 - np.eye(len(labels)))
        truth, answer = divmod(int(mistakes.argmax()), len(labels))
        share = mistakes[truth, answer] / self.true[i, truth]
        return {
            "index": i,
            "truth": named(_areas(self.true[i], labels)),
            "answer": named(_areas(self.answered[i], labels)),
            "iou": iou,
            "remark": f"IoU {iou:.2f}: {labels[truth]} taken for {labels[answer]} in {100 * share:.0f} % of its pixels",
        }

    def confused_pairs(self, labels: Sequence[str]) -> list[dict[str, Any]]:
        """Which class is most often taken for which other, in pixels."""
        total = self.confusion.sum(0, dtype=np.float64)
        mistakes = total * (1 - np.eye(len(labels)))
        pairs = []
        for place in np.argsort(-mistakes, axis=None, kind="stable")[:PAIRS]:
            truth, answer = divmod(int(place), len(labels))
            count = int(mistakes[truth, answer])
            if count:
                share = count / float(total[truth].sum())
                pairs.append({"truth": labels[truth], "answer": labels[answer], "count": count, "share": share})
        return pairs


def _mean(values: np.ndarray, occurring: np.ndarray) -> np.ndarray:
    """(K, R) -> (R,) over the classes that occur; 0 where none does."""
    occurs = occurring > 0
    return ratio((values * occurs).sum(0), occurs.sum(0))


def _areas(pixels: np.ndarray, labels: Sequence[str]) -> list[dict[str, Any]]:
    order = np.argsort(-pixels, kind="stable")
    return [{"label": labels[k], "share": pixels[k] / max(1.0, pixels.sum())} for k in order if pixels[k]]


def named(areas: Sequence[Mapping[str, Any]]) -> str:
    """'road 41.0 %, sky 22.1 %, car 5.0 % and 4 more'."""
    words = ", ".join(f"{area['label']} {100 * area['share']:.1f} %" for area in areas[:NAMED])
    more = len(areas) - NAMED
    return (f"{words} and {more} more" if more > 0 else words) or "nothing"
