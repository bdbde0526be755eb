"""Images with a class for every pixel: masks in a folder beside them, or annotated outlines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from vitrail.annotations import AnnotationSource
from vitrail.dataset import Dataset, Item
from vitrail.findings import Finding
from vitrail.tasks.dense_options import DenseOptions
from vitrail.tasks.segment.mask_checks import check_masks, look_at_mask, pixel_shares
from vitrail.tasks.segment.mask_folders import from_masks, has_masks
from vitrail.tasks.segment.outline_masks import from_outlines
from vitrail.tasks.shared.check_charts import bar, bar_chart
from vitrail.tasks.shared.scene import SHAPES, Scene
from vitrail.tasks.task_data import ExaminedItems, TargetLook, TaskData
from vitrail.text import counted

PALETTE = (20, 20, 20, 230, 80, 60, 60, 140, 230, 90, 180, 70, 240, 190, 50, 160, 90, 200)  # ground, then SHAPES


class MaskData(TaskData):
    """A target is a Mask."""

    name = "segment"
    layouts = ("masks", "coco", "yolo")
    own_layout = "masks"
    own_layout_title = "images and masks"
    looked_for = "images/ and masks/ with files of the same names, or annotations with outlines, are looked for"
    target_noun = ("mask", "masks")
    targets_vary = True

    def find(self, root: Path, options: DenseOptions) -> bool:
        return has_masks(root, options)

    def read(self, root: Path, options: DenseOptions) -> Dataset:
        return from_masks(root, options)

    def suits_annotations(self, source: AnnotationSource) -> bool:
        """Outlines without boxes; with boxes, they are objects to be detected."""
        annotations = source.annotations()
        return bool(annotations) and all(annotation.box is None for annotation in annotations)

    def from_annotations(self, source: AnnotationSource) -> Dataset:
        return from_outlines(source)

    def describe(self, dataset: Dataset) -> str:
        classes = counted(len(dataset.labels), *self.label_noun)
        return f"{counted(len(dataset.items), 'image')} with masks of {classes}"

    def obstacles(self, dataset: Dataset) -> list[Finding]:
        """Values that are no class, in most of the masks that were looked into."""
        return [finding for finding in dataset.findings if finding.kind == "unknown-class-index"][:1]

    def look(self, item: Item) -> TargetLook | None:
        return look_at_mask(item)

    def check(self, dataset: Dataset, examined: ExaminedItems) -> list[Finding]:
        return check_masks(dataset, examined.looks)

    def summary(self, dataset: Dataset, looks: Sequence[TargetLook | None]) -> dict[str, Any]:
        """Of each class its share of the pixels, where the masks were read."""
        shares = pixel_shares(looks, len(dataset.labels))
        rows = [{"name": name, **({"pixels": shares[n]} if shares else {})} for n, name in enumerate(dataset.labels)]
        return {"classes": rows}

    def charts(self, dataset: Dataset, looks: Sequence[TargetLook | None]) -> list[dict[str, Any]]:
        """How much of the masks each class has, the largest first."""
        if not looks:
            return []
        by_class = zip(dataset.labels, pixel_shares(looks, len(dataset.labels)), strict=True)
        shares = sorted(by_class, key=lambda pair: -pair[1])
        largest = max(share for _, share in shares) or 1.0
        rows = [bar(name, share / largest, f"{100 * share:.3g} %") for name, share in shares]
        return [bar_chart("Pixels of each class", rows)]

    # ---- generated data: masks/PART/*.png, and classes.txt

    def write_scene(self, root: Path, part: str, stem: str, scene: Scene) -> None:
        mask = Image.fromarray(scene.mask)
        mask.putpalette(PALETTE)
        folder = root / "masks" / part
        folder.mkdir(parents=True, exist_ok=True)
        mask.save(folder / f"{stem}.png")

    def write_scenes(self, root: Path, scenes: Mapping[str, Sequence[tuple[str, Any]]], size: int) -> None:
        (root / "classes.txt").write_text("\n".join(["background", *SHAPES]) + "\n", encoding="utf-8")
