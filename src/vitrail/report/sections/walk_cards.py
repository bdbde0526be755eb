"""The walk's steps for the page: each figure as a picture, with the range of its numbers."""

# ruff: noqa: RUF001  formulas and sizes are written as people write them

from __future__ import annotations

from typing import Any

import numpy as np

from vitrail.explanation.walk.walk_steps import Figure, Step, Walk
from vitrail.visuals.embedded import matrix_png, png


def walk_cards(walk: Walk) -> list[dict[str, Any]]:
    return [{"number": number, **_card(step)} for number, step in enumerate(walk.steps, start=1)]


def _card(step: Step) -> dict[str, Any]:
    numbers = None
    if step.numbers is not None:
        what, values = step.numbers
        numbers = (what, ", ".join(_short(value) for value in values) + " …")
    return {
        "title": step.title,
        "formula": step.formula,
        "shape": step.shape,
        "text": step.text,
        "numbers": numbers,
        "figures": [_figure(figure) for figure in step.figures],
    }


def _figure(figure: Figure) -> dict[str, Any]:
    if figure.kind == "bars":
        return {"kind": "bars", "caption": figure.caption, "rows": _bars(figure), "range": None}
    if figure.kind == "pixels":
        return {
            "kind": "pixels",
            "caption": figure.caption,
            "picture": png(figure.values.astype(np.uint8)),
            "range": None,
        }
    values = figure.values.astype(np.float64)
    signed = figure.kind == "signed"
    most = float(np.nanmax(np.abs(values)))  # what the colours reach to, as `colours.scaled` has it
    rows, columns = values.shape
    return {
        "kind": "wide" if columns > 2.2 * rows else "square",
        "caption": figure.caption + (" (thinned to fit)" if figure.left_out else ""),
        "picture": matrix_png(values, signed),
        "range": (_short(-most) if signed else "0", _short(most)),
        "signed": signed,
    }


def _bars(figure: Figure) -> list[dict[str, Any]]:
    values = figure.values.astype(np.float64)
    most = max(float(np.abs(values).max()), 1e-12)
    shares = bool((values >= 0).all() and values.sum() <= 1 + 1e-4)
    return [
        {
            "name": name,
            "number": f"{100 * value:.2f} %" if shares else _short(value),
            "width": round(100 * abs(value) / most, 1),
            "negative": value < 0,
        }
        for name, value in zip(figure.names, values, strict=True)
    ]


def _short(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")
