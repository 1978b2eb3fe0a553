"""What becomes of a run whose best checkpoint is damaged: the best of what is left takes its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.base.console import LOGGER
from runner.base.errors import CheckpointError
from runner.run.checkpoint import CheckpointStore, checkpoint_name, verify
from runner.run.contents import read_rows
from runner.run.run_folder import timestamp
from runner.trainer.progress import Best, Progress, Weights

METRICS_FILE = "metrics.jsonl"


def whole_best(store: CheckpointStore, best: Best, num_epochs: int) -> tuple[Best | None, dict[str, Any] | None]:
    """The best checkpoint if it is whole, else the best of those that are, by the metrics of their epochs.

    Changes nothing.

    Args:
        store: the checkpoints.
        best: the best so far.
        num_epochs: how many epochs of metrics.jsonl count.

    Returns:
        The best, None where nothing is known of the checkpoints that are left; and what run.json is to tell of a
        damage.
    """
    try:
        verify(store.folder / best.checkpoint)
    except CheckpointError as damage:
        left = _best_left(store, best, num_epochs)
        instead = "not known" if left is None else f"{left.checkpoint} with {left.metric} = {left.value:.6g}"
        LOGGER.warning("%s; it was the best, and is put aside: the best of what is left is %s", damage, instead)
        told = {
            "checkpoint": best.checkpoint,
            "problem": str(damage),
            "instead": left.checkpoint if left is not None else None,
            "found": timestamp(),
        }
        return left, told
    return best, None


def _best_left(store: CheckpointStore, damaged: Best, num_epochs: int) -> Best | None:
    found = Progress()
    for row in read_rows(store.folder.parent / METRICS_FILE):
        name = _checkpoint_of(row, store) if row["epoch"] <= num_epochs else None
        if name is None or name == damaged.checkpoint:
            continue
        for weights, value, file in _values(row, damaged.metric):
            if found.improves(damaged.metric, value) and (store.folder / name / file).is_file():
                found.best = Best(
                    metric=damaged.metric, value=value, epoch=row["epoch"], checkpoint=name, weights=weights
                )
    return found.best


def _checkpoint_of(row: dict[str, Any], store: CheckpointStore) -> str | None:
    """The whole checkpoint with the weights that a row was measured on, if there is one."""
    epoch, step = row["epoch"], row.get("step")
    if step is None or epoch == 0:
        return None
    # Of an epoch that trainer.max_steps has cut, the checkpoint is one of its midst.
    for name in (checkpoint_name(epoch, step), checkpoint_name(epoch - 1, step)):
        if name in store.names():
            try:
                verify(store.folder / name)
            except CheckpointError as damage:
                LOGGER.warning("%s", damage)
            else:
                return name
    return None


def _values(row: dict[str, Any], metric: str) -> list[tuple[Weights, float, Path]]:
    """What the raw weights and their average reached in an epoch, in the order in which training compares them."""
    kinds: tuple[tuple[Weights, str, str], ...] = (
        ("raw", metric, "model.safetensors"),
        ("ema", metric.replace("val_", "val_ema_", 1), "ema.safetensors"),
    )
    return [(weights, float(row[key]), Path(file)) for weights, key, file in kinds if row.get(key) is not None]
