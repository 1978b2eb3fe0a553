import pytest
from pydantic import ValidationError

from runner.run.image_profile import FEATURES, Histogram, ImageProfile

SIZE = Histogram(edges=(8.0, 8.5), counts=(0, 2, 0))
PROFILE = ImageProfile(
    num_images=2,
    brightness=Histogram(edges=(0.25, 0.5, 0.75), counts=(0, 1, 1, 0)),
    width=SIZE,
    height=SIZE,
    aspect_ratio=SIZE,
    confidence=SIZE,
    predicted_class=(0, 2),
)


def test_each_feature_counts_each_image():
    assert all(sum(PROFILE.counts_of(name)) == 2 for name in FEATURES)
    assert PROFILE.counts_of("predicted_class") == (0, 2)


def test_it_comes_back_from_json():
    assert ImageProfile.model_validate_json(PROFILE.model_dump_json()) == PROFILE


def test_counts_below_zero_are_refused():
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        Histogram(edges=(8.0, 8.5), counts=(-1, 3, 0))
