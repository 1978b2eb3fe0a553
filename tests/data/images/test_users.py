from __future__ import annotations

import pytest
import torch

from runner.base.errors import ConfigError
from runner.config.schema.transforms import CustomTransform
from runner.data.images import users
from runner.data.images.users import UserTransform

IMAGE = torch.full((3, 5, 4), 7, dtype=torch.uint8)


def transform(monkeypatch: pytest.MonkeyPatch, step: object) -> UserTransform:
    monkeypatch.setattr(users, "call_part", lambda *_: step)
    return UserTransform(CustomTransform(name="custom", part="mine"))


def test_an_image_goes_through_the_users_function(monkeypatch):
    assert torch.equal(transform(monkeypatch, lambda image: image + 1)(IMAGE), IMAGE + 1)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (None, "returned a NoneType; it must return a function of an image"),
        (lambda image: 1 / 0, "failed: ZeroDivisionError: division by zero"),
        (lambda image: None, "returned a NoneType; it must return a tensor"),
        (lambda image: image[:1], r"returned torch.uint8 of shape \(1, 5, 4\); it must keep torch.uint8 of shape"),
        (lambda image: image / 255, r"returned torch.float32 of shape \(3, 5, 4\); it must keep torch.uint8"),
    ],
)
def test_a_function_that_is_no_transform_is_named(monkeypatch, step, told):
    with pytest.raises(ConfigError, match=rf"part = 'mine': this transform {told}"):
        transform(monkeypatch, step)(IMAGE)
