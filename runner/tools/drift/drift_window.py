"""Drift of a served model: counts over a sliding window, gauges for Prometheus, and a line of JSON per period.

Imports no torch. Times are given, in seconds since 1970, so that nothing here waits.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from runner.base.console import LOGGER
from runner.base.reasons import reason_of
from runner.evaluation.image_features import FeatureCounter, ImageFeatures
from runner.run.image_profile import FEATURES, ImageProfile
from runner.tools.drift.drift_measures import DriftReport, compare_with_reference

_NUM_PARTS = 24  # the window slides by this part of its length
_PENDING = 512  # counting many images at once is hundreds of times faster than one by one


class SeenImage(Protocol):
    """What is known of an image that was answered; see :class:`runner.tools.serve.observation.Observation`."""

    @property
    def brightness(self) -> float:
        """As of the reference."""

    @property
    def width(self) -> int:
        """In pixels."""

    @property
    def height(self) -> int:
        """In pixels."""

    @property
    def confidence(self) -> float:
        """Of the predicted class; not a number where the model's scores are not."""

    @property
    def predicted(self) -> int:
        """Index of the class."""


class DriftWindow:
    """Counts of the images of the last hours."""

    def __init__(self, reference: ImageProfile, *, threshold: float, window_seconds: float) -> None:
        """Count nothing yet.

        Args:
            reference: of the package.
            threshold: see :func:`runner.tools.drift.drift_measures.compare_with_reference`.
            window_seconds: how long an image counts; one in 24 parts more, as the window slides by that.
        """
        self._reference = reference
        self._threshold = threshold
        self._part_seconds = window_seconds / _NUM_PARTS
        self._parts: deque[tuple[int, FeatureCounter]] = deque()
        self._pending: list[SeenImage] = []

    def add(self, images: Sequence[SeenImage], now: float) -> None:
        """Count images; those without finite scores are left out."""
        number = int(now // self._part_seconds)
        if not self._parts or self._parts[-1][0] != number:
            self._count()
            self._parts.append((number, FeatureCounter(self._reference)))
            self._forget(number)
        self._pending += images
        if len(self._pending) >= _PENDING:
            self._count()

    def report(self, now: float) -> DriftReport | None:
        """How far the images of the window have drifted; None where there are none."""
        self._count()
        self._forget(int(now // self._part_seconds))
        counters = [counter for _, counter in self._parts]
        num_images = sum(counter.num_images for counter in counters)
        if num_images == 0:
            return None
        counts = {name: np.sum([counter.counts[name] for counter in counters], axis=0) for name in FEATURES}
        return compare_with_reference(self._reference, counts, num_images, self._threshold)

    def _count(self) -> None:
        seen = [image for image in self._pending if np.isfinite(image.confidence)]
        self._pending = []
        if seen:
            features = ImageFeatures(
                brightness=np.array([image.brightness for image in seen]),
                width=np.array([image.width for image in seen]),
                height=np.array([image.height for image in seen]),
                confidence=np.array([image.confidence for image in seen]),
                predicted=np.array([image.predicted for image in seen]),
            )
            self._parts[-1][1].add(features)

    def _forget(self, number: int) -> None:
        while self._parts and self._parts[0][0] < number - _NUM_PARTS:
            self._parts.popleft()


class DriftWatch:
    """Watches the version that a server serves; one that comes after it has a window of its own."""

    def __init__(
        self, *, threshold: float, window_seconds: float, log_file: Path | None, clock: Callable[[], float]
    ) -> None:
        """Watch nothing yet.

        Args:
            threshold: of the population stability index.
            window_seconds: length of the window, and of the period of a line.
            log_file: to which a line is appended after each period; None: to the log.
            clock: gives the time in seconds since 1970.
        """
        self._threshold = threshold
        self._window_seconds = window_seconds
        self._log_file = log_file
        self._clock = clock
        self._labels: dict[str, str] | None = None
        self._window: DriftWindow | None = None
        self._since = 0.0

    def observe(self, labels: dict[str, str], reference: ImageProfile | None, images: Sequence[SeenImage]) -> None:
        """Count the images of a batch.

        Args:
            labels: name and version of the model that has scored it.
            reference: of its package; None: it has none, and is not watched.
            images: those of the batch that were answered.
        """
        now = self._clock()
        if labels != self._labels:
            self.write_line()
            self._labels, self._since = labels, now
            self._window = None
            if reference is None:
                LOGGER.warning("%s has no reference, so its drift is not watched", " ".join(labels.values()))
            else:
                self._window = DriftWindow(reference, threshold=self._threshold, window_seconds=self._window_seconds)
        if self._window is not None:
            self._window.add(images, now)

    def report(self) -> DriftReport | None:
        """How far the images of the window have drifted; None where there are none, or the package has no reference."""
        return self._window.report(self._clock()) if self._window is not None else None

    @property
    def has_drifted(self) -> bool:
        """Whether a feature has drifted, and there are images enough to say so."""
        report = self.report()
        return report is not None and bool(report.drifted) and not report.has_few_images

    def seconds_to_next_line(self) -> float:
        """Until the next multiple of the window's length since 1970: for a day, until midnight UTC."""
        return self._window_seconds - self._clock() % self._window_seconds

    def write_line(self) -> None:
        """Write the line of the window, if there were images in it; a file that can't be written is a warning."""
        report, now = self.report(), self._clock()
        if report is None or self._labels is None:
            return
        times = {"from": _iso(max(self._since, now - self._window_seconds)), "to": _iso(now)}
        line = json.dumps({**times, "model": self._labels, **report.to_json()})
        if self._log_file is None:
            LOGGER.info("drift       %s", line)
            return
        try:
            with self._log_file.open("a", encoding="utf-8") as stream:
                stream.write(f"{line}\n")
        except OSError as error:
            LOGGER.warning("the drift can't be written to %s (%s): %s", self._log_file, reason_of(error), line)

    def collect(self) -> Iterator[Metric]:
        """The gauges, as prometheus_client asks for them."""
        report = self.report()
        num_images = GaugeMetricFamily("runner_drift_images", "Images in the window that drift is measured over")
        num_images.add_metric((), report.num_images if report is not None else 0)
        yield num_images
        if report is None:
            return
        least = GaugeMetricFamily("runner_drift_least_images", "Images that the window needs for its threshold")
        least.add_metric((), report.least_images if report.least_images is not None else float("inf"))
        yield least
        gauges: dict[str, tuple[str, Callable[[Any], float]]] = {
            "runner_drift_psi": ("Population stability index against the validation images", lambda one: one.psi),
            "runner_drift_p_value": ("P-value of the two-sample test against them", lambda one: one.p_value),
            "runner_drift_drifted": ("1 where both say that a feature has drifted", lambda one: one.has_drifted),
        }
        for name, (meaning, value) in gauges.items():
            family = GaugeMetricFamily(name, meaning, labels=["feature"])
            for one in report.features:
                family.add_metric((one.feature,), float(value(one)))
            yield family


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
