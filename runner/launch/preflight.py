"""Everything that a training would refuse besides its config, found before a process or a folder is made.

Two stages: the data set and the output folder, without importing torch; then the machine and the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runner.base.errors import PreflightError, Problem, RunnerError
from runner.base.process import collection_paused
from runner.base.user_paths import typed_path
from runner.config.schema import Config
from runner.config.schema.model import is_weights_file
from runner.data.sources.paths import resolve_paths
from runner.data.splits import Splits, open_splits
from runner.launch.plan import LaunchPlan, choose_launch
from runner.run import run_folder


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A config that this machine can train, and its data set."""

    config: Config
    """With full paths."""
    splits: Splits
    plan: LaunchPlan
    """Who starts how many processes."""


def preflight(
    config: Config, run_dir: Path | None = None, *, is_in_job: bool = False, may_download: bool = True
) -> Ready:
    """Check data, output folder, machine and model; of a run that is to be submitted, not the machine.

    Args:
        config: complete and checked.
        run_dir: the folder of a run that goes on; a new one is made under output_dir.
        is_in_job: whether this process belongs to the job as which the run was submitted.
        may_download: whether named weights that are not here may be downloaded; a run that has a checkpoint needs none.

    Raises:
        RunnerError: the mistake, or a PreflightError with all mistakes of the stage.
    """
    ready: Ready | None = None
    plan: LaunchPlan | None = None
    mistakes: list[RunnerError] = []
    output_dir = Path(config.output_dir)
    try:
        plan = choose_launch(config, is_in_job=is_in_job)
    except RunnerError as error:
        mistakes.append(error)
    try:
        output_dir = typed_path(config.output_dir, "output_dir")
        run_folder.check_writable(run_dir or output_dir)
    except RunnerError as error:
        mistakes.append(error)
    try:
        data = resolve_paths(config.data)
        world_size = plan.world_size if plan is not None else 1
        splits = open_splits(data, config.seed, global_batch_size=data.batch_size * world_size)
        model = config.model.model_copy(update={"weights": _full_path(config.model.weights)})
        if plan is not None:
            resolved = config.model_copy(update={"data": data, "model": model, "output_dir": str(output_dir)})
            ready = Ready(config=resolved, splits=splits, plan=plan)
    except RunnerError as error:
        mistakes.append(error)
    _raise_all(mistakes)
    assert ready is not None
    needs_weights = run_dir is None or not (run_dir / "checkpoints" / "last").exists()
    _check_machine_and_model(ready, has_to_be_here=needs_weights and not may_download)
    return ready


def _check_machine_and_model(ready: Ready, *, has_to_be_here: bool) -> None:
    with collection_paused():
        from runner.model import check_model  # noqa: PLC0415 - torch only once the data is good

    config = ready.config
    # Of a submitted run, only the machines that will train can tell.
    mistakes = _mistakes_of_device(config, ready.plan) if ready.plan.mode != "submitted" else []
    try:
        check_model(
            config.model,
            len(ready.splits.classes),
            image_size=config.data.image_size,
            needs_head=config.trainer.freeze_backbone_epochs > 0,
            has_to_be_here=has_to_be_here,
        )
    except RunnerError as error:
        mistakes.append(error)
    _raise_all(mistakes)


def _mistakes_of_device(config: Config, plan: LaunchPlan) -> list[RunnerError]:
    """What the device that this machine trains on can't do."""
    from runner.dist.device import check_sync_batchnorm, choose_device, choose_precision  # noqa: PLC0415 - torch, see above

    try:
        device = choose_device(config.trainer)
    except RunnerError as error:
        return [error]
    checks: list[Callable[[], object]] = [
        lambda: choose_precision(config.trainer, device),
        lambda: check_sync_batchnorm(config.dist, device, plan.world_size),
    ]
    mistakes: list[RunnerError] = []
    for check in checks:
        try:
            check()
        except RunnerError as error:
            mistakes.append(error)
    return mistakes


def _full_path(weights: str | None) -> str | None:
    """A weights file is found again from any folder; a name is left as it is."""
    is_file = weights is not None and is_weights_file(weights)
    return str(typed_path(weights, "model.weights").absolute()) if weights is not None and is_file else weights


def _raise_all(mistakes: list[RunnerError]) -> None:
    if len(mistakes) == 1:
        raise mistakes[0]
    if mistakes:
        raise PreflightError([Problem(key="", message=f"{error.name}: {error}") for error in mistakes])
