"""The progress of a training: a few integers and the best epoch so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Weights = Literal["raw", "ema"]


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best epoch so far, by the monitored metric."""

    metric: str
    value: float
    epoch: int
    checkpoint: str
    """Name of the checkpoint with its weights."""
    weights: Weights
    """Whether the raw weights or their moving average reached the value."""


@dataclass(kw_only=True)
class Progress:
    """How far a training is, and its best epoch."""

    epoch: int = 0
    """Epochs that are finished, evaluation included."""
    position: int = 0
    """Images of the epoch in progress that were trained on, over all processes: an index into the epoch's order."""
    step: int = 0
    """Optimizer steps since the start of the run."""
    best: Best | None = None
    lowest_val_loss: float | None = None
    epochs_without_improvement: int = 0
    """Epochs since the validation loss was lower than ever before."""

    def improves(self, metric: str, value: float) -> bool:
        """Whether a value of the monitored metric is better than the best so far; a tie is not."""
        if self.best is None or self.best.metric != metric:
            return True  # a resumed run may monitor another metric than before
        return value < self.best.value if metric == "val_loss" else value > self.best.value

    def advance(self, position: int) -> None:
        """Count an optimizer step, which ended at this position of the epoch's order."""
        self.position = position
        self.step += 1

    def end_epoch(self, candidates: Iterable[Best], val_loss: float) -> None:
        """Finish the epoch in progress.

        Args:
            candidates: the epoch's weights and their metrics; of a tie with the best so far, the earlier one stays.
            val_loss: trainer.patience counts the epochs without a new *lowest* one.
        """
        self.epoch += 1
        self.position = 0
        for candidate in candidates:
            if self.improves(candidate.metric, candidate.value):
                self.best = candidate
        if self.lowest_val_loss is None or val_loss < self.lowest_val_loss:
            self.lowest_val_loss = val_loss
            self.epochs_without_improvement = 0
        else:
            self.epochs_without_improvement += 1

    def to_json(self) -> dict[str, Any]:
        """Values for state.json; floats survive JSON exactly."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Progress:
        """The inverse of :meth:`to_json`."""
        best = values["best"]
        return cls(**{**values, "best": Best(**best) if best is not None else None})
