"""What is measured of masks: IoU, pixel accuracy, boundary F1, what is taken for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitrail.tasks.segment.boundaries import COUNTS
from vitrail.tasks.shared.intervals import ratio
from vitrail.tasks.task import WORST
from vitrail.text import counted

NAMED = 4  # classes that one line for people names
PAIRS = 20  # most confused pairs that the results name


class MaskMetrics:
    """The answers about M images with masks, and all that is measured from them."""

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
        answered_edge, answered_met, true_edge, true_met = (self.boundary[..., i].T @ weights for i in range(COUNTS))
        precision, recall = ratio(answered_met, answered_edge), ratio(true_met, true_edge)
        boundary = ratio(2 * precision * recall, precision + recall)
        return {
            "mIoU": _mean(iou, true),
            "pixel_accuracy": ratio(hits.sum(0), true.sum(0)),
            "boundary_f1": _mean(boundary, true_edge),
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

    def left_out(self, labels: Sequence[str]) -> list[str]:
        """Sentences on the classes that the means leave out although the model answered them."""
        true, answered = self.true.sum(0), self.answered.sum(0)
        if not true.any():
            return ["no pixel of these masks is known: the scores of 0 say nothing"]
        return [
            f"not in mIoU: class {label} was answered on {counted(int(answered[k]), 'pixel')} but is nowhere true"
            for k, label in enumerate(labels)
            if answered[k] and not true[k]
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
