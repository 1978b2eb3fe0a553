"""What `/metrics` says, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from runner.tools.serve.versions import ServedVersion
from runner.tools.serve.worker_pool import ScoredBatch

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServingMetrics:
    """Counts of one server. Label values are from closed sets: nothing that a client sends becomes one."""

    def __init__(self, num_waiting: Callable[[], int], num_ready: Callable[[], int]) -> None:
        """See :meth:`page`.

        Args:
            num_waiting: gives the images that wait.
            num_ready: gives the workers that are ready.
        """
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        of = self.registry
        self._requests = Counter("runner_requests", "Requests answered", ["endpoint", "status"], registry=of)
        self._seconds = Histogram(
            "runner_request_seconds",
            "From the head of a request to its answer",
            ["endpoint"],
            buckets=_SECONDS,
            registry=of,
        )
        self._images = Counter("runner_images", "Images scored", registry=of)
        self._batch_images = Histogram("runner_batch_images", "Images of a batch", buckets=_IMAGES, registry=of)
        self._batch_seconds = Histogram(
            "runner_batch_seconds", "From handing a batch to a worker to its answers", buckets=_SECONDS, registry=of
        )
        self._deaths = Counter("runner_worker_deaths", "Workers that have died and were replaced", registry=of)
        self._swaps = Counter("runner_swaps", "Changes of the served version", ["outcome"], registry=of)
        self._model = Gauge("runner_model_info", "The version that is served", ["name", "version"], registry=of)
        Gauge("runner_queue_images", "Images that wait for a worker", registry=of).set_function(num_waiting)
        Gauge("runner_workers_ready", "Workers that can score", registry=of).set_function(num_ready)

    def page(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def record_request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a request; the endpoint is one of ours, never a path as it was sent."""
        self._requests.labels(endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def record_batch(self, batch: ScoredBatch) -> None:
        """Count a batch."""
        self._images.inc(len(batch.observations))
        self._batch_images.observe(batch.num_images)
        self._batch_seconds.observe(batch.seconds)

    def record_death(self) -> None:
        """Count a worker that has died."""
        self._deaths.inc()

    def record_version(self, version: ServedVersion) -> None:
        """Say which version is served from now on."""
        self._model.clear()
        self._model.labels(version.name, version.version).set(1)

    def record_swap(self, *, is_done: bool) -> None:
        """Count an attempt to serve another version."""
        self._swaps.labels("done" if is_done else "failed").inc()
