"""The range test of trainer.find_lr: steps with a growing learning rate before the training, which are undone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from runner.base.console import LOGGER
from runner.base.files import write_atomic, write_json
from runner.evaluation.drawing import drawn
from runner.optimizer import peak_learning_rate
from runner.run.run_folder import RunFolder
from runner.trainer.loop import Trainer
from runner.trainer.meter import Meter
from runner.trainer.progress import Progress
from runner.trainer.state import TrainingState

NUM_STEPS = 100
_LOWEST, _HIGHEST = 1e-7, 10.0
_MEMORY = 0.9  # of the moving average over the losses
_DIVERGED = 4.0  # times the lowest loss
_NUM_SKIPPED = 10  # the first losses, over which the average has hardly begun


def run_range_test(trainer: Trainer, folder: RunFolder) -> None:
    """Train with rates that grow evenly on a logarithmic scale, record the losses, and undo all of it.

    Smith 2017, "Cyclical Learning Rates for Training Neural Networks", arXiv:1506.01186, section 3.3. It ends after
    100 steps, when the loss is four times its lowest or not finite, or with the images of trainer.epochs. The rates
    are those of optimizer.lr, before scaling with the world size. Every process must call it, before the training.

    Writes range_test.json and range_test.png to the run folder.
    """
    config, placement = trainer.config, trainer.placement
    scaling = peak_learning_rate(config.optimizer, placement.dist.world_size) / config.optimizer.lr
    rates = np.geomspace(_LOWEST, _HIGHEST, NUM_STEPS).tolist()
    with undone(trainer.state):
        losses = list(_losses(trainer, [rate * scaling for rate in rates]))
    trainer.images.bad_train.reset()
    if not placement.dist.is_main:
        return
    found = {"optimizer.lr": rates[: len(losses)], "train_loss": losses, "smoothed_loss": smoothed(losses)}
    suggestion = steepest(found["optimizer.lr"], found["smoothed_loss"])
    write_json(folder.path / "range_test.json", {**found, "suggestion": suggestion})
    write_atomic(folder.path / "range_test.png", _picture(found, suggestion))
    if suggestion is None:
        LOGGER.info(
            "range test  no suggestion: %d steps are too few, or the loss never fell; see range_test.png", len(losses)
        )
    else:
        LOGGER.info("range test  the loss falls fastest at optimizer.lr=%.2g; see range_test.png", suggestion)


@contextmanager
def undone(state: TrainingState) -> Iterator[None]:
    """Put the state of a training that has not begun back at the end of the block."""
    model, optimizer = deepcopy(state.model.state_dict()), deepcopy(state.optimizer.state_dict())
    scaler, average = state.scaler.state_dict(), None if state.ema is None else deepcopy(state.ema.module.state_dict())
    device = next(state.model.parameters()).device
    try:
        yield
    finally:
        state.model.load_state_dict(model)
        state.optimizer.load_state_dict(optimizer)
        if scaler:
            state.scaler.load_state_dict(scaler)
        if state.ema is not None and average is not None:
            state.ema.module.load_state_dict(average)
            state.ema.num_updates = 0
        state.progress, state.meter, state.learning_rate = Progress(), Meter(device), 0.0


def _losses(trainer: Trainer, rates: list[float]) -> Iterator[float]:
    """The mean loss of each step over all processes, until it diverges or the images end."""
    state, images, dist = trainer.state, trainer.images, trainer.placement.dist
    epochs, lowest, average = trainer.config.trainer.epochs, math.inf, Average()
    trainer.stepper.begin_epoch()
    with closing(images.train_batches.stream(0, 0, epochs)) as stream:
        for rate in rates:
            if images.is_epoch_over(state.progress):
                state.progress.epoch, state.progress.position = state.progress.epoch + 1, 0
                if state.progress.epoch == epochs:
                    return
                trainer.stepper.begin_epoch()
            state.meter = Meter(dist.device)
            trainer.stepper.take(stream, rate)
            totals = state.meter.read_all(dist)
            if totals.count == 0 or not math.isfinite(totals.mean_loss):
                return
            yield totals.mean_loss
            average.add(totals.mean_loss)
            lowest = min(lowest, average.value)
            if average.value > _DIVERGED * lowest:
                return


class Average:
    """An exponential moving average that is corrected for its start at zero, as in Adam (Kingma and Ba 2015)."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    def add(self, value: float) -> None:
        """Take a value into account."""
        self._sum = _MEMORY * self._sum + (1 - _MEMORY) * value
        self._count += 1

    @property
    def value(self) -> float:
        """The average."""
        return self._sum / (1 - _MEMORY**self._count)


def smoothed(losses: list[float]) -> list[float]:
    """The moving average after each loss."""
    average, found = Average(), []
    for loss in losses:
        average.add(loss)
        found.append(average.value)
    return found


def steepest(rates: list[float], losses: list[float]) -> float | None:
    """The rate at which the loss falls fastest per step; None of fewer than 20 losses, or where it never falls."""
    if len(losses) < 2 * _NUM_SKIPPED:
        return None
    slopes = np.gradient(losses)[_NUM_SKIPPED:-1]
    place = int(slopes.argmin())
    return rates[_NUM_SKIPPED + place] if slopes[place] < 0 else None


def _picture(found: dict[str, Any], suggestion: float | None) -> bytes:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(found["optimizer.lr"], found["train_loss"], color="0.8", label="loss of a step")
    axes.plot(found["optimizer.lr"], found["smoothed_loss"], label="moving average")
    if suggestion is not None:
        axes.axvline(suggestion, linestyle="--", color="C1", label=f"falls fastest: {suggestion:.2g}")
    axes.set(xscale="log", xlabel="optimizer.lr", ylabel="training loss")
    axes.legend()
    return drawn(figure, "png", dpi=120)
