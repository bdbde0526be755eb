"""Counters in Prometheus' text format. Written by hand: it is a dozen lines."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TypeAlias

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds
Labels: TypeAlias = tuple[tuple[str, str], ...]

HELP = {
    "vitrail_requests_total": ("counter", "Requests answered, by path and status."),
    "vitrail_request_seconds": ("histogram", "Time from a request's headers to the end of its answer."),
    "vitrail_refused_total": ("counter", "Requests refused before the model, by reason."),
    "vitrail_images_total": ("counter", "Images that went through the model."),
    "vitrail_batches_total": ("counter", "Forward passes."),
    "vitrail_forward_seconds_total": ("counter", "Time in forward passes."),
    "vitrail_requests_in_hand": ("gauge", "Requests being read or answered."),
    "vitrail_images_in_hand": ("gauge", "Images being decoded, waiting or in the model."),
    "vitrail_jobs_waiting": ("gauge", "Jobs that wait for the model."),
}


class Metrics:
    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in HELP}
        self._lock = threading.Lock()  # the model's thread counts too
        self.seconds_an_image = 0.05  # of late; for Retry-After

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        with self._lock:
            self._add(name, tuple(labels.items()), amount)

    def timed(self, path: str, status: int, seconds: float) -> None:
        with self._lock:
            self._add("vitrail_requests_total", (("path", path), ("status", str(status))), 1)
            for bound in BUCKETS:
                self._add("vitrail_request_seconds", (("path", path), ("le", f"{bound:g}")), float(seconds <= bound))
            self._add("vitrail_request_seconds", (("path", path), ("le", "+Inf")), 1)
            self._add("vitrail_request_seconds", (("path", path), ("sum", "")), seconds)

    def forward(self, images: int, seconds: float) -> None:
        self.add("vitrail_images_total", images)
        self.add("vitrail_batches_total")
        self.add("vitrail_forward_seconds_total", seconds)
        self.seconds_an_image += 0.2 * (seconds / images - self.seconds_an_image)

    def text(self, gauges: Mapping[str, float]) -> str:
        lines = []
        with self._lock:
            for name, (kind, told) in HELP.items():
                lines += [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]
                values = {(): gauges[name]} if name in gauges else self._values[name]
                lines += [line for labels, value in values.items() for line in _lines(name, kind, labels, value)]
        return "\n".join(lines) + "\n"

    def _add(self, name: str, labels: Labels, amount: float) -> None:
        self._values[name][labels] = self._values[name].get(labels, 0) + amount


def _lines(name: str, kind: str, labels: Labels, value: float) -> list[str]:
    if kind != "histogram":
        return [f"{name}{_braces(labels)} {value:g}"]
    last, bound = labels[-1]
    if last == "sum":
        return [f"{name}_sum{_braces(labels[:-1])} {value!r}"]
    line = [f"{name}_bucket{_braces(labels)} {value:g}"]
    return [*line, f"{name}_count{_braces(labels[:-1])} {value:g}"] if bound == "+Inf" else line


def _braces(labels: Labels) -> str:
    return "{" + ",".join(f'{key}="{value}"' for key, value in labels) + "}" if labels else ""
