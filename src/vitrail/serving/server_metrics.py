"""Counters for Prometheus, with prometheus-client. Each server has a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServerMetrics:
    """Counting is safe from every thread. prometheus-client adds `_total` to the names of counters."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "vitrail_requests", "Requests answered, by path and status.", ["path", "status"], registry=registry
        )
        self._request_seconds = Histogram(
            "vitrail_request_seconds",
            "Time from a request's headers to the end of its answer.",
            ["path"],
            buckets=BUCKETS,
            registry=registry,
        )
        self._refused = Counter(
            "vitrail_refused", "Requests refused before the model, by reason.", ["why"], registry=registry
        )
        self._images = Counter("vitrail_images", "Images that went through the model.", registry=registry)
        self._batches = Counter("vitrail_batches", "Forward passes.", registry=registry)
        self._forward_seconds = Counter("vitrail_forward_seconds", "Time in forward passes.", registry=registry)
        self.seconds_per_image = 0.05  # a moving average, for Retry-After

    def count_request(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, str(status)).inc()
        self._request_seconds.labels(path).observe(seconds)

    def count_refusal(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def count_batch(self, images: int, seconds: float) -> None:
        self._images.inc(images)
        self._batches.inc()
        self._forward_seconds.inc(seconds)
        self.seconds_per_image += 0.2 * (seconds / images - self.seconds_per_image)

    def add_gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """A gauge whose value is read when the metrics are asked for."""
        Gauge(name, description, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        return generate_latest(_WithoutCreationTimes(self.registry))


class _WithoutCreationTimes(Collector):
    """Leaves out the `_created` series. (The library's own switch for them is for the whole process.)"""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self.registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
