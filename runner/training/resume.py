"""Resuming a training: the checkpoint, checks of the data set, the number format, the state of the run folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from runner.base.console import LOGGER
from runner.base.errors import CheckpointError
from runner.config.schema import Config
from runner.data.fingerprint import Content, content_differences, fingerprint
from runner.data.splits import Splits
from runner.dist.collectives import DistContext
from runner.dist.device import Precision, agreed_precision
from runner.run.checkpoint import Checkpoint, CheckpointStore, checkpoint_name, verify
from runner.run.contents import State, read_rows, validated
from runner.run.run_folder import RunFolder, read_record, timestamp
from runner.trainer.metrics_log import summary_of_best
from runner.trainer.progress import Best, Progress, Weights
from runner.trainer.state import CHECKPOINT_FORMAT
from runner.training.attempt import Attempt

_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
METRICS_FILE = "metrics.jsonl"


def find_checkpoint(
    splits: Splits, content: Content, store: CheckpointStore, *, dist: DistContext, attempt: Attempt
) -> Checkpoint | None:
    """The checkpoint from which all processes continue, or None for a start from scratch. Every process must call it.

    Changes nothing in the run folder.

    Args:
        splits: the data set as it is now.
        content: digests of its images; only the main process needs them.
        store: the run's checkpoints.
        dist: rank and process group.
        attempt: how the training was started.

    Raises:
        CheckpointError: all checkpoints are damaged, or the data set is not that of the run.
    """
    if not attempt.is_resumed:
        return None
    return _shared(_newest(splits, content, store, attempt) if dist.is_main else None, dist)


def _newest(splits: Splits, content: Content, store: CheckpointStore, attempt: Attempt) -> Checkpoint | None:
    """The newest undamaged checkpoint, after a check that the run can continue from it."""
    for note in attempt.notes:
        LOGGER.info("changed     %s", note)
    checkpoint, damages = store.newest_valid()
    for damage in damages:
        LOGGER.warning("%s; it is put aside", damage)
    if checkpoint is None:
        if damages:
            raise CheckpointError(f"{store.folder}: all {len(damages)} checkpoints are damaged; start a new run")
        return None
    if checkpoint.state.get("format") == CHECKPOINT_FORMAT:  # _check_belongs refuses any other
        validated(checkpoint.state, State, str(store.folder / checkpoint.name / "state.json"))
    _check_belongs(
        checkpoint.state,
        classes=splits.classes,
        data_fingerprint=fingerprint(splits),
        may_change=attempt.may_change_data,
    )
    if not attempt.may_change_data:
        _check_content(read_record(store.folder.parent), content)
    return _with_valid_best(checkpoint, store)


def _shared(checkpoint: Checkpoint | None, dist: DistContext) -> Checkpoint | None:
    """Broadcast the checkpoint that the main process has read, since others may not see its folder."""
    outline = None
    if checkpoint is not None:
        shapes = {
            stem: {name: (list(value.shape), str(value.dtype)) for name, value in group.items()}
            for stem, group in checkpoint.tensors.items()
        }
        outline = (checkpoint.name, checkpoint.state, shapes)
    outline = dist.broadcast_object(outline)
    if outline is None:
        return None
    name, state, shapes = outline
    if checkpoint is None:
        tensors = {
            stem: {name: torch.empty(shape, dtype=_DTYPES[dtype]) for name, (shape, dtype) in group.items()}
            for stem, group in shapes.items()
        }
        checkpoint = Checkpoint(name=name, state=state, tensors=tensors)
    dist.broadcast_tensors(value for group in checkpoint.tensors.values() for value in group.values())
    return checkpoint


def _check_belongs(state: dict[str, Any], *, classes: tuple[str, ...], data_fingerprint: str, may_change: bool) -> None:
    """Check that the data set is the one that the run was started with.

    Args:
        state: of the checkpoint.
        classes: of the data set as it is now.
        data_fingerprint: of the data set as it is now.
        may_change: whether resume.allow=[data] permits other images of the same classes.

    Raises:
        CheckpointError: naming the difference.
    """
    if state.get("format") != CHECKPOINT_FORMAT:
        found = str(state.get("format"))[:20]
        raise CheckpointError(
            f"the checkpoint has format {found}; this runner continues from format {CHECKPOINT_FORMAT}"
        )
    if tuple(state["classes"]) != classes:
        gone, new = sorted(set(state["classes"]) - set(classes)), sorted(set(classes) - set(state["classes"]))
        raise CheckpointError(
            f"the data set has other classes than the run was started with: gone {gone or 'none'}, new {new or 'none'}"
            "; start a new run"
        )
    if state["data_fingerprint"] != data_fingerprint and not may_change:
        raise CheckpointError(
            "the data set has other images than the run was started with (names, number or order differ), so that the "
            "run would continue with the wrong ones; restore the data set, start a new run, or permit it with "
            "'resume.allow=[data]'"
        )


def _with_valid_best(checkpoint: Checkpoint, store: CheckpointStore) -> Checkpoint:
    """The checkpoint; where the best one that it names is damaged, with another best one."""
    progress = Progress.from_json(checkpoint.state["progress"])
    if progress.best is None:
        return checkpoint
    progress.best, damaged = valid_best(store, progress.best, progress.epoch)
    if damaged is None:
        return checkpoint
    return replace(checkpoint, state={**checkpoint.state, "progress": progress.to_json()}, damaged=damaged)


def _check_content(record: dict[str, Any], content: Content) -> None:
    """Check that no images were replaced under the same names, where run.json has digests to compare with.

    Raises:
        CheckpointError: some were replaced.
    """
    facts = record.get("data")
    before = facts.get("content") if isinstance(facts, dict) else None
    if found := content_differences(before, content, ("train", "val")):
        raise CheckpointError(
            f"the data set is not the one that the run was started with: {'; '.join(found)}; restore it, start a new "
            "run, or permit it with 'resume.allow=[data]'"
        )


def rewind_folder(
    folder: RunFolder, config: Config, store: CheckpointStore, checkpoint: Checkpoint | None, attempt: Attempt
) -> None:
    """Put the run folder back to the time of the checkpoint; to be called once the training will continue from it."""
    progress = Progress.from_json(checkpoint.state["progress"]) if checkpoint is not None else Progress()
    damaged = checkpoint.damaged if checkpoint is not None else None
    folder.truncate_metrics(progress.epoch)
    store.roll_back_to(checkpoint, progress.best.checkpoint if progress.best is not None else None)
    folder.clean()
    folder.write("config.yaml", config.to_yaml())
    folder.reopen(
        {"overrides": list(attempt.overrides), "command": attempt.command}, best=summary_of_best(progress.best)
    )
    _rename(folder, config, attempt)
    if damaged is not None:
        store.put_aside(damaged["checkpoint"])
        folder.record_damage(damaged)
    where = f"checkpoint {checkpoint.name}" if checkpoint is not None else "the start: there is no checkpoint"
    LOGGER.info("resumed     attempt %d, from %s", folder.record["attempts"], where)


def _rename(folder: RunFolder, config: Config, attempt: Attempt) -> None:
    """Take over the names that were typed for this attempt; others may have been changed by `runs tag`."""
    typed = {override.lstrip("+~").partition("=")[0] for override in attempt.overrides}
    names = {key: getattr(config.run, key) for key in ("name", "group", "notes") if f"run.{key}" in typed}
    if tags := {tag: value for tag, value in config.run.tags.items() if typed & {"run.tags", f"run.tags.{tag}"}}:
        names["tags"] = {**folder.record.get("tags", {}), **tags}
    if names:
        folder.update(**names)


def resumed_precision(config: Config, dist: DistContext, checkpoint: Checkpoint | None) -> Precision:
    """The number format of a training; a resumed run keeps its own, and its number of threads.

    Every process must call it.
    """
    chosen = agreed_precision(config.trainer, dist)
    before = checkpoint.state["numerics"] if checkpoint is not None else None
    if before is None or before["device"] != dist.device.type:
        return chosen
    if dist.device.type == "cpu" and before["num_threads"] != torch.get_num_threads():
        LOGGER.info("threads     %d, as in the run so far", before["num_threads"])
        torch.set_num_threads(before["num_threads"])
    if before["torch"] != str(torch.__version__):
        LOGGER.warning("torch %s was replaced by %s: bits may differ from here on", before["torch"], torch.__version__)
    is_free = config.trainer.precision == "auto" and before["precision"] != chosen.name
    return Precision(name=before["precision"], reason="as in the run so far") if is_free else chosen


def valid_best(store: CheckpointStore, best: Best, num_epochs: int) -> tuple[Best | None, dict[str, Any] | None]:
    """The best checkpoint if it is undamaged, else the best of the undamaged ones, by the metrics of their epochs.

    Changes nothing in the run folder.

    Args:
        store: the checkpoints.
        best: the best so far.
        num_epochs: later rows of metrics.jsonl are ignored.

    Returns:
        The best one, None where no undamaged checkpoint has a row; and the damage as run.json records it, if any.
    """
    try:
        verify(store.folder / best.checkpoint)
    except CheckpointError as damage:
        left = _best_left(store, best, num_epochs)
        instead = "unknown" if left is None else f"{left.checkpoint} with {left.metric} = {left.value:.6g}"
        LOGGER.warning("%s; it was the best, and is put aside: the best of the others is %s", damage, instead)
        return left, {
            "checkpoint": best.checkpoint,
            "problem": str(damage),
            "instead": left.checkpoint if left is not None else None,
            "found": timestamp(),
        }
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
    """The undamaged checkpoint with the weights that a row of metrics.jsonl was measured on, if there is one."""
    epoch, step = row["epoch"], row.get("step")
    if step is None or epoch == 0:
        return None
    # Where trainer.max_steps cut the epoch short, the checkpoint is one within it.
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
    """Metric and file of the raw weights and of their average, in the order in which training compares them."""
    kinds: tuple[tuple[Weights, str, str], ...] = (
        ("raw", metric, "model.safetensors"),
        ("ema", metric.replace("val_", "val_ema_", 1), "ema.safetensors"),
    )
    return [(weights, float(row[key]), Path(file)) for weights, key, file in kinds if row.get(key) is not None]
