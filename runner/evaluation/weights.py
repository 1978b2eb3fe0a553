"""Chooses and loads the weights of a run that are evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from runner.base.errors import CheckpointError
from runner.base.files import sha256_of
from runner.base.reasons import first_line
from runner.dist.collectives import DistContext
from runner.model import read_trained, with_versions
from runner.run.checkpoint import CheckpointStore, verify
from runner.run.contents import Pointer, StateOfWeights, read_object
from runner.run.package import Package, read_package
from runner.run.run_folder import read_record
from runner.trainer.progress import Progress, Weights

_POINTERS: tuple[Pointer, ...] = ("best", "last")
WeightsChoice = Literal["auto", "raw", "ema"]


@dataclass(frozen=True, kw_only=True)
class ChosenWeights:
    """A verified file of weights."""

    file: Path
    checkpoint: str
    """`best`, or the name of a checkpoint."""
    kind: Weights
    epoch: int
    """Finished epochs when they were saved."""
    sha256: str
    """Of the file, which has the same bytes in a checkpoint and in the package."""
    is_automatic: bool
    """Whether weights=auto chooses this kind in this checkpoint."""

    @property
    def label(self) -> str:
        """The part of a folder's name that distinguishes them from other weights of the run; empty for the best."""
        parts = [] if self.checkpoint == "best" and self.is_automatic else [self.checkpoint]
        return "-".join(parts if self.is_automatic else [*parts, self.kind])

    def to_json(self) -> dict[str, Any]:
        """The entry `weights` of metrics.json."""
        return {"checkpoint": self.checkpoint, "epoch": self.epoch, "kind": self.kind, "sha256": self.sha256}


def choose_weights(run_dir: Path, checkpoint: str, weights: WeightsChoice = "auto") -> ChosenWeights:
    """Find and verify the weights of a run.

    Args:
        run_dir: a run folder.
        checkpoint: `best` (of a completed run the packaged weights), `last`, or the name of a checkpoint.
        weights: raw, or ema for their moving average (trainer.ema_decay). auto: for `best` the kind with the better
            metric; for another checkpoint the average where there is one, as timm does.

    Raises:
        CheckpointError: when there are none or they are damaged; lists the intact checkpoints.
    """
    store = CheckpointStore(run_dir / "checkpoints", keep=1)
    is_completed = read_record(run_dir)["status"] == "completed"
    try:
        if checkpoint == "best" and is_completed and (run_dir / "model").is_dir():
            packaged = packaged_weights(read_package(run_dir))
            if weights in ("auto", packaged.kind):
                return packaged
        return _of_checkpoint(store, checkpoint, weights)
    except CheckpointError as error:
        whole = [name for name in store.names() if _is_whole(store.folder / name)]
        hint = f"whole are {', '.join(whole)} (checkpoint=NAME)" if whole else "there is no other"
        raise CheckpointError(f"{error}; {hint}") from error


def load_weights(module: nn.Module, file: Path, dist: DistContext) -> None:
    """Load weights into a model: the main process reads them and broadcasts; every process must call it.

    Raises:
        CheckpointError: when they don't fit the model, or are not finite.
    """
    expected = module.state_dict()
    state = (
        read_trained(file, expected)
        if dist.is_main
        else {name: torch.empty(value.shape, dtype=value.dtype) for name, value in expected.items()}
    )
    # Sorted, so that all processes broadcast in the same order.
    dist.broadcast_tensors(state[name] for name in sorted(expected))
    try:
        module.load_state_dict(with_versions(state, module))
    except Exception as error:  # the user's own modules may load in their own ways
        raise CheckpointError(f"{file} can't be loaded into the model of this run ({first_line(error)})") from error


def packaged_weights(package: Package) -> ChosenWeights:
    """The weights of a package, which were compared with its checksum when it was read."""
    card = package.card
    return ChosenWeights(
        file=package.weights_file,
        checkpoint="best",
        kind=card.weights_kind,
        epoch=card.best["epoch"],
        sha256=card.weights_sha256,
        is_automatic=True,
    )


def _of_checkpoint(store: CheckpointStore, checkpoint: str, wanted: WeightsChoice) -> ChosenWeights:
    name = store.pointed(checkpoint) if checkpoint in _POINTERS else checkpoint
    if name is None:
        when = "finished its first epoch" if checkpoint == "best" else "saved its first checkpoint"
        raise CheckpointError(f"{store.folder.parent} has no checkpoint {checkpoint!r}: the run has not {when}")
    if name not in store.names():
        raise CheckpointError(f"{store.folder} has no checkpoint {name!r}")
    folder = store.folder / name
    verify(folder)
    progress = Progress.from_json(read_object(folder / "state.json", StateOfWeights)["progress"])
    has_average = (folder / "ema.safetensors").is_file()
    if wanted == "ema" and not has_average:
        raise CheckpointError(f"{folder} holds no averaged weights, weights=ema: they come with trainer.ema_decay")
    automatic: Weights = "ema" if has_average else "raw"
    if checkpoint == "best" and progress.best is not None:
        automatic = progress.best.weights
    kind = automatic if wanted == "auto" else wanted
    file = folder / f"{'ema' if kind == 'ema' else 'model'}.safetensors"
    if not file.is_file():
        raise CheckpointError(f"{folder} is damaged: it holds no {file.name}")
    return ChosenWeights(
        file=file,
        checkpoint=checkpoint if checkpoint == "best" else name,
        kind=kind,
        epoch=progress.epoch,
        sha256=sha256_of(file),
        is_automatic=kind == automatic,
    )


def _is_whole(folder: Path) -> bool:
    try:
        verify(folder)
    except CheckpointError:
        return False
    return True
