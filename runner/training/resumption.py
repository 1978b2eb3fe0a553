"""Continuing a training: from which checkpoint, on which data, with which number format."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from runner.base.console import LOGGER
from runner.base.errors import CheckpointError
from runner.config.schema import Config
from runner.data.fingerprint import Content, differences, fingerprint
from runner.data.splits import Splits
from runner.dist.collectives import DistContext
from runner.dist.device import Precision, agreed_precision
from runner.run.checkpoint import Checkpoint, CheckpointStore
from runner.run.contents import State, judged
from runner.run.run_folder import RunFolder, read_record
from runner.trainer.progress import Progress
from runner.trainer.recorder import summary_of_best
from runner.trainer.state import CHECKPOINT_FORMAT
from runner.training.attempt import Attempt
from runner.training.best_left import whole_best

_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def find_checkpoint(
    splits: Splits, content: Content, store: CheckpointStore, *, dist: DistContext, attempt: Attempt
) -> Checkpoint | None:
    """The checkpoint from which all processes continue; None for the start. Every process must call it.

    Changes nothing yet.

    Args:
        splits: the data set as it is now.
        content: what identifies its images; used in the main process.
        store: of the run.
        dist: place of this process among others.
        attempt: how it was asked for.

    Raises:
        CheckpointError: when there are checkpoints, but none that is whole, or the data set is another.
    """
    if not attempt.is_resumed:
        return None
    return _shared(_newest(splits, content, store, attempt) if dist.is_main else None, dist)


def _newest(splits: Splits, content: Content, store: CheckpointStore, attempt: Attempt) -> Checkpoint | None:
    """The newest whole checkpoint, once it is sure that the run can continue from it."""
    for note in attempt.notes:
        LOGGER.info("changed     %s", note)
    checkpoint, damages = store.newest_valid()
    for damage in damages:
        LOGGER.warning("%s; it is put aside", damage)
    if checkpoint is None:
        if damages:
            raise CheckpointError(f"{store.folder}: none of {len(damages)} checkpoints is whole; start a new run")
        return None
    if checkpoint.state.get("format") == CHECKPOINT_FORMAT:  # any other is reported below
        judged(checkpoint.state, State, str(store.folder / checkpoint.name / "state.json"))
    _check_belongs(
        checkpoint.state,
        classes=splits.classes,
        data_fingerprint=fingerprint(splits),
        may_change=attempt.may_change_data,
    )
    if not attempt.may_change_data:
        _check_content(read_record(store.folder.parent), content)
    return _with_whole_best(checkpoint, store)


def _shared(checkpoint: Checkpoint | None, dist: DistContext) -> Checkpoint | None:
    """Give every process the checkpoint that the main one has read, be its folder on a shared file system or not."""
    outline = None
    if checkpoint is not None:
        shapes = {
            stem: {name: (list(value.shape), str(value.dtype)) for name, value in group.items()}
            for stem, group in checkpoint.tensors.items()
        }
        outline = (checkpoint.name, checkpoint.state, shapes)
    outline = dist.share_object(outline)
    if outline is None:
        return None
    name, state, shapes = outline
    if checkpoint is None:
        tensors = {
            stem: {name: torch.empty(shape, dtype=_DTYPES[dtype]) for name, (shape, dtype) in group.items()}
            for stem, group in shapes.items()
        }
        checkpoint = Checkpoint(name=name, state=state, tensors=tensors)
    dist.share_tensors(value for group in checkpoint.tensors.values() for value in group.values())
    return checkpoint


def _check_belongs(state: dict[str, Any], *, classes: tuple[str, ...], data_fingerprint: str, may_change: bool) -> None:
    """Check that the data set is the one that the run was started with.

    Args:
        state: of the checkpoint.
        classes: of the data set as it is now.
        data_fingerprint: of the data set as it is now.
        may_change: whether the user has said that other images of the same classes are wanted.

    Raises:
        CheckpointError: naming what differs.
    """
    if state.get("format") != CHECKPOINT_FORMAT:
        found = str(state.get("format"))[:20]
        raise CheckpointError(
            f"the checkpoint has format {found}; this runner continues from format {CHECKPOINT_FORMAT}"
        )
    if tuple(state["classes"]) != classes:
        gone, come = sorted(set(state["classes"]) - set(classes)), sorted(set(classes) - set(state["classes"]))
        raise CheckpointError(
            f"the data set has other classes than the run was started with: gone {gone or 'none'}, new {come or 'none'}"
            "; start a new run"
        )
    if state["data_fingerprint"] != data_fingerprint and not may_change:
        raise CheckpointError(
            "the data set has other images than the run was started with (names, number or order differ), so it would "
            "continue with the wrong ones; restore it, start a new run, or say that you want it with "
            "'resume.allow=[data]'"
        )


def _with_whole_best(checkpoint: Checkpoint, store: CheckpointStore) -> Checkpoint:
    """The same, with another best one where that is damaged: better now than after days of training."""
    progress = Progress.from_json(checkpoint.state["progress"])
    if progress.best is None:
        return checkpoint
    progress.best, damaged = whole_best(store, progress.best, progress.epoch)
    if damaged is None:
        return checkpoint
    return replace(checkpoint, state={**checkpoint.state, "progress": progress.to_json()}, damaged=damaged)


def _check_content(record: dict[str, Any], content: Content) -> None:
    """Check that no images were swapped under the same names; older runs have recorded nothing to compare with.

    Raises:
        CheckpointError: when some were.
    """
    facts = record.get("data")
    before = facts.get("content") if isinstance(facts, dict) else None
    if found := differences(before, content, ("train", "val")):
        raise CheckpointError(
            f"the data set is not the one that the run was started with: {'; '.join(found)}; restore it, start a new "
            "run, or say that you want it with 'resume.allow=[data]'"
        )


def go_back(
    folder: RunFolder, config: Config, store: CheckpointStore, checkpoint: Checkpoint | None, attempt: Attempt
) -> None:
    """Put the folder back to the moment of the checkpoint; only once it is sure that training continues from it."""
    progress = Progress.from_json(checkpoint.state["progress"]) if checkpoint is not None else Progress()
    damaged = checkpoint.damaged if checkpoint is not None else None
    folder.cut_metrics(progress.epoch)
    store.go_back_to(checkpoint, progress.best.checkpoint if progress.best is not None else None)
    folder.clean()
    folder.write("config.yaml", config.to_yaml())
    told = {"overrides": list(attempt.overrides), "command": attempt.command}
    folder.reopen(told, best=summary_of_best(progress.best))
    if damaged is not None:
        store.put_aside(damaged["checkpoint"])
        folder.tell_damage(damaged)
    where = f"checkpoint {checkpoint.name}" if checkpoint is not None else "the start: there is no checkpoint"
    LOGGER.info("resumed     attempt %d, from %s", folder.record["attempts"], where)


def precision_of(config: Config, dist: DistContext, checkpoint: Checkpoint | None) -> Precision:
    """The number format; a run that is continued keeps that of its beginning, and its number of threads.

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
        LOGGER.warning("torch %s has become %s: bits may differ from here on", before["torch"], torch.__version__)
    is_free = config.trainer.precision == "auto" and before["precision"] != chosen.name
    return Precision(name=before["precision"], reason="as in the run so far") if is_free else chosen
