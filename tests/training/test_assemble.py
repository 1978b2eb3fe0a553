"""The preprocessing that a run takes: that of published weights, or that of its config."""

from __future__ import annotations

import pytest

from runner.library import load_config
from runner.training.assemble import effective_data

V2 = ("data=folder", "data.root=photos", "model=resnet50", "model.weights=IMAGENET1K_V2", "data.image_size=64")


def test_published_weights_bring_their_preprocessing_unless_told_otherwise(messages) -> None:
    own = "data.normalize={mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}"
    followed = effective_data(load_config([*V2, own]))
    assert followed.normalize.mean == (0.485, 0.456, 0.406)
    assert followed.eval_transforms[0].crop_fraction == pytest.approx(224 / 232)
    assert "preprocessing follows the weights" in "\n".join(messages)
    config = load_config([*V2, own, "data.follow_weights=false"])
    assert effective_data(config) == config.data
    assert config.data.normalize.mean == (0.5, 0.5, 0.5)
    assert "data.follow_weights=false" in "\n".join(messages)


def test_of_other_channels_the_weights_bring_no_mean(messages) -> None:
    grey = ("data.channels=1", "data.normalize.mean=[0.4]", "data.normalize.std=[0.2]")
    followed = effective_data(load_config([*V2, *grey]))
    assert (followed.normalize.mean, followed.normalize.std) == ((0.4,), (0.2,))
    assert followed.eval_transforms[0].crop_fraction == pytest.approx(224 / 232)
    assert "mean and std are those of data.normalize" in "\n".join(messages)
