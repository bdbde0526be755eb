"""The page of `vitrail explain`: the picture, the answer, its reasons, attention by block and head, and the walk."""

# ruff: noqa: RUF001  formulas and sizes are written as people write them

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from vitrail.explanation.output.explanation_text import averaged, verdict, where
from vitrail.explanation.output.map_png import sheet
from vitrail.explanation.output.result import METHODS, SIGNED, Explanation
from vitrail.report.pages.rendering import made, render
from vitrail.report.sections.trust import trust_section
from vitrail.report.sections.walk_cards import walk_cards
from vitrail.text import counted
from vitrail.visuals.colours import HEAT, cut_out, enlarged, overlay, shown_picture
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
    walked = next((found for found in explanations if found.walk is not None), None)
    compared = all(found.curves for found in explanations)
    return render(
        "explain.html",
        name=f"{counted(len(explanations), 'image')}" if many else Path(explanations[0].name).name,
        subtitle=f"What {model} sees",
        facts=_facts(explanations[0], checkpoint),
        images=[_image(found, number) for number, found in enumerate(explanations)],
        overall=trust_section(averaged(explanations)) if many and compared else None,
        walk=None if walked is None or walked.walk is None else walk_cards(walked.walk),
        walk_of=walked.name if walked is not None and many else "",
        script=Markup(SCRIPT),
        digest=digest,
        heat=",".join(HEAT),
        made=f"{made()}.",
    )


def _facts(found: Explanation, checkpoint: Checkpoint) -> str:
    config = checkpoint.config
    height, width = found.picture.shape[:2]
    prefix = f" + {config.prefix} in front" if config.prefix else ""
    return (
        f"{height} × {width} px, {found.grid[0]} × {found.grid[1]} patches{prefix}; {counted(config.depth, 'block')} "
        f"of {counted(config.heads, 'head')}, width {config.width}; fused attention"
    )


def _image(found: Explanation, number: int) -> dict[str, Any]:
    picture = enlarged(shown_picture(found.picture), SIDE)
    return {
        "id": f"image-{number}",
        "name": found.name,
        "picture": jpeg(picture),
        "size": (found.picture.shape[1], found.picture.shape[0]),
        "headline": _headline(found),
        "guesses": _guesses(found),
        "target": found.target,
        "asked": found.answer is not None and found.target != _own(found),
        "where": where(found),
        "notes": found.notes,
        "reasons": _reasons(found, picture),
        "verdict": verdict(found.curves) if found.curves else "",
        "trust": trust_section(found.curves) if found.curves else None,
        "look": _look(found),
        "objects": _objects(found, picture),
    }


# ---- the answer


def _headline(found: Explanation) -> tuple[str, str] | None:
    """What it is, and how sure, or the number."""
    answer = found.answer
    if answer is None:
        return None
    if "values" in answer:
        name, value = next(iter(answer["values"].items()))
        return name, f"{value:.6g}"
    if "labels" in answer and not answer["labels"]:
        return "no label", ""
    best = answer["top"][0]
    return best["label"], f"{100 * best['probability']:.1f} %"


def _own(found: Explanation) -> str | None:
    """What the model itself answers, or the first of it."""
    assert found.answer is not None
    if "values" in found.answer:
        return found.target
    return str(found.answer["top"][0]["label"])


def _guesses(found: Explanation) -> list[dict[str, Any]]:
    if found.answer is None:
        return []
    if "values" in found.answer:
        values = found.answer["values"]
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
        for guess in found.answer["top"]
    ]


def _reasons(found: Explanation, picture: NDArray[np.uint8]) -> list[dict[str, Any]]:
    return [
        {
            "title": METHODS[method][0].upper() + METHODS[method][1:],
            "text": REASONS[method],
            "picture": jpeg(overlay(picture, values, signed=method in SIGNED)),
            "best": method == found.best,
            "score": f"{found.curves[method].score:.3f}" if method in found.curves else "",
        }
        for method, values in found.maps.items()
    ]


# ---- attention, for the script


def _look(found: Explanation) -> dict[str, Any] | None:
    """What the sliders move through; None where there is no map at all."""
    blocks = found.blocks or found.every_blocks
    if not blocks:
        return None
    data = {
        "grid": found.grid,
        "blocks": blocks,
        "heads": found.heads,
        "names": found.prefix_names,
        "asked": _asked_maps(found),
        "everyBlocks": found.every_blocks,
        "every": None if found.every_query is None else _bytes(found.every_query),
    }
    return {
        "data": Markup(json.dumps(data).replace("<", "\\u003c")),
        "query": found.query,
        "title": found.query or "a patch",
        "blocks": blocks,
        "heads": found.heads,
        "names": found.prefix_names,
        "any": found.every_query is not None,
        "any_block": found.every_blocks[-1] if 0 < len(found.every_blocks) < len(blocks) else None,
        "sheet": None if found.attention is None else png(sheet(found.attention, side=max(found.grid), gap=1)),
    }


def _asked_maps(found: Explanation) -> dict[str, Any] | None:
    """The maps to their own largest as bytes, and what bytes cannot tell; the mean comes after the heads."""
    if found.attention is None or found.prefix is None:
        return None
    maps = np.concatenate(
        [found.attention, found.attention.mean(1, keepdims=True)], axis=1
    )  # (blocks, heads + 1, h, w)
    prefix = np.concatenate([found.prefix, found.prefix.mean(1, keepdims=True)], axis=1)
    most = maps.max(axis=(2, 3))
    return {
        "maps": _bytes((255 * maps / np.maximum(most, 1e-12)[..., None, None]).round().astype(np.uint8)),
        "most": [[float(f"{value:.4g}") for value in row] for row in most],
        "prefix": [[[float(f"{value:.4g}") for value in head] for head in block] for block in prefix],
    }


def _bytes(levels: NDArray[np.uint8]) -> str:
    return base64.b64encode(levels.tobytes()).decode()


def _objects(found: Explanation, picture: NDArray[np.uint8]) -> dict[str, Any]:
    shown = [] if found.masks is None else zip(found.heads, found.masks, strict=True)
    masks = [(head, jpeg(cut_out(picture, mask))) for head, mask in shown]
    return {
        "masks": masks,
        "block": found.blocks[-1] if found.blocks else None,
        "query": found.query,
        "foreground": None if found.foreground is None else jpeg(cut_out(picture, found.foreground)),
        "components": None
        if found.components is None
        else png(enlarged((255 * found.components).round().astype(np.uint8), SIDE // 2)),
    }
