from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from runner.evaluation.image_features import FeatureCounter, ImageFeatures, profile_of
from runner.tools.drift.drift_measures import (
    chi_square,
    compare_with_reference,
    kolmogorov_smirnov,
    population_stability_index,
)


def features(num_images: int, seed: int, *, shift: float = 0.0, width: int = 640) -> ImageFeatures:
    draw = np.random.default_rng(seed)
    return ImageFeatures(
        brightness=draw.normal(0.5 + shift, 0.1, num_images).clip(0, 1),
        width=np.full(num_images, width),
        height=np.full(num_images, 480),
        confidence=draw.beta(5, 1, num_images),
        predicted=draw.integers(0, 4, num_images),
    )


def report_of(found: ImageFeatures, *, num_reference: int = 2000, threshold: float = 0.25):
    reference = profile_of(features(num_reference, 0), 4)
    counter = FeatureCounter(reference)
    counter.add(found)
    return compare_with_reference(reference, counter.counts, counter.num_images, threshold)


def test_the_index_is_the_sum_of_its_formula():
    before, now = np.array([100, 200, 700]), np.array([300, 300, 400])
    shares = [(counts / 1000 + 0.0005) / 1.0015 for counts in (before, now)]
    expected = sum((q - p) * np.log(q / p) for p, q in zip(*shares, strict=True))
    assert population_stability_index(before, now) == pytest.approx(expected)
    assert population_stability_index(before, before // 10) == pytest.approx(0), "the size of a sample is no change"


def test_the_tests_are_those_of_scipy():
    before, now = np.array([30, 50, 20, 0]), np.array([40, 10, 45, 5])
    assert chi_square(before, now) == pytest.approx(
        stats.chi2_contingency(np.stack((before, now)), correction=False)[:2]
    )
    samples = [np.repeat(np.arange(4), counts) for counts in (before, now)]
    statistic, p_value = kolmogorov_smirnov(before, now)
    assert statistic == pytest.approx(stats.ks_2samp(*samples).statistic)
    assert p_value == pytest.approx(stats.kstwobign.sf(statistic * np.sqrt(50)))


def test_rare_classes_are_counted_as_one():
    before, now = np.array([500, 490, 5, 3, 2]), np.array([50, 48, 0, 1, 1])
    pooled = np.array([[500, 490, 10], [50, 48, 2]])
    assert chi_square(before, now) == pytest.approx(stats.chi2_contingency(pooled, correction=False)[:2])
    assert chi_square(np.array([9, 0]), np.array([4, 0])) == (0.0, 1.0)


@pytest.mark.parametrize("seed", range(1, 6))
def test_other_images_of_the_same_kind_have_not_drifted(seed):
    report = report_of(features(500, seed))
    assert report.drifted == ()
    assert not report.has_few_images
    assert all(one.psi < 0.1 for one in report.features)


@pytest.mark.parametrize(
    ("change", "drifted"), [({"shift": 0.2}, ("brightness",)), ({"width": 320}, ("width", "aspect_ratio"))]
)
def test_a_change_is_found_where_it_is(change, drifted):
    assert report_of(features(500, 1, **change)).drifted == drifted


def test_the_index_by_chance_is_exceeded_by_one_in_twenty_samples():
    found = [report_of(features(300, seed)).features[0] for seed in range(200)]
    assert 0.01 < np.mean([one.psi > one.psi_by_chance for one in found]) < 0.1


def test_few_images_are_said():
    report = report_of(features(20, 1))
    assert report.has_few_images
    assert report.least_images is not None and 20 < report.least_images < 200
    assert not report_of(features(report.least_images, 1)).has_few_images
    assert report_of(features(500, 1), num_reference=30).least_images is None
    assert report.to_json()["has_few_images"] is True
