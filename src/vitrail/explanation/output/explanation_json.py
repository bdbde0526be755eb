"""An explanation for programs: everything but the pixels and the walk, as plain lists and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.explanation.output.result import Explanation


def as_json(found: Explanation) -> dict[str, Any]:
    """Maps are nested lists, row by row; attention is [block][head][row][column]."""
    return {
        "image": found.name,
        "answer": found.answer,
        "target": found.target,
        "value": found.value,
        "size": list(found.picture.shape[:2]),
        "grid": list(found.grid),
        "maps": {name: _numbers(one) for name, one in found.maps.items()},
        "query": found.query,
        "blocks": found.blocks,
        "heads": found.heads,
        "attention": _numbers(found.attention),
        "prefix": _numbers(found.prefix),
        "prefix_names": found.prefix_names,
        "masks": None if found.masks is None else found.masks.astype(int).tolist(),
        "foreground": None if found.foreground is None else found.foreground.astype(int).tolist(),
        "faithfulness": {
            name: {
                "deletion": one.deletion_area,
                "insertion": one.insertion_area,
                "score": one.score,
                "shares": _numbers(one.shares),
                "deletion_curve": _numbers(one.deletion),
                "insertion_curve": _numbers(one.insertion),
            }
            for name, one in found.curves.items()
        },
        "best": found.best,
        "notes": found.notes,
    }


def _numbers(values: NDArray[Any] | None) -> Any:
    """Six digits: more than a map is good for, and half the bytes."""
    if values is None:
        return None
    flat = [float(f"{value:.6g}") for value in np.asarray(values, np.float64).ravel()]
    return np.array(flat).reshape(values.shape).tolist()
