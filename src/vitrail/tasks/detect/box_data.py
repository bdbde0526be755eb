"""Images with annotated objects: what is read of COCO, Pascal VOC and YOLO for detection."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.annotations import LOOKED_FOR, AnnotationSource, fit_to_images
from vitrail.dataset import Dataset, Item
from vitrail.errors import VitrailError
from vitrail.findings import Example, Finding
from vitrail.tasks.detect.annotated_boxes import BoxFaults, boxes_of, without_unused_classes
from vitrail.tasks.detect.box_checks import check_boxes
from vitrail.tasks.detect.boxes import Boxes
from vitrail.tasks.shared.check_charts import class_chart
from vitrail.tasks.shared.labels.class_checks import Counted, check_class_counts, counts_by_part
from vitrail.tasks.shared.scene import SHAPES, Scene
from vitrail.tasks.task_data import ExaminedItems, TargetLook, TaskData
from vitrail.text import counted, listing, shown

BOXES = Counted("box", "boxes", "judge by the mean over classes, and add images that show the small one")


class BoxData(TaskData):
    """A target is the boxes of an image."""

    name = "detect"
    layouts = ("coco", "voc", "yolo")
    looked_for = LOOKED_FOR
    target_noun = ("boxes", "boxes")
    targets_vary = True

    def suits_annotations(self, source: AnnotationSource) -> bool:
        """Any, apart from outlines without boxes."""
        annotations = source.annotations()
        return not annotations or any(annotation.box is not None for annotation in annotations)

    def from_annotations(self, source: AnnotationSource) -> Dataset:
        fitting, odd = fit_to_images(source.images)
        faults = BoxFaults()
        items: Sequence[Item] = [
            Item(image.path, boxes_of(image, header, faults, source.labels), image.split) for image, header in fitting
        ]
        labels, items, unused = without_unused_classes(source.labels, items)
        findings = [*source.findings, *odd, *faults.findings(), *unused, *_without_objects(items)]
        if not items:
            raise VitrailError(f"{shown(source.table or source.root)}: {findings[-1].title}; {findings[-1].advice}")
        return Dataset(
            source.root, source.layout, self.name, tuple(labels), tuple(items), tuple(findings), source.table
        )

    def describe(self, dataset: Dataset) -> str:
        boxes = counted(sum(dataset.class_counts()), "box", "boxes")
        return (
            f"{counted(len(dataset.items), 'image')} with {boxes} of {counted(len(dataset.labels), *self.label_noun)}"
        )

    def target_words(self, item: Item, dataset: Dataset) -> str:
        return counted(len(item.target), "box", "boxes") if isinstance(item.target, Boxes) else ""

    def obstacles(self, dataset: Dataset) -> list[Finding]:
        if any(dataset.class_counts("train")):
            return []
        advice = "annotate some of the objects to be found"
        return [Finding("no-boxes", "error", "no training image has a box", advice, len(dataset.part("train")))]

    def check(self, dataset: Dataset, examined: ExaminedItems) -> list[Finding]:
        return [
            *check_class_counts(dataset, examined.automatic_split, BOXES),
            *_not_learnt(dataset),
            *check_boxes(dataset),
        ]

    def summary(self, dataset: Dataset, looks: Sequence[TargetLook | None]) -> dict[str, Any]:
        return counts_by_part(dataset)

    def charts(self, dataset: Dataset, looks: Sequence[TargetLook | None]) -> list[dict[str, Any]]:
        return [class_chart(dataset, "Boxes of each class")]

    # ---- generated data: annotations/PART.json, as COCO writes them

    def write_scene(self, root: Path, part: str, stem: str, scene: Scene) -> list[dict[str, Any]]:
        return list(_annotations(scene))

    def write_scenes(self, root: Path, scenes: Mapping[str, Sequence[tuple[str, Any]]], size: int) -> None:
        (root / "annotations").mkdir()
        for part, rows in scenes.items():
            images = [
                {"id": n, "file_name": name, "width": size, "height": size} for n, (name, _) in enumerate(rows, 1)
            ]
            objects = [(n, annotation) for n, (_, annotations) in enumerate(rows, 1) for annotation in annotations]
            content = {
                "images": images,
                "categories": [{"id": n, "name": name} for n, name in enumerate(SHAPES, 1)],
                "annotations": [{"id": m, "image_id": n, **annotation} for m, (n, annotation) in enumerate(objects, 1)],
            }
            (root / "annotations" / f"{part}.json").write_text(json.dumps(content), encoding="utf-8")


# ---- parts


def _without_objects(items: Iterable[Item]) -> list[Finding]:
    bare = [Example((item.path,)) for item in items if isinstance(item.target, Boxes) and not len(item.target)]
    if not bare:
        return []
    title = f"{counted(len(bare), 'image has', 'images have')} no object"
    advice = "nothing to do, if that is meant: they teach what is none"
    return [Finding("no-objects", "note", title, advice, len(bare), tuple(bare))]


def _not_learnt(dataset: Dataset) -> list[Finding]:
    """Boxes elsewhere of what train has none of: the others can be learnt all the same."""
    counts, train = dataset.class_counts(), dataset.class_counts("train")
    absent = [name for name, all_, learnt in zip(dataset.labels, counts, train, strict=True) if all_ and not learnt]
    if not absent:
        return []
    title = f"{counted(len(absent), 'class has', 'classes have')} no training box: {listing(absent, 5)}"
    advice = "add some to train: it cannot be learnt, and counts as missed where it is measured"
    return [Finding("class-not-in-train", "warning", title, advice, len(absent))]


def _annotations(scene: Scene) -> Iterable[dict[str, Any]]:
    for shape in scene.shapes:
        left, top, right, bottom = shape.box
        yield {
            "category_id": shape.number + 1,
            "bbox": [left, top, right - left, bottom - top],
            "area": int(shape.pixels.sum()),
            "iscrowd": 0,
            "segmentation": {"size": list(shape.pixels.shape), "counts": _run_lengths(shape.pixels)},
        }


def _run_lengths(pixels: NDArray[np.bool_]) -> list[int]:
    """COCO's run lengths: outside, inside, outside, ..., column by column."""
    flat = np.concatenate([[False], pixels.T.ravel()])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    return np.diff(np.concatenate([[0], changes, [pixels.size]])).tolist()
