"""Images with a depth map each, in a folder beside them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.dataset import Dataset, Item
from vitrail.findings import Finding
from vitrail.tasks.dense_options import DenseOptions
from vitrail.tasks.depth.depth_checks import DepthLook, check_depth, look_at_depth
from vitrail.tasks.depth.depth_maps import SCALE_FILE, DepthFile, DepthScale, read_scale
from vitrail.tasks.shared.check_charts import bar, bar_chart
from vitrail.tasks.shared.folder_pairs import PairNaming, find_pairs
from vitrail.tasks.shared.paired_files import read_pairs
from vitrail.tasks.shared.scene import Scene
from vitrail.tasks.task_data import ExaminedItems, TargetLook, TaskData
from vitrail.text import counted

MAPS = PairNaming(
    noun="depth map",
    looked_for="images/ and depth/ with files of the same names (16-bit PNG, TIFF or .npy) are looked for",
    example="left:left-depth",
    folders=("depth", "depths", "depth_maps", "depthmaps", "depth_map"),
    suffixes=("_depth", "_depths", "depth"),
    file_ends=re.compile(r"[_-](depth|depths|disp)$", re.I),
)
MILLIMETRES = DepthScale(scale=0.001, unit="m")  # of generated scenes


class DepthData(TaskData):
    """A target is a DepthFile."""

    name = "depth"
    layouts = ("depth",)
    own_layout = "depth"
    own_layout_title = "images and depth maps"
    looked_for = MAPS.looked_for
    label_noun = ("number", "numbers")
    target_noun = ("depth map", "depth maps")
    targets_vary = True

    def find(self, root: Path, options: DenseOptions) -> bool:
        return bool(find_pairs(root, MAPS))

    def read(self, root: Path, options: DenseOptions) -> Dataset:
        files, findings = read_pairs(root, MAPS, options.pairs)
        scale = read_scale(root)
        maps = [DepthFile(file.digest, file.path, file.size, scale or DepthScale(), turn=file.turn) for file in files]
        items = [Item(file.image, depth, file.part) for file, depth in zip(files, maps, strict=True)]
        if scale is None:
            findings.append(_no_scale(len(items)))
        return Dataset(root, "depth", self.name, (label_of(scale),), tuple(items), tuple(findings))

    def describe(self, dataset: Dataset) -> str:
        return f"{counted(len(dataset.items), 'image')} with depth maps"

    def look(self, item: Item) -> TargetLook | None:
        return look_at_depth(item)

    def check(self, dataset: Dataset, examined: ExaminedItems) -> list[Finding]:
        return check_depth(dataset, examined.looks)

    def summary(self, dataset: Dataset, looks: Sequence[TargetLook | None]) -> dict[str, Any]:
        """The range of the depths and the share of known pixels, where the maps were read."""
        known = [look for look in looks if isinstance(look, DepthLook) and look.known]
        if not known:
            return {"targets": list(dataset.labels)}
        return {
            "targets": list(dataset.labels),
            "depth": {
                "least": min(look.least for look in known),
                "median": float(np.median([look.median for look in known])),
                "most": max(look.most for look in known),
                "known": float(np.mean([look.known for look in known])),
            },
        }

    def charts(self, dataset: Dataset, looks: Sequence[TargetLook | None]) -> list[dict[str, Any]]:
        """How many images have their median depth in each of ten equal steps."""
        medians = [look.median for look in looks if isinstance(look, DepthLook) and look.known]
        if not medians:
            return []
        counts, edges = np.histogram(medians, bins=10)
        rows = [
            bar(f"{low:.3g} to {high:.3g}", count / max(1, counts.max()), f"{count:,}")
            for count, low, high in zip(counts.tolist(), edges[:-1], edges[1:], strict=True)
        ]
        return [bar_chart(f"Images by their median {dataset.labels[0]}", rows)]

    # ---- generated data: depth/PART/*.png in millimetres, and depth.json

    def write_scene(self, root: Path, part: str, stem: str, scene: Scene) -> None:
        folder = root / "depth" / part
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.rint(scene_depth(scene) / MILLIMETRES.scale).astype(np.uint16)).save(folder / f"{stem}.png")

    def write_scenes(self, root: Path, scenes: Mapping[str, Sequence[tuple[str, Any]]], size: int) -> None:
        content = {"scale": MILLIMETRES.scale, "unit": MILLIMETRES.unit}
        (root / SCALE_FILE).write_text(json.dumps(content) + "\n", encoding="utf-8")


def label_of(scale: DepthScale | None) -> str:
    """The name of the number, with its unit: `depth (m)`."""
    return f"depth ({scale.unit})" if scale is not None and scale.unit else "depth"


def scene_depth(scene: Scene) -> NDArray[np.float32]:
    """(S, S) metres: the ground comes nearer from top to bottom, shapes stand before it, the larger the nearer.

    Pixels at the border of a shape are unknown (0), as depth sensors leave them.
    """
    side = len(scene.picture)
    rows = (np.arange(side, dtype=np.float32) + 0.5) / side
    depth = np.repeat((10 - 6 * rows)[:, None].astype(np.float32), side, axis=1)
    for shape in scene.shapes:
        depth[shape.pixels] = 0.4 * side / shape.radius
    number = scene.mask.astype(np.int16)
    for shape_number, shape in enumerate(scene.shapes, start=1):  # two shapes of one kind may touch
        number[shape.pixels] = shape_number
    border = np.zeros_like(number, dtype=bool)
    border[:, 1:] |= number[:, 1:] != number[:, :-1]
    border[1:] |= number[1:] != number[:-1]
    depth[border] = 0
    return depth


def _no_scale(count: int) -> Finding:
    title = f"no {SCALE_FILE} says what the values of the depth maps mean: they are taken as they are"
    advice = 'write one beside the folders, such as {"scale": 0.001, "unit": "m"} for millimetres'
    return Finding("no-depth-scale", "note", title, advice, count)
