from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest

from runner.evaluation.image_features import ImageFeatures, profile_of
from runner.tools.drift.drift_window import DriftWatch, DriftWindow

HOUR = 3600.0
DAY = 24 * HOUR


def seen(num_images: int, seed: int, shift: float = 0.0, confidence: float = 0.9) -> list[SimpleNamespace]:
    draw = np.random.default_rng(seed)
    return [
        SimpleNamespace(brightness=value, width=8, height=8, confidence=confidence, predicted=number % 2)
        for number, value in enumerate((draw.normal(0.5 + shift, 0.05, num_images)).tolist())
    ]


REFERENCE = profile_of(
    ImageFeatures(
        brightness=np.random.default_rng(0).normal(0.5, 0.05, 1000),
        width=np.full(1000, 8),
        height=np.full(1000, 8),
        confidence=np.full(1000, 0.9),
        predicted=np.arange(1000) % 2,
    ),
    2,
)


@pytest.fixture
def window() -> DriftWindow:
    return DriftWindow(REFERENCE, threshold=0.25, window_seconds=DAY)


def test_images_leave_the_window(window):
    assert window.report(0.0) is None
    window.add(seen(600, 1), 0.0)
    window.add(seen(400, 2, shift=0.3), 12 * HOUR)
    both = window.report(12 * HOUR)
    assert (both.num_images, both.drifted) == (1000, ("brightness",))
    assert window.report(DAY).num_images == 1000, "a line at midnight has all of its day"
    later = window.report(DAY + HOUR)
    assert later.num_images == 400, "those of the first hour are more than a day old"
    assert window.report(3 * DAY) is None


def test_many_small_batches_count_like_one(window):
    images = seen(1500, 3)
    for start in range(0, 1500, 7):
        window.add(images[start : start + 7], 50.0 * start)
    other = DriftWindow(REFERENCE, threshold=0.25, window_seconds=DAY * 10)
    other.add(images, 0.0)
    assert window.report(0.0).features == other.report(0.0).features


def test_an_image_without_scores_is_not_counted(window):
    window.add(seen(10, 1, confidence=float("nan")), 0.0)
    assert window.report(0.0) is None
    window.add([*seen(3, 1, confidence=float("nan")), *seen(2, 1)], 0.0)
    assert window.report(0.0).num_images == 2


@pytest.fixture
def now() -> SimpleNamespace:
    return SimpleNamespace(seconds=10 * DAY + HOUR)


@pytest.fixture
def watch(now, tmp_path) -> DriftWatch:
    file = tmp_path / "drift.jsonl"
    return DriftWatch(threshold=0.25, window_seconds=DAY, log_file=file, clock=lambda: now.seconds)


BIRDS = {"name": "birds", "version": "3"}


def test_a_line_says_how_far(watch, now, tmp_path):
    watch.write_line()
    assert not (tmp_path / "drift.jsonl").exists(), "nothing was seen yet"
    watch.observe(BIRDS, REFERENCE, seen(500, 1, shift=0.3))
    assert watch.seconds_to_next_line() == 23 * HOUR
    now.seconds += 23 * HOUR
    watch.write_line()
    (line,) = (tmp_path / "drift.jsonl").read_text().splitlines()
    values = json.loads(line)
    assert (values["from"], values["to"]) == ("1970-01-11T01:00:00+00:00", "1970-01-12T00:00:00+00:00")
    assert (values["model"], values["num_images"], values["drifted"]) == (BIRDS, 500, ["brightness"])
    assert values["features"]["brightness"]["psi"] > 1


def test_another_version_begins_anew(watch, tmp_path):
    watch.observe(BIRDS, REFERENCE, seen(500, 1, shift=0.3))
    assert watch.has_drifted
    watch.observe({**BIRDS, "version": "4"}, REFERENCE, seen(300, 2))
    assert not watch.has_drifted
    assert watch.report().num_images == 300
    (line,) = (tmp_path / "drift.jsonl").read_text().splitlines()
    assert json.loads(line)["model"] == BIRDS


def test_few_images_take_no_server_out_of_service(watch):
    watch.observe(BIRDS, REFERENCE, seen(20, 1, shift=0.3))
    assert watch.report().drifted == ("brightness",)
    assert not watch.has_drifted


def test_a_package_without_a_reference_is_said_once(watch, caplog):
    with caplog.at_level(logging.WARNING, "runner"):
        for _ in range(2):
            watch.observe(BIRDS, None, seen(500, 1))
    assert [record.getMessage() for record in caplog.records] == [
        "birds 3 has no reference, so its drift is not watched"
    ]
    assert watch.report() is None


def test_a_line_that_cannot_be_written_is_a_warning(watch, tmp_path, caplog):
    (tmp_path / "drift.jsonl").mkdir()
    watch.observe(BIRDS, REFERENCE, seen(50, 1))
    with caplog.at_level(logging.WARNING, "runner"):
        watch.write_line()
    assert "can't be written" in caplog.text and '"num_images": 50' in caplog.text


def test_the_gauges_are_those_of_the_report(watch):
    registry = CollectorRegistry()
    registry.register(watch)
    assert b"runner_drift_images 0.0" in generate_latest(registry)
    watch.observe(BIRDS, REFERENCE, seen(500, 1, shift=0.3))
    page = generate_latest(registry).decode()
    assert "runner_drift_images 500.0" in page
    assert 'runner_drift_drifted{feature="brightness"} 1.0' in page
    assert 'runner_drift_drifted{feature="width"} 0.0' in page
    (psi,) = (
        line.split()[1] for line in page.splitlines() if line.startswith('runner_drift_psi{feature="brightness"}')
    )
    assert float(psi) == watch.report().features[0].psi
