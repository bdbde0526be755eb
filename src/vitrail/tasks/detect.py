"""Objects and their boxes: Hungarian matching, class + L1 + GIoU, COCO's average precision."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.box_heads import Guesses
from vitrail.tasks.average_precision import Hits, Ranked, hits, precision, real
from vitrail.tasks.box_loss import decoder_loss, scored_loss, softmax_loss
from vitrail.tasks.boxes import distinct, to_centres, to_corners
from vitrail.tasks.dense import Dense
from vitrail.tasks.frame import Frame
from vitrail.tasks.intervals import bootstrap as bootstrap_intervals
from vitrail.tasks.intervals import ratio
from vitrail.tasks.task import WORST, Mix, NotFinite

MOST = 300  # detections of an image
TWICE = 0.7  # IoU from which on two boxes of a class are the same object
LEAST = 0.05  # score of what an answer tells at all
HINTS = 48  # about as many hints an image
SHIFT = 0.5  # how far a hint's edges are off at most, in halves of the object's size; those to reject, twice that


class Detect(Dense):
    """Targets (B, M, 5): class (-1: padding), cx, cy, w, h in 0..1 of the input."""

    name = "detect"
    main_metric = "AP50"
    heads = ("box_decoder", "box_tokens")

    def __init__(self, labels: Sequence[str], class_weights: str = "none") -> None:
        super().__init__(labels)
        if class_weights != "none":
            raise VitrailError(f"class_weights is {class_weights!r}, but detection has none: set it to none")
        self.threshold = 0.4  # the score from which on an object counts as found; `calibrate` finds the best

    def head_fields(self, head: str, candidates: int) -> dict[str, Any]:
        return {"head": head, "queries": candidates}

    def state_dict(self) -> dict[str, Any]:
        return {"threshold": self.threshold}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.threshold = float(state.get("threshold", self.threshold))

    # ---- training

    def loss(self, outputs: Any, targets: Tensor, *, mix: Mix | None = None, smoothing: float = 0.0) -> Tensor:
        self.check_mix(mix)
        if isinstance(outputs, Guesses):
            return decoder_loss(outputs, targets.float())
        logits, boxes = outputs.float().split([outputs.shape[-1] - 4, 4], dim=-1)
        return (softmax_loss if self.softmax(outputs) else scored_loss)(logits, boxes, targets.float())

    def hints(self, targets: Tensor, seed: int) -> Tensor | None:
        """Denoising queries (B, G, 2 M, 5): boxes beside the objects, which the decoder is to lead back to them, and as
        many farther off, which it is to reject. They spare it the search, so it learns from the first step on."""
        batch, objects = targets.shape[:2]
        if not (targets[..., 0] >= 0).any():
            return None
        groups = max(1, HINTS // (2 * objects))
        generator = torch.Generator().manual_seed(seed)
        shape = (batch, groups, 2, objects, 4)
        amount, sign = torch.rand(2, *shape, generator=generator).to(targets.device)
        amount = amount + torch.arange(2, device=targets.device)[:, None, None]  # 0 to 1, and 1 to 2
        half = targets[:, None, None, :, 3:].repeat(1, 1, 1, 1, 2) / 2
        corners = to_corners(targets[:, None, None, :, 1:]) + SHIFT * amount * half * torch.where(sign < 0.5, -1, 1)
        first, second = corners[..., :2], corners[..., 2:]
        corners = torch.cat([torch.minimum(first, second), torch.maximum(first, second)], dim=-1).clamp(0, 1)
        classes = targets[:, None, None, :, :1].expand(-1, groups, 2, -1, -1)
        boxes = to_centres(corners)
        boxes = torch.cat([boxes[..., :2], boxes[..., 2:].clamp(min=1e-3)], dim=-1)
        return torch.cat([classes, boxes], dim=-1).flatten(2, 3)

    def softmax(self, outputs: Tensor) -> bool:
        """Whether the outputs have a class for "no object"."""
        classes = outputs.shape[-1] - 4
        if outputs.dim() != 3 or classes not in (self.outputs, self.outputs + 1):
            raise VitrailError(
                f"the model's outputs have shape {tuple(outputs.shape)}, {self.outputs} labels need "
                f"(images, queries, {self.outputs + 4}), or one more with 'no object'"
            )
        return classes == self.outputs + 1

    # ---- answers in the picture's own pixels

    def decode(self, outputs: Tensor, frames: Sequence[Frame]) -> list[Tensor]:
        """(n, 7) each: class, score, left, top, right, bottom, and the query. Best first, at most 300, cut off
        at the picture's edges."""
        outputs = outputs.detach().float().cpu()
        if not torch.isfinite(outputs).all():
            raise NotFinite(
                "the model's outputs are not finite: train it again with a lower learning rate, or load another file"
            )
        logits, boxes = outputs.split([outputs.shape[-1] - 4, 4], dim=-1)
        softmax = self.softmax(outputs)
        scores = logits.softmax(-1)[..., :-1] if softmax else logits.sigmoid()
        best = scores.flatten(1).topk(min(MOST, scores[0].numel()), dim=1)
        query, label = best.indices // self.outputs, best.indices % self.outputs
        corners = to_corners(boxes.gather(1, query[..., None].expand(-1, -1, 4)))
        found = [
            _own(torch.stack([label[i].float(), best.values[i], query[i].float()], dim=1), corners[i], frame)
            for i, frame in enumerate(frames)
        ]
        # YOLOS was published without; a decoder trained for minutes still says some objects twice
        return found if softmax else [one[distinct(one[:, 2:6], one[:, 0], TWICE)] for one in found]

    def compare(self, decoded: Tensor, truth: Tensor) -> Tensor:
        kept = torch.zeros(MOST, 6)
        kept[:, 0] = -1
        kept[: len(decoded)] = decoded[:MOST, :6]
        return kept.flatten()

    def encode(self, targets: Sequence[Any]) -> Tensor:
        """Truths (m, 6), class, left, top, right, bottom, crowd, as (M, most, 6), padded with class -1."""
        most = max((len(truth) for truth in targets), default=0)
        encoded = torch.zeros(len(targets), most, 6)
        encoded[..., 0] = -1
        for row, truth in zip(encoded, targets, strict=True):
            if len(truth):
                row[: len(truth)] = torch.as_tensor(truth, dtype=torch.float32)
        return encoded

    # ---- measuring

    def quick_metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        detections, truths = self._arrays(outputs, targets)
        found = precision(detections, truths, self.outputs)
        return {"AP50": _mean(found.ap50), "AP": _mean(found.ap)}

    def calibrate(self, outputs: Tensor, targets: Tensor) -> None:
        """The score from which on an object counts as found: where F1 is best, over all classes."""
        told = Told(*self._arrays(outputs, targets), self.outputs)
        self.threshold = told.best_threshold(self.threshold)

    def evaluate(self, outputs: Tensor, targets: Tensor, *, bootstrap: int = 1000, seed: int = 0) -> dict[str, Any]:
        """`intervals` are of AP50 only, by the same matches, for COCO's own measure takes too long to be repeated."""
        detections, truths = self._arrays(outputs, targets)
        found = precision(detections, truths, self.outputs)
        told = Told(detections, truths, self.outputs)
        counts = told.counts(self.threshold)
        metrics = {"AP50": _mean(found.ap50), "AP": _mean(found.ap), "AP75": _mean(found.ap75)}
        return {
            "task": self.name,
            "images": len(truths),
            "main_metric": self.main_metric,
            "metrics": metrics | told.metrics(counts),
            "intervals": bootstrap_intervals(told.ap50, len(truths), bootstrap, seed),
            "per_label": told.per_label(counts, found.ap50, found.ap, self.labels),
            "worst": told.worst(self.threshold, self.labels),
            "threshold": self.threshold,
            "counts": {name: int(counts[name].sum()) for name in ("objects", "found", "false_alarms")},
            "curves": [
                {"label": label, "precision": None if np.isnan(curve[0]) else [round(float(p), 4) for p in curve]}
                for label, curve in zip(self.labels, found.curve, strict=True)
            ],
        }

    def _arrays(self, outputs: Tensor, targets: Tensor) -> tuple[np.ndarray, np.ndarray]:
        if len(outputs) != len(targets):
            raise VitrailError(f"there are {len(outputs)} outputs for {len(targets)} targets")
        if not len(outputs):
            raise VitrailError("there is no image to measure the model on: give it at least one with its boxes")
        return outputs.detach().cpu().reshape(len(outputs), -1, 6).numpy(), targets.detach().cpu().numpy()

    # ---- answers

    def answer(self, outputs: Sequence[Tensor], top: int = 5) -> list[dict[str, Any]]:  # type: ignore[override]
        """All objects of a score of at least 0.05, best first, whatever `top` is; `threshold` is the score from which
        on they count as found."""
        return [
            {
                "objects": [
                    {
                        "label": self.labels[int(label)],
                        "score": round(score, 4),
                        "box": [round(x, 2) for x in box],
                        "query": int(query),
                    }
                    for label, score, *box, query in decoded.tolist()
                    if score >= LEAST
                ],
                "threshold": self.threshold,
            }
            for decoded in outputs
        ]

    def columns(self, top: int = 5) -> list[str]:
        return list(self.row({"objects": [], "threshold": self.threshold}))

    def row(self, answer: Mapping[str, Any]) -> dict[str, str | float]:
        """The found objects with | between; a box is left, top, right and bottom with spaces between."""
        objects = found_in(answer)
        return {
            "objects": len(objects),
            "labels": "|".join(one["label"] for one in objects),
            "scores": "|".join(f"{one['score']:.4g}" for one in objects),
            "boxes": "|".join(" ".join(f"{side:.4g}" for side in one["box"]) for one in objects),
        }

    def words(self, answer: Mapping[str, Any]) -> str:
        objects = found_in(answer)
        if not objects:
            return "nothing found"
        return f"{counted(one['label'] for one in objects)} (best {objects[0]['score']:.2f})"

    def pictures(self, answer: Mapping[str, Any], image: np.ndarray) -> dict[str, Any]:
        """The picture with the boxes of the objects that were found."""
        from vitrail.tasks.box_pictures import drawn

        return {".jpg": drawn(image, found_in(answer), self.labels)}

    def record(self, answer: Mapping[str, Any], name: str, size: tuple[int, ...]) -> dict[str, Any]:
        return {"name": name, "height": size[0], "width": size[1], "objects": answer["objects"]}

    def files(self, records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """All objects of all images as COCO JSON, each with its score: what other tools read and measure."""
        return {"detections.json": json.dumps(coco(records, self.labels)) + "\n"}


def found_in(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The objects of an answer that count as found."""
    return [one for one in answer["objects"] if one["score"] >= answer["threshold"]]


def coco(records: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> dict[str, Any]:
    """Images, categories and annotations, numbered from 1; a box is left, top, width, height."""
    number = {label: k + 1 for k, label in enumerate(labels)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image, one in enumerate(records, start=1):
        images.append({"id": image, "file_name": one["name"], "width": one["width"], "height": one["height"]})
        for found in one["objects"]:
            left, top, right, bottom = found["box"]
            sides = [round(right - left, 2), round(bottom - top, 2)]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": number[found["label"]],
                    "bbox": [left, top, *sides],
                    "area": round(sides[0] * sides[1], 2),
                    "iscrowd": 0,
                    "score": found["score"],
                }
            )
    categories = [{"id": k, "name": label} for label, k in number.items()]
    return {"images": images, "categories": categories, "annotations": annotations}


def counted(labels: Any) -> str:
    """'3 red cell, 1 platelet', the most frequent first."""
    return ", ".join(f"{count} {label}" for label, count in Counter(labels).most_common())


def _own(told: Tensor, corners: Tensor, frame: Frame) -> Tensor:
    """Boxes of the model's input (0..1) in the picture's own pixels; those wholly outside of it are left out.
    told (n, 3): class, score, query."""
    height, width = frame.own
    top, left, bottom, right = frame.inside
    scale = torch.tensor([width / max(right - left, 1), height / max(bottom - top, 1)])
    inner = torch.tensor([left, top])
    pixels = corners * torch.tensor([frame.input[1], frame.input[0]]).repeat(2)
    pixels = (pixels - inner.repeat(2)) * scale.repeat(2)
    pixels = torch.minimum(pixels.clamp(min=0), torch.tensor([width, height]).repeat(2))
    there = (pixels[:, 2:] > pixels[:, :2]).all(1)
    return torch.cat([told[:, :2], pixels, told[:, 2:]], dim=1)[there]


def _mean(values: np.ndarray) -> float:
    """Over the classes that occur; 0 when none does."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0


class Told:
    """What the model told about M images of known objects, and what is counted from it at an overlap of one half."""

    def __init__(self, detections: np.ndarray, truths: np.ndarray, classes: int) -> None:
        self.classes = classes
        self.detections = [real(rows) for rows in detections]
        self.truths = [real(rows) for rows in truths]
        self.hits = [hits(found, truth) for found, truth in zip(self.detections, self.truths, strict=True)]
        rows = [
            np.column_stack([found[:, :2], hit.object_of, np.full(len(found), image)])
            for image, (found, hit) in enumerate(zip(self.detections, self.hits, strict=True))
        ]
        every = np.concatenate(rows) if rows else np.zeros((0, 4))
        every = every[every[:, 2] != -2]
        self.label, self.score = every[:, 0].astype(int), every[:, 1]
        self.right, self.image = every[:, 2] >= 0, every[:, 3].astype(int)
        plain = [truth[truth[:, 5] == 0, 0].astype(int) for truth in self.truths]  # without crowds
        self.objects = np.stack([np.bincount(truth, minlength=classes) for truth in plain])  # (M, K)

    def ap50(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """{"AP50": (R,)} for weights (M, R) of the images: the mean over the classes that occur among them."""
        each = []
        for k in range(self.classes):
            own = self.label == k
            ranked = Ranked(self.score[own], self.right[own], self.image[own], self.objects[:, k])
            each.append(ranked.average_precision(weights))
        table = np.stack(each)  # (K, R)
        return {"AP50": ratio(np.nansum(table, axis=0), (~np.isnan(table)).sum(0).astype(float))}

    def best_threshold(self, usual: float) -> float:
        """The score at which F1 over all classes is best; the usual one when nothing is right."""
        order = np.argsort(-self.score, kind="stable")
        right = self.right[order].cumsum()
        f1 = ratio(2.0 * right, (np.arange(1, len(order) + 1) + self.objects.sum()).astype(float))
        if not len(f1) or not right[-1]:
            return usual
        best = int(f1.argmax())
        below = self.score[order[best + 1]] if best + 1 < len(order) else self.score[order[best]]
        return max(LEAST, round(float(self.score[order[best]] + below) / 2, 4))

    def counts(self, threshold: float) -> dict[str, np.ndarray]:
        """(K,) each: objects, those found, and false alarms, at this score or more."""
        sure = self.score >= threshold
        found = np.bincount(self.label[sure & self.right], minlength=self.classes)
        alarms = np.bincount(self.label[sure & ~self.right], minlength=self.classes)
        return {"objects": self.objects.sum(0), "found": found, "false_alarms": alarms}

    def metrics(self, counts: Mapping[str, np.ndarray]) -> dict[str, float]:
        objects, found, alarms = (counts[name].sum() for name in ("objects", "found", "false_alarms"))
        told = found + alarms
        return {
            "precision": float(found / told) if told else 0.0,
            "recall": float(found / objects) if objects else 0.0,
            "f1": float(2 * found / (told + objects)) if told + objects else 0.0,
        }

    def per_label(
        self, counts: Mapping[str, np.ndarray], ap50: np.ndarray, ap: np.ndarray, labels: Sequence[str]
    ) -> list[dict[str, Any]]:
        """`support` counts objects. Of a class without any only precision is known, which is 0."""
        rows = []
        for k, label in enumerate(labels):
            objects, found, alarms = (int(counts[name][k]) for name in ("objects", "found", "false_alarms"))
            told = found + alarms
            rows.append(
                {
                    "label": label,
                    "AP50": None if np.isnan(ap50[k]) else float(ap50[k]),
                    "average_precision": None if np.isnan(ap[k]) else float(ap[k]),
                    "precision": found / told if told else 0.0,
                    "recall": found / objects if objects else None,
                    "f1": 2 * found / (told + objects) if objects else None,
                    "support": objects,
                    "false_alarms": alarms,
                    "missed": objects - found,
                }
            )
        return rows

    def worst(self, threshold: float, labels: Sequence[str]) -> list[dict[str, Any]]:
        """The images with the most misses and the surest false alarms, each counted as 1, or as its score."""
        rows: list[dict[str, Any]] = []
        for i, (found, truth, hit) in enumerate(zip(self.detections, self.truths, self.hits, strict=True)):
            missed, alarms = misses_and_alarms(found, truth, hit, threshold)
            fault = len(missed) + float(found[alarms, 1].sum())
            if fault > 0:
                sure = found[found[:, 1] >= threshold]
                rows.append(
                    {
                        "index": i,
                        "truth": counted(labels[int(k)] for k in truth[:, 0]),
                        "answer": counted(labels[int(k)] for k in sure[:, 0]),
                        "missed": len(missed),
                        "false_alarms": len(alarms),
                        "fault": round(fault, 4),
                    }
                )
        return sorted(rows, key=lambda row: -row["fault"])[:WORST]


def misses_and_alarms(
    found: np.ndarray, truth: np.ndarray, hit: Hits, threshold: float
) -> tuple[np.ndarray, np.ndarray]:
    """The objects of an image that were not found, and the detections that hit none, at this score or more."""
    sure = found[:, 1] >= threshold
    owner = hit.detection_of
    unseen = np.array([one < 0 or not sure[one] for one in owner], dtype=bool)
    missed = np.flatnonzero(unseen & (truth[:, 5] == 0))
    return missed, np.flatnonzero(sure & (hit.object_of == -1))
