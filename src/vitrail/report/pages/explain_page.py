"""The page of `vitrail explain`: the picture, the answer, its reasons, attention by block and head, and the walk."""

# ruff: noqa: RUF001  formulas and sizes are written as people write them

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from vitrail.explanation.output.explanation_text import averaged, verdict, where
from vitrail.explanation.output.map_png import sheet
from vitrail.explanation.output.result import METHODS, SIGNED, Explanation, QueryGroup
from vitrail.report.pages.rendering import made, render
from vitrail.report.sections.trust import trust_section
from vitrail.report.sections.walk_cards import walk_cards
from vitrail.text import counted
from vitrail.visuals.colours import HEAT, cut_out, enlarged, on_patches, overlay, shown_picture
from vitrail.visuals.embedded import jpeg, png
from vitrail.weights.checkpoint import Checkpoint

SCRIPT = (Path(__file__).parents[1] / "templates" / "explain.js").read_text(encoding="utf-8")
SIDE = 448  # pixels of a picture on the page, about
REASONS = {
    "relevance": "what each patch adds to the answer (red) or takes from it (blue), all decisions held still",
    "weighted_attention": "attention, as far as it helps the answer, followed through all blocks (Chefer et al.)",
    "rollout": "attention followed through all blocks, whatever the answer (Abnar and Zuidema)",
    "attention": "the mean of the heads",
    "occlusion": "how far the answer falls when the place is hidden (red), or rises (blue)",
}


def page(explanations: Sequence[Explanation], *, model: str, checkpoint: Checkpoint) -> str:
    """As HTML. Names of files and classes are text, whatever they contain; the script is known by its digest."""
    many = len(explanations) > 1
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    walked = next((explanation for explanation in explanations if explanation.walk is not None), None)
    compared = all(explanation.curves for explanation in explanations)
    return render(
        "explain.html",
        name=f"{counted(len(explanations), 'image')}" if many else Path(explanations[0].name).name,
        subtitle=f"What {model} sees",
        facts=_facts(explanations[0], checkpoint),
        images=[_image(explanation, number) for number, explanation in enumerate(explanations)],
        overall=trust_section(averaged(explanations)) if many and compared else None,
        walk=None if walked is None or walked.walk is None else walk_cards(walked.walk),
        walk_of=walked.name if walked is not None and many else "",
        script=Markup(SCRIPT),
        digest=digest,
        heat=",".join(HEAT),
        made=f"{made()}.",
    )


def _facts(explanation: Explanation, checkpoint: Checkpoint) -> str:
    config = checkpoint.config
    (height, width), (rows, columns) = explanation.picture.shape[:2], explanation.grid
    prefix = f" + {config.prefix} in front" if config.prefix else ""
    size = f"{height} × {width} px, {rows} × {columns} patches{prefix}"
    if len(config.levels) > 1:
        return f"{size}; {config.in_words()}; fused attention"
    return (
        f"{size}; {counted(config.depth, 'block')} "
        f"of {counted(config.heads_of(config.depth - 1), 'head')}, width {config.width}; fused attention"
    )


def _image(explanation: Explanation, number: int) -> dict[str, Any]:
    picture = enlarged(shown_picture(explanation.picture), SIDE)
    return {
        "id": f"image-{number}",
        "name": explanation.name,
        "picture": jpeg(picture),
        "size": (explanation.picture.shape[1], explanation.picture.shape[0]),
        "headline": _headline(explanation),
        "guesses": _guesses(explanation),
        "target": explanation.target,
        "other_target": explanation.answer is not None and explanation.target != _own(explanation),
        "where": where(explanation),
        "notes": explanation.notes,
        "reasons": _reasons(explanation, picture),
        "stages": _stages(explanation, picture),
        "verdict": verdict(explanation.curves) if explanation.curves else "",
        "trust": trust_section(explanation.curves) if explanation.curves else None,
        "look": _look(explanation),
        "objects": _objects(explanation, picture),
    }


# ---- the answer


def _headline(explanation: Explanation) -> tuple[str, str] | None:
    """The first label and its probability, or the first number's name and value."""
    answer = explanation.answer
    if answer is None:
        return None
    if "values" in answer:
        name, value = next(iter(answer["values"].items()))
        return name, f"{value:.6g}"
    if "labels" in answer and not answer["labels"]:
        return "no label", ""
    best = answer["top"][0]
    return best["label"], f"{100 * best['probability']:.1f} %"


def _own(explanation: Explanation) -> str | None:
    """The label that the model itself puts first; of numbers, the one that is explained."""
    assert explanation.answer is not None
    if "values" in explanation.answer:
        return explanation.target
    return str(explanation.answer["top"][0]["label"])


def _guesses(explanation: Explanation) -> list[dict[str, Any]]:
    if explanation.answer is None:
        return []
    if "values" in explanation.answer:
        values = explanation.answer["values"]
        return [
            {"name": name, "number": f"{value:.6g}", "width": 0, "negative": False} for name, value in values.items()
        ]
    return [
        {
            "name": guess["label"],
            "number": f"{100 * guess['probability']:.1f} %",
            "width": round(100 * guess["probability"], 1),
            "negative": False,
        }
        for guess in explanation.answer["top"]
    ]


