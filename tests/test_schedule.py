import math

import pytest
import torch

from runner.config.schema.schedule import ConstantConfig, CosineConfig, PiecewiseConfig, PolyConfig, StepConfig
from runner.schedule import learning_rate


def poly(**changes):
    values = {"name": "poly", "warmup_epochs": 0, "start_lr": 1e-4, "interval": "epoch", "power": 2.0, "end_lr": 1e-7}
    return PolyConfig(**{**values, **changes})


# From the specification of the schedule, to four significant digits.
@pytest.mark.parametrize(
    ("warmup", "expected"),
    [
        (0, [1e-3, 6.4e-4, 3.601e-4, 1.601e-4, 4.01e-5]),
        (2, [1e-4, 5.5e-4, 1e-3, 4.445e-4, 1.112e-4]),
    ],
)
def test_poly_per_epoch_gives_the_documented_rates(warmup, expected):
    config = poly(warmup_epochs=warmup)
    rates = [learning_rate(config, peak=0.001, epoch=epoch, epochs=5) for epoch in range(5)]
    assert [float(f"{rate:.4g}") for rate in rates] == pytest.approx(expected, rel=1e-4)


BASE = {"warmup_epochs": 1, "start_lr": 0.1, "interval": "step"}


# (schedule, progress in epochs of 4, expected rate at peak 1)
@pytest.mark.parametrize(
    ("config", "epoch", "expected"),
    [
        (poly(interval="step", power=1.0, end_lr=0.0), 1.0, 0.75),
        (poly(interval="step", power=1.0, end_lr=0.0), 4.0, 0.0),
        (poly(interval="step", power=2.0, end_lr=0.2), 2.0, 0.8 * 0.25 + 0.2),
        (CosineConfig(name="cosine", end_lr=0.0, **BASE), 1.0, 1.0),
        (CosineConfig(name="cosine", end_lr=0.0, **BASE), 2.5, 0.5),
        (CosineConfig(name="cosine", end_lr=0.0, **BASE), 2.0, 0.5 * (1 + math.cos(math.pi / 3))),
        (CosineConfig(name="cosine", end_lr=0.25, **BASE), 4.0, 0.25),
        (StepConfig(name="step", step_epochs=1.5, gamma=0.1, **BASE), 1.25, 1.0),
        (StepConfig(name="step", step_epochs=1.5, gamma=0.1, **BASE), 1.5, 0.1),
        (StepConfig(name="step", step_epochs=1.5, gamma=0.1, **BASE), 3.0, 0.01),
        (ConstantConfig(name="constant", **BASE), 0.0, 0.1),
        (ConstantConfig(name="constant", **BASE), 0.5, 0.55),
        (ConstantConfig(name="constant", **BASE), 3.9, 1.0),
    ],
)
def test_every_schedule_at_known_moments(config, epoch, expected):
    assert learning_rate(config, peak=1.0, epoch=epoch, epochs=4) == pytest.approx(expected)


def test_interval_epoch_holds_the_rate_within_an_epoch():
    config = poly(interval="epoch")
    assert learning_rate(config, peak=1.0, epoch=2.99, epochs=5) == learning_rate(config, peak=1.0, epoch=2, epochs=5)


def test_the_rate_never_goes_below_the_end_when_training_runs_over():
    assert learning_rate(poly(interval="step"), peak=1.0, epoch=6, epochs=5) == pytest.approx(1e-7)


def test_one_cycle_is_torchs():
    steps = 40
    points = ((0, 1 / 25), (1.2, 1), (4, 1e-4))
    config = PiecewiseConfig(name="piecewise", points=points, warmup_epochs=0, start_lr=0, interval="step")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 2.0, total_steps=steps + 1, pct_start=13 / 41, anneal_strategy="linear", final_div_factor=400
    )
    for step in range(steps):
        found = learning_rate(config, peak=2.0, epoch=step / 10, epochs=4)
        assert found == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-3), step
        optimizer.step()
        cycle.step()


def test_the_rate_stays_before_the_first_point_and_after_the_last():
    points = ((1, 0.5), (2, 1), (3, 0.1))
    config = PiecewiseConfig(name="piecewise", points=points, warmup_epochs=0, start_lr=0, interval="step")
    rates = [learning_rate(config, peak=2.0, epoch=epoch, epochs=4) for epoch in (0, 1, 1.5, 2, 2.5, 3, 3.9)]
    assert rates == pytest.approx([1, 1, 1.5, 2, 1.1, 0.2, 0.2])


def test_points_in_another_order_are_refused():
    with pytest.raises(ValueError, match="the epochs of the points must ascend"):
        PiecewiseConfig(name="piecewise", points=((2, 1), (1, 0)), warmup_epochs=0, start_lr=0, interval="step")
