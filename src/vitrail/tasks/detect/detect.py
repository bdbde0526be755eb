"""Objects and their boxes: Hungarian matching, class + L1 + GIoU, COCO's average precision."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vitrail.dataset import Item
from vitrail.errors import VitrailError
from vitrail.model.heads.box_heads import DecoderOutputs
from vitrail.model.noise import draw, place_of
from vitrail.tasks.agreement import Agreement
from vitrail.tasks.dense_task import DenseTask
from vitrail.tasks.detect.average_precision import measure_precision
from vitrail.tasks.detect.box_geometry import area, distinct_rounds, to_centres, to_corners
from vitrail.tasks.detect.box_loss import decoder_loss, scored_loss, softmax_loss
from vitrail.tasks.detect.box_matching import box_agreement
from vitrail.tasks.detect.box_metrics import LEAST, BoxMetrics, counted
from vitrail.tasks.detect.box_report import box_report
from vitrail.tasks.detect.box_targets import BoxTargets
from vitrail.tasks.detect.boxes import Boxes
from vitrail.tasks.detect.nms import NEVER, USUAL, best_nms_iou, suppress, suppress_rows
from vitrail.tasks.letterbox import Letterbox
from vitrail.tasks.report_part import MeasuredImages, ReportPart
from vitrail.tasks.shared.answer_schemas import NUMBER, PROBABILITY, TEXT, WHOLE_NUMBER, list_of, object_of
from vitrail.tasks.shared.entropy import binary_entropy
from vitrail.tasks.shared.intervals import Groups
from vitrail.tasks.shared.intervals import bootstrap as bootstrap_intervals
from vitrail.tasks.shared.metric_words import MetricWords
from vitrail.tasks.task import AnsweredPart, Mix

MOST = 300  # detections of an image
NOTHING_THERE = "there is no object in these images: the scores of 0 say nothing"
DENOISING_QUERIES = 48  # about as many hints an image
BOXES = place_of("denoising queries")
SHIFT = 0.5  # how far a hint's edges are off at most, in halves of the object's size; those to reject, twice that


class Detect(DenseTask):
    """Targets (B, M, 5): class (-1: padding), cx, cy, w, h in 0..1 of the input."""

    name = "detect"
    calibrates = True
    title = "detection"
    answer_schema = object_of(
        objects=list_of(
            object_of(label=TEXT, score=PROBABILITY, box=list_of(NUMBER, minItems=4, maxItems=4), query=WHOLE_NUMBER)
        ),
        threshold=NUMBER,
    )
    main_metric = "AP50"
    finds_objects = True
    support_noun = "objects"
    metric_words: ClassVar[dict[str, MetricWords]] = {
        "AP50": MetricWords(
            "AP50", "average precision over the classes, where a box counts as right if it overlaps by one half"
        ),
        "AP75": MetricWords("AP75", "the same, where it must overlap by three quarters"),
        "AP": MetricWords("AP", "COCO's average precision: the mean over overlaps from 0.5 to 0.95"),
        "precision": MetricWords("Precision", "how many of the objects in the answers are there"),
        "recall": MetricWords("Recall", "how many of the objects that are there were found"),
        "f1": MetricWords("F1", "high when precision and recall both are"),
    }
    heads = ("box_decoder", "box_tokens")
    graph_words: ClassVar[dict[str, str]] = {
        "boxes": "(B, n, 4) left, top, right, bottom in 0..1 of the input, best first",
        "scores": "(B, n) of each box; 0 where non-maximum suppression, which is inside, left it out",
        "labels": "(B, n) the number of its label",
    }

    def __init__(self, labels: Sequence[str], class_weights: str = "none") -> None:
        super().__init__(labels, class_weights)
        if class_weights != "none":
            raise VitrailError(f"class_weights is {class_weights!r}, but detection has none: set it to none")
        self.threshold = 0.4  # the score from which on an object counts as found; `calibrate` finds the best
        self.nms_iou: float | None = None  # from which on boxes are one object; None, in older files: see `decode`

    def head_fields(self, head: str, candidates: int) -> dict[str, Any]:
        return {"head": head, "queries": candidates}

    def state_dict(self) -> dict[str, Any]:
        return {"threshold": self.threshold, "nms_iou": self.nms_iou}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.threshold = float(state.get("threshold", self.threshold))
        self.nms_iou = state.get("nms_iou")

    # ---- training

    def targets(self, items: Sequence[Item], shape: tuple[int, int], gigabytes: float, workers: int) -> BoxTargets:
        return BoxTargets([item.target for item in items if isinstance(item.target, Boxes)])

    def renumber(self, target: Tensor, numbers: Tensor) -> Tensor:
        target = target.clone()
        target[:, 0] = numbers[target[:, 0].long()].to(target.dtype)
        return target

    def loss_counts(self, targets: Tensor) -> Tensor:
        """(2,) images and objects."""
        objects = (targets[..., 0] >= 0).sum()
        return torch.stack([torch.full_like(objects, len(targets)), objects])

    def loss_share(
        self, outputs: Any, targets: Tensor, counts: Tensor, *, mix: Mix | None = None, smoothing: float = 0.0
    ) -> Tensor:
        self.check_mix(mix)
        targets = targets.float()
        objects = counts[1].clamp(min=1)  # a step without any has a loss too
        if isinstance(outputs, DecoderOutputs):
            return decoder_loss(outputs, targets) / objects
        logits, boxes = outputs.float().split([outputs.shape[-1] - 4, 4], dim=-1)
        if self.softmax(outputs):
            return softmax_loss(logits, boxes, targets, counts)
        return scored_loss(logits, boxes, targets) / objects

    def denoising_queries(self, targets: Tensor, keys: Tensor) -> Tensor | None:
        """Denoising queries (B, G, 2 M, 5): boxes beside the objects, which the decoder is to lead back to them, and as
        many farther off, which it is to reject. They spare it the search, so it learns from the first step on.
        keys: (B,), which the boxes of each image follow from."""
        batch, objects = targets.shape[:2]
        if not (targets[..., 0] >= 0).any():
            return None
        groups = max(1, DENOISING_QUERIES // (2 * objects))
        shape = (batch, groups, 2, objects, 4)
        drawn = draw(keys, 2 * math.prod(shape[1:]), BOXES).float() * 2**-32 + 0.5  # in 0..1
        amount, sign = drawn.unflatten(1, (2, *shape[1:])).unbind(1)
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

    def decode(self, outputs: Tensor, frames: Sequence[Letterbox]) -> list[Tensor]:
        """(n, 7) each: class, score, left, top, right, bottom, and the query. Best first, at most 300, cut off
        at the picture's edges."""
        outputs = outputs.detach().float().cpu()
        self.check_finite(outputs)
        logits, boxes = outputs.split([outputs.shape[-1] - 4, 4], dim=-1)
        softmax = self.softmax(outputs)
        scores = logits.softmax(-1)[..., :-1] if softmax else logits.sigmoid()
        best = scores.flatten(1).topk(min(MOST, scores[0].numel()), dim=1)
        query, label = best.indices // self.outputs, best.indices % self.outputs
        corners = to_corners(boxes.gather(1, query[..., None].expand(-1, -1, 4)))
        detections = [
            _own(torch.stack([label[i].float(), best.values[i], query[i].float()], dim=1), corners[i], frame)
            for i, frame in enumerate(frames)
        ]
        return [suppress(rows, self.nms_overlap(softmax)) for rows in detections]

    def uncertainty(self, outputs: Tensor) -> Tensor:
        """The mean over candidates that may be objects: a score near one half is as unsure as can be."""
        logits = outputs[..., :-4].double()
        scores = (logits.softmax(-1)[..., :-1] if self.softmax(outputs) else logits.sigmoid()).amax(-1)  # (B, Q)
        weight = (scores >= LEAST).double()
        return (binary_entropy(scores) * weight).sum(1) / weight.sum(1).clamp(min=1)

    def nms_overlap(self, softmax: bool) -> float:
        """The IoU above which the better of two boxes stays alone. softmax: whether a class says "no object"."""
        if self.nms_iou is not None:
            return self.nms_iou
        # YOLOS was published without; a decoder trained for minutes still says some objects twice
        return NEVER if softmax else USUAL

    def graph_outputs(self, outputs: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
        """As `decode`, by operations of fixed shapes: a box without an area, or that non-maximum suppression leaves
        out, has a score of 0."""
        softmax = self.softmax(outputs)
        logits, boxes = outputs.split([outputs.shape[-1] - 4, 4], dim=-1)
        scores = logits.softmax(-1)[..., :-1] if softmax else logits.sigmoid()
        best, place = scores.flatten(1).topk(min(MOST, scores.shape[1] * self.outputs), dim=1)  # (B, n)
        query = torch.div(place, self.outputs, rounding_mode="floor")
        label = place - query * self.outputs
        corners = to_corners(boxes.gather(1, query[..., None].expand(-1, -1, 4))).clamp(0.0, 1.0)
        best = torch.where(area(corners) > 0, best, 0.0)
        if self.nms_overlap(softmax) < NEVER:
            best = torch.where(distinct_rounds(corners, label, self.nms_overlap(softmax)), best, 0.0)
        best, order = best.topk(best.shape[1], dim=1)
        corners = corners.gather(1, order[..., None].expand(-1, -1, 4))
        return {"boxes": corners, "scores": best, "labels": label.gather(1, order)}

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

    def pseudo_label(self, output: Tensor) -> Tensor:
        """(m, 6): the objects that count as found, as `encode` takes them."""
        found = output[output[:, 1] >= self.threshold]
        return torch.cat([found[:, :1], found[:, 2:6], torch.zeros(len(found), 1)], dim=1)

    def quick_metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        detections, truths = self._arrays(outputs, targets)
        precision = measure_precision(detections, truths, self.outputs)
        return {"AP50": _mean(precision.ap50), "AP": _mean(precision.ap)}

    def without_decoding_choices(self) -> Detect:
        task = copy.copy(self)
        task.nms_iou = NEVER
        return task

    def choose_decoding(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The overlap of non-maximum suppression at which AP50 is best."""
        self._check_pairs(outputs, targets)
        rows = outputs.detach().cpu().float().reshape(len(outputs), -1, 6)
        self.nms_iou = best_nms_iou(rows, targets.detach().cpu(), self.outputs)
        return self.with_decoding(outputs)

    def with_decoding(self, outputs: Tensor) -> Tensor:
        rows = outputs.detach().cpu().float().reshape(len(outputs), -1, 6)
        return suppress_rows(rows, USUAL if self.nms_iou is None else self.nms_iou).flatten(1)

    def calibrate(self, outputs: Tensor, targets: Tensor) -> None:
        """The score from which on an object counts as found: where F1 is best, over all classes."""
        box_metrics = BoxMetrics(*self._arrays(outputs, targets), self.outputs)
        self.threshold = box_metrics.best_threshold(self.threshold)

    def evaluate(
        self, outputs: Tensor, targets: Tensor, *, bootstrap: int = 1000, seed: int = 0, groups: Groups | None = None
    ) -> dict[str, Any]:
        """`intervals` are of AP50 only, by the same matches, for COCO's own measure takes too long to be repeated."""
        detections, truths = self._arrays(outputs, targets)
        precision = measure_precision(detections, truths, self.outputs)
        box_metrics = BoxMetrics(detections, truths, self.outputs)
        counts = box_metrics.counts(self.threshold)
        metrics = {"AP50": _mean(precision.ap50), "AP": _mean(precision.ap), "AP75": _mean(precision.ap75)}
        metrics |= box_metrics.metrics(counts)
        intervals = bootstrap_intervals(box_metrics.ap50, len(truths), bootstrap, seed, groups)
        return {
            **self.overall(len(truths), metrics, intervals, groups),
            "per_label": box_metrics.per_label(counts, precision.ap50, precision.ap, self.labels),
            "worst": box_metrics.worst(self.threshold, self.labels),
            "threshold": self.threshold,
            "nms_iou": self.nms_iou,
            "counts": {name: int(counts[name].sum()) for name in ("objects", "found", "false_alarms")},
            "curves": [
                {"label": label, "precision": None if np.isnan(curve[0]) else [round(float(p), 4) for p in curve]}
                for label, curve in zip(self.labels, precision.curve, strict=True)
            ],
            "notes": [] if counts["objects"].any() else [NOTHING_THERE],
        }

    def metrics_of(self, parts: Sequence[AnsweredPart]) -> dict[str, float]:
        """Each part has a threshold of its own."""
        box_metrics = [BoxMetrics(*self._arrays(part.outputs, part.targets), self.outputs) for part in parts]
        tasks = [part.task for part in parts if isinstance(part.task, Detect)]
        counts = [own.counts(task.threshold) for own, task in zip(box_metrics, tasks, strict=True)]
        total = {name: np.sum([own[name] for own in counts], axis=0) for name in counts[0]}
        return super().metrics_of(parts) | box_metrics[0].metrics(total)

    def _check_pairs(self, outputs: Tensor, targets: Tensor) -> None:
        if len(outputs) != len(targets):
            raise VitrailError(f"there are {len(outputs)} outputs for {len(targets)} targets")
        if not len(outputs):
            raise VitrailError("there is no image to measure the model on: give it at least one with its boxes")

    def _arrays(self, outputs: Tensor, targets: Tensor) -> tuple[np.ndarray, np.ndarray]:
        self._check_pairs(outputs, targets)
        return outputs.detach().cpu().reshape(len(outputs), -1, 6).numpy(), targets.detach().cpu().numpy()

    def report(self, results: Mapping[str, Any], images: MeasuredImages) -> ReportPart:
        return box_report(results, images, self.labels)

    # ---- answers

    def answer(self, outputs: Sequence[Tensor], top: int = 5) -> list[dict[str, Any]]:
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

    def same_answers(self, reference: Sequence[Tensor], others: Sequence[Tensor]) -> Agreement:
        """Found objects, at the task's threshold."""
        return box_agreement(reference, others, self.threshold)

    def columns(self, top: int = 5) -> list[str]:
        return list(self.row({"objects": [], "threshold": self.threshold}))

    def row(self, answer: Mapping[str, Any]) -> dict[str, str | float]:
        """The found objects with | between; a box is left, top, right and bottom with spaces between."""
        objects = sure_objects(answer)
        return {
            "objects": len(objects),
            "labels": "|".join(one["label"] for one in objects),
            "scores": "|".join(f"{one['score']:.4g}" for one in objects),
            "boxes": "|".join(" ".join(f"{side:.4g}" for side in one["box"]) for one in objects),
        }

    def words(self, answer: Mapping[str, Any]) -> str:
        objects = sure_objects(answer)
        if not objects:
            return "nothing found"
        return f"{counted(one['label'] for one in objects)} (best {objects[0]['score']:.2f})"

    def pictures(self, answer: Mapping[str, Any], image: np.ndarray) -> dict[str, Any]:
        """The picture with the boxes of the objects that were found."""
        from vitrail.tasks.detect.box_pictures import drawn

        return {".jpg": drawn(image, sure_objects(answer), self.labels)}

    def record(self, answer: Mapping[str, Any], name: str, size: tuple[int, ...]) -> dict[str, Any]:
        return {"name": name, "height": size[0], "width": size[1], "objects": answer["objects"]}

    def files(self, records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """All objects of all images as COCO JSON, each with its score: what other tools read and measure."""
        return {"detections.json": json.dumps(coco(records, self.labels)) + "\n"}


def sure_objects(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The objects of an answer that count as found."""
    return [one for one in answer["objects"] if one["score"] >= answer["threshold"]]


def coco(records: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> dict[str, Any]:
    """Images, categories and annotations, numbered from 1; a box is left, top, width, height."""
    number = {label: k + 1 for k, label in enumerate(labels)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image, one in enumerate(records, start=1):
        images.append({"id": image, "file_name": one["name"], "width": one["width"], "height": one["height"]})
        for detection in one["objects"]:
            left, top, right, bottom = detection["box"]
            sides = [round(right - left, 2), round(bottom - top, 2)]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": number[detection["label"]],
                    "bbox": [left, top, *sides],
                    "area": round(sides[0] * sides[1], 2),
                    "iscrowd": 0,
                    "score": detection["score"],
                }
            )
    categories = [{"id": k, "name": label} for label, k in number.items()]
    return {"images": images, "categories": categories, "annotations": annotations}


def _own(scored: Tensor, corners: Tensor, frame: Letterbox) -> Tensor:
    """Boxes of the model's input (0..1) in the picture's own pixels; those wholly outside of it are left out.
    scored (n, 3): class, score, query."""
    height, width = frame.own
    top, left, bottom, right = frame.inside
    scale = torch.tensor([width / max(right - left, 1), height / max(bottom - top, 1)])
    inner = torch.tensor([left, top])
    pixels = corners * torch.tensor([frame.input[1], frame.input[0]]).repeat(2)
    pixels = (pixels - inner.repeat(2)) * scale.repeat(2)
    pixels = torch.minimum(pixels.clamp(min=0), torch.tensor([width, height]).repeat(2))
    there = (pixels[:, 2:] > pixels[:, :2]).all(1)
    return torch.cat([scored[:, :2], pixels, scored[:, 2:]], dim=1)[there]


def _mean(values: np.ndarray) -> float:
    """Over the classes that occur; 0 when none does."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0
