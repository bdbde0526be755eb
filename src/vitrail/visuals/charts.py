"""Charts as SVG: where things stand on the paper. `templates/charts.html` draws them, `templates/run.css` colours them.

A chart is two axes and marks, and every mark is one SVG path: a line, bars, or dots, which are strokes of no length
with round ends. Paths hold numbers only; words reach the page through the template, which escapes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 360.0, 230.0  # on a phone about as many pixels, so that the letters stay readable there
LEFT, RIGHT, TOP, BOTTOM = 54.0, 14.0, 24.0, 38.0  # room for the tick labels and the names of the axes
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)  # that people count in

Point = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """A line of values with named ticks."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Mark:
    """A line, dots or bars: one SVG path."""

    path: str
    style: str  # a class of run.css
    tip: str = ""  # what hovering tells


@dataclass(frozen=True)
class Chart:
    """What the template needs to draw a chart as SVG."""

    title: str
    x: Axis
    y: Axis
    marks: Sequence[Mark] = ()
    key: Sequence[tuple[str, str]] = ()  # style and name
    note: str = ""
    height: float = HEIGHT
    width: float = WIDTH

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        """Where each tick of the x axis is, in pixels from the left, and its text."""
        return [(across(self.x, value), text) for value, text in self.x.ticks]

    @property
    def y_ticks(self) -> list[tuple[float, str]]:
        """Where each tick of the y axis is, in pixels from the top, and its text."""
        return [(down(self.y, value, self.height), text) for value, text in self.y.ticks]

    @property
    def edges(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the area between the axes."""
        return LEFT, TOP, self.width - RIGHT, self.height - BOTTOM


# ---- axes


def axis(label: str, values: Iterable[float], *, count: int = 5, percent: bool = False, whole: bool = False) -> Axis:
    """An axis that holds all the values and begins and ends at a round number, with about `count` ticks.

    whole: the values are counts, so there is no tick at a half.
    """
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = 0.1 * abs(high) or 1.0
        low, high = low - room, high + room
    step = round_step(max((high - low) / count, 1.0 if whole else 0.0))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    write = percentages if percent else tick_text(step)
    ticks = tuple((number * step, write(number * step)) for number in range(first, last + 1))
    return Axis(label, first * step, last * step, ticks)


def shares(label: str) -> Axis:
    """An axis from 0 to 100 %."""
    return Axis(label, 0.0, 1.0, tuple((value / 4, percentages(value / 4)) for value in range(5)))


def round_step(step: float) -> float:
    """The next round number: 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(nice for nice in STEPS if step <= nice * power * (1 + 1e-9)) * power


def percentages(value: float) -> str:
    """0.25 as `25 %`."""
    return f"{round(100 * value, 6):g} %"


def tick_text(step: float) -> Callable[[float], str]:
    """Numbers with as many decimals as the step needs, or with a power of ten where that would be long."""
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    if step * 10**decimals % 1 > 1e-6:  # 0.25
        decimals += 1

    def text(value: float) -> str:
        long = abs(value) >= 1e6 or decimals > 4
        return f"{value:.3g}" if long else f"{round(value, decimals) + 0.0:,.{decimals}f}"

    return text


# ---- from numbers to the paper


def across(x: Axis, value: float, width: float = WIDTH) -> float:
    """Where a value of the x axis is, in pixels from the left."""
    return LEFT + (width - LEFT - RIGHT) * _share(x, value)


def down(y: Axis, value: float, height: float = HEIGHT) -> float:
    """Where a value of the y axis is, in pixels from the top."""
    return height - BOTTOM - (height - TOP - BOTTOM) * _share(y, value)


def _share(on: Axis, value: float) -> float:
    """0 at the beginning of the axis and 1 at its end; what lies beyond stays at the edge."""
    return min(1.0, max(0.0, (value - on.low) / (on.high - on.low)))


# ---- paths


def line(points: Iterable[Point], x: Axis, y: Axis, height: float = HEIGHT) -> str:
    """The path that goes straight from point to point; a point that is no number leaves a gap."""
    path, pen = [], "M"
    for a, b in points:
        if not (math.isfinite(a) and math.isfinite(b)):
            pen = "M"
            continue
        path.append(f"{pen}{across(x, a):.1f} {down(y, b, height):.1f}")
        pen = "L"
    return "".join(path)


def dots(points: Iterable[Point], x: Axis, y: Axis, height: float = HEIGHT) -> str:
    """The path of one dot a point; points that are not finite are left out."""
    finite = [(a, b) for a, b in points if math.isfinite(a) and math.isfinite(b)]
    return "".join(f"M{across(x, a):.1f} {down(y, b, height):.1f}h0" for a, b in finite)


def bars(tops: Iterable[tuple[float, float, float]], x: Axis, y: Axis, height: float = HEIGHT) -> str:
    """The path of bars that stand on the x axis, given as (from, to, how high)."""
    path = []
    for begin, end, value in tops:
        left, right, top = across(x, begin) + 0.5, across(x, end) - 0.5, down(y, value, height)
        path.append(f"M{left:.1f} {height - BOTTOM:.1f}V{top:.1f}H{max(right, left + 0.5):.1f}V{height - BOTTOM:.1f}z")
    return "".join(path)
