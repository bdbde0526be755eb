"""An explanation for programs: everything but the pixels and the walk, as plain lists and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.explanation.output.result import Explanation


def as_json(explanation: Explanation) -> dict[str, Any]:
    """Maps are nested lists, row by row; attention is [block][head][row][column]."""
    return {
        "image": explanation.name,
        "answer": explanation.answer,
        "target": explanation.target,
        "value": explanation.value,
        "size": list(explanation.picture.shape[:2]),
        "grid": list(explanation.grid),
        "grids": [list(grid) for grid in explanation.grids],
        "stages": [_numbers(stage) for stage in explanation.stages],
        "maps": {name: _numbers(one) for name, one in explanation.maps.items()},
        "query": explanation.query,
        "blocks": explanation.blocks,
        "heads": explanation.heads,
        "attention": None if explanation.attention is None else [_numbers(block) for block in explanation.attention],
        "prefix": None if explanation.prefix is None else [_numbers(block) for block in explanation.prefix],
        "prefix_names": explanation.prefix_names,
        "masks": None if explanation.masks is None else explanation.masks.astype(int).tolist(),
        "foreground": None if explanation.foreground is None else explanation.foreground.astype(int).tolist(),
        "faithfulness": {
            name: {
                "deletion": one.deletion_area,
                "insertion": one.insertion_area,
                "score": one.score,
                "shares": _numbers(one.shares),
                "deletion_curve": _numbers(one.deletion),
                "insertion_curve": _numbers(one.insertion),
            }
            for name, one in explanation.curves.items()
        },
        "best": explanation.best,
        "notes": explanation.notes,
    }


def _numbers(values: NDArray[Any] | None) -> Any:
    """Six digits: more than a map is good for, and half the bytes."""
    if values is None:
        return None
    flat = [float(f"{value:.6g}") for value in np.asarray(values, np.float64).ravel()]
    return np.array(flat).reshape(values.shape).tolist()