def _reasons(explanation: Explanation, picture: NDArray[np.uint8]) -> list[dict[str, Any]]:
    return [
        {
            "title": METHODS[method][0].upper() + METHODS[method][1:],
            "text": REASONS[method],
            "picture": jpeg(overlay(picture, values, signed=method in SIGNED)),
            "best": method == explanation.best,
            "score": f"{explanation.curves[method].score:.3f}" if method in explanation.curves else "",
        }
        for method, values in explanation.maps.items()
    ]


def _stages(explanation: Explanation, picture: NDArray[np.uint8]) -> list[dict[str, Any]]:
    """Relevance as each stage begins, where there are several."""
    if len(explanation.stages) < 2:
        return []
    return [
        {
            "title": f"Stage {number}, {values.shape[0]} × {values.shape[1]} tokens",
            "picture": jpeg(overlay(picture, on_patches(values, explanation.grid), signed=True)),
        }
        for number, values in enumerate(explanation.stages)
    ]


# ---- attention, for the script


def _look(explanation: Explanation) -> dict[str, Any] | None:
    """The attention maps for the sliders of the page; None where there are none."""
    blocks = explanation.blocks or explanation.every_blocks
    if not blocks:
        return None
    data = {
        "grid": explanation.grid,
        "blocks": blocks,
        "heads": explanation.heads,
        "names": explanation.prefix_names,
        "queryPatch": _patch_of(explanation.query),
        "queryMaps": _query_maps(explanation),
        "blockGrids": {block: _grid_of(explanation, block) for block in {*blocks, *explanation.every_blocks}},
        "windows": {block: _windows_of(explanation, block) for block in {*blocks, *explanation.every_blocks}},
        "everyBlocks": explanation.every_blocks,
        "every": None if explanation.every_query is None else [_every(groups) for groups in explanation.every_query],
    }
    return {
        "data": Markup(json.dumps(data).replace("<", "\\u003c")),
        "query": explanation.query,
        "title": explanation.query or "a patch",
        "blocks": blocks,
        "heads": explanation.heads,
        "names": explanation.prefix_names,
        "windows": any(one is not None for one in explanation.windows),
        "any": explanation.every_query is not None,
        "any_block": explanation.every_blocks[-1] if 0 < len(explanation.every_blocks) < len(blocks) else None,
        "sheet": None
        if explanation.attention is None
        else png(sheet(explanation.attention, side=max(explanation.grid), gap=1)),
    }


def _query_maps(explanation: Explanation) -> dict[str, Any] | None:
    """The query's maps as bytes, block by block, each scaled to its own largest value; `most` has these values. The
    mean over the heads comes after the heads."""
    if explanation.attention is None or explanation.prefix is None:
        return None
    levels, mosts, prefixes = [], [], []
    for block, front in zip(explanation.attention, explanation.prefix, strict=True):
        maps = np.concatenate([block, block.mean(0, keepdims=True)])  # (heads + 1, h, w)
        most = maps.max(axis=(1, 2))
        levels.append((255 * maps / np.maximum(most, 1e-12)[:, None, None]).round().astype(np.uint8).ravel())
        mosts.append([float(f"{value:.4g}") for value in most])
        shares = np.concatenate([front, front.mean(0, keepdims=True)])
        prefixes.append([[float(f"{value:.4g}") for value in head] for head in shares])
    return {"maps": _bytes(np.concatenate(levels)), "most": mosts, "prefix": prefixes}


def _patch_of(query: str | None) -> tuple[int, int] | None:
    """Row and column of a query that is a patch."""
    place = re.fullmatch(r"patch (\d+),(\d+)", query or "")
    return None if place is None else (int(place[1]), int(place[2]))


def _grid_of(explanation: Explanation, block: int) -> tuple[int, int]:
    """Of a block, or of the attention pooling behind the last one."""
    return explanation.grids[min(block, len(explanation.grids) - 1)]


def _windows_of(explanation: Explanation, block: int) -> list[int] | None:
    """For each token, row by row, the number of its window; None: all attend to all."""
    windows = explanation.windows[block] if block < len(explanation.windows) else None
    return None if windows is None else windows.ravel().tolist()


def _every(groups: Sequence[QueryGroup]) -> dict[str, Any]:
    """The rows of all tokens of a block: in groups that see the same tokens, one after the other."""
    return {
        "groups": [[group.queries.tolist(), group.keys.tolist()] for group in groups],
        "levels": _bytes(np.concatenate([group.levels.ravel() for group in groups])),
    }


def _bytes(levels: NDArray[np.uint8]) -> str:
    return base64.b64encode(levels.tobytes()).decode()


def _objects(explanation: Explanation, picture: NDArray[np.uint8]) -> dict[str, Any]:
    shown = [] if explanation.masks is None else zip(explanation.heads, explanation.masks, strict=False)
    masks = [(head, jpeg(cut_out(picture, on_patches(mask, explanation.grid)))) for head, mask in shown]
    foreground = explanation.foreground
    return {
        "masks": masks,
        "block": explanation.blocks[-1] if explanation.blocks else None,
        "query": explanation.query,
        "foreground": None if foreground is None else jpeg(cut_out(picture, on_patches(foreground, explanation.grid))),
        "components": None
        if explanation.components is None
        else png(enlarged((255 * explanation.components).round().astype(np.uint8), SIDE // 2)),
    }
