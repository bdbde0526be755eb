"""What the report tells of familiarity: how far held-out pictures lie from training pictures, and the farthest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.text import shown
from vitrail.training.stages.learn_familiarity import Learnt
from vitrail.visuals.charts import Chart, Mark, axis, bars
from vitrail.visuals.thumbnails import thumbnail
from vitrail.weights.familiarity.kept_vectors import UNFAMILIAR

BINS = 24
PICTURES = 12
SHORT = 170.0  # pixels, the height of the chart


def familiarity_section(learnt: Learnt | None, root: Path) -> dict[str, Any] | None:
    """None where the model file keeps nothing to tell it by."""
    if learnt is None or learnt.familiarity is None:
        return None
    vectors = learnt.held_out_vectors.numpy()
    distances, scores = learnt.familiarity.distances(vectors), learnt.familiarity.scores(vectors)
    farthest = (-distances).argsort()[:PICTURES].tolist()
    return {
        "chart": _histogram(distances, scores),
        "kept": f"{len(learnt.familiarity.vectors):,}",
        "held_out": f"{len(distances):,}",
        "passing": f"{100 * float((scores >= UNFAMILIAR).mean()):.0f} %",
        "least": f"{UNFAMILIAR:g}",
        "pictures": [
            {
                "name": shown(learnt.held_out[place].path, root),
                "picture": thumbnail(learnt.held_out[place].source),
                "remark": f"familiarity {float(scores[place]):.2g}",
            }
            for place in farthest
        ],
    }


def _histogram(distances: NDArray[np.float32], scores: NDArray[np.float64]) -> Chart:
    x = axis("distance from the training pictures", distances.tolist())
    width = (x.high - x.low) / BINS
    places = ((distances - x.low) / width).astype(np.int64).clip(0, BINS - 1)
    counts = [np.bincount(places[chosen], minlength=BINS) for chosen in (scores >= 0, scores < UNFAMILIAR)]
    y = axis("pictures", [0.0, float(counts[0].max())], count=3, whole=True)
    marks = [
        Mark(
            bars([(x.low + i * width, x.low + (i + 1) * width, float(n)) for i, n in enumerate(one) if n], x, y, SHORT),
            style,
        )
        for one, style in zip(counts, ("area", "area stranger"), strict=True)
    ]
    key = [("train", "familiar"), ("wrong", f"called unfamiliar, below {UNFAMILIAR:g}")]
    return Chart("Held-out pictures", x, y, marks, key, height=SHORT)
