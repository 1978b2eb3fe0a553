"""Writes the metrics of a training to the terminal, metrics.jsonl, run.json and TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runner.base.console import LOGGER, ProgressLine
from runner.config.schema import Config
from runner.run.run_folder import RunFolder
from runner.run.tensorboard import TensorBoardLog
from runner.trainer.progress import Best

_COLUMNS = {
    "epoch": 7,
    "lr": 9,
    "train_loss": 10,
    "train_top1": 11,
    "val_loss": 8,
    "val_top1": 9,
    "val_top5": 9,
    "rate": 8,
    "time": 7,
}
"""Width of each column."""
_HEADER = {
    "epoch": "epoch",
    "lr": "lr",
    "train_loss": "train loss",
    "train_top1": "train top-1",
    "val_loss": "val loss",
    "val_top1": "val top-1",
    "val_top5": "val top-5",
    "rate": "images/s",
    "time": "seconds",
}


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """Metrics of the steps since the last report, every trainer.print_every steps."""

    epoch: int
    """The epoch in progress, from 1."""
    step: int
    step_in_epoch: int
    steps_per_epoch: int
    learning_rate: float
    loss: float
    """Mean per image, in this process."""
    top1: float
    """Share of right first guesses, in [0, 1], in this process."""
    images_per_second: float
    """Over all processes."""


class Recorder:
    """Writes the metrics of a training; only the main process has one."""

    def __init__(
        self,
        folder: RunFolder,
        tensorboard: TensorBoardLog,
        line: ProgressLine,
        num_epochs: int,
        *,
        has_top5: bool,
        after_epoch: Callable[[Path], None] | None = None,
    ) -> None:
        self._folder = folder
        self._tensorboard = tensorboard
        self._line = line
        self._num_epochs = num_epochs
        self._after_epoch = after_epoch
        self._has_header = False
        self._columns = {name: width for name, width in _COLUMNS.items() if has_top5 or name != "val_top5"}
        self._scores = ("loss", "top1", "top5") if has_top5 else ("loss", "top1")

    def step(self, report: StepReport) -> None:
        """Write a report within an epoch to the terminal and TensorBoard."""
        detail = f"loss {report.loss:.4f}  top-1 {report.top1:.1%}  {report.images_per_second:,.0f} images/s"
        label = f"epoch {report.epoch}/{self._num_epochs}"
        self._line.update(label, detail, report.step_in_epoch, report.steps_per_epoch)
        values = {
            "learning_rate": report.learning_rate,
            "train/loss": report.loss,
            "train/top1": report.top1,
            "train/images_per_second": report.images_per_second,
        }
        self._tensorboard.scalars(values, report.step)

    def epoch(self, row: dict[str, Any], best: Best | None) -> None:
        """Write the metrics of an epoch: first to the run folder, then to the terminal and TensorBoard."""
        self._folder.append_metrics(row)
        self._folder.update(best=summary_of_best(best))
        self._line.clear()
        is_best = best is not None and best.epoch == row["epoch"]
        if not self._has_header:
            LOGGER.info("%s", self._row(_HEADER))
            self._has_header = True
        LOGGER.info("%s%s", self._row(self._cells(row)), "  best" if is_best else "")
        tags = {f"val/{key}": f"val_{key}" for key in self._scores}
        tags |= {f"val_ema/{key}": f"val_ema_{key}" for key in self._scores if f"val_ema_{key}" in row}
        values = {tag: row[key] for tag, key in tags.items()}
        values["time/data_wait_fraction"] = row["data_wait_seconds"] / row["train_seconds"]
        self._tensorboard.scalars(values, row["step"])
        if self._after_epoch is not None:
            self._after_epoch(self._folder.path)

    def warn(self, sentences: Iterable[str]) -> None:
        """Write warnings for the user to run.json."""
        if warnings := list(sentences):
            self._folder.update(warnings=warnings)

    def images(self, images: torch.Tensor) -> None:
        """Write augmented training images, N × channels × H × W, to TensorBoard."""
        if len(images):  # all of the first ones may be bad
            self._tensorboard.images("train/augmented", images)

    def end(self, config: Config, best: Best, step: int) -> None:
        """Write the hyperparameters with the best value of the monitored metric to TensorBoard."""
        parameters = _flat({key: value for key, value in config.to_save().items() if key != "sweep"})
        self._tensorboard.hparams(parameters, {f"best/{best.metric}": best.value}, step)

    def _row(self, cells: Mapping[str, str]) -> str:
        return "  ".join(f"{cells[name]:>{width}}" for name, width in self._columns.items())

    def _cells(self, row: dict[str, Any]) -> dict[str, str]:
        return {
            "epoch": f"{row['epoch']}/{self._num_epochs}",
            "lr": f"{row['lr']:.3g}",
            "train_loss": f"{row['train_loss']:.4f}",
            "train_top1": f"{row['train_top1']:.2%}",
            "val_loss": f"{row['val_loss']:.4f}",
            "val_top1": f"{row['val_top1']:.2%}",
            "val_top5": f"{row['val_top5']:.2%}",
            "rate": f"{row['train_images_per_second']:,.0f}",
            "time": f"{row['epoch_seconds']:.1f}",
        }


def summary_of_best(best: Best | None) -> dict[str, Any] | None:
    """The best epoch as an entry of run.json."""
    if best is None:
        return None
    return {"metric": best.metric, "value": best.value, "epoch": best.epoch, "weights": best.weights}


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
