"""All checks of a training besides those of its config, before a process is started or a folder is made.

There are two stages: data set and output folder, without importing torch; then the machine and the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from runner.base.errors import ConfigError, PreflightError, Problem, RunnerError
from runner.base.process import gc_paused
from runner.base.user_paths import typed_path
from runner.config.schema import Config
from runner.config.schema.model import is_weights_file
from runner.config.schema.trainer import can_miss_top5
from runner.data.sources.paths import resolve_paths
from runner.data.splits import Splits, open_splits
from runner.launch.plan import LaunchPlan, choose_launch
from runner.run import run_folder
from runner.run.snapshot import check_snapshot, folders_of_runs
from runner.run.tracking.beside import check_trackers


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A config that this machine can train, and its data set."""

    config: Config
    """Complete and checked, with full paths."""
    splits: Splits
    plan: LaunchPlan
    """How many processes there are, and what starts them."""


def preflight(
    config: Config, run_dir: Path | None = None, *, is_in_job: bool = False, may_download: bool = True
) -> Ready:
    """Check data, output folder, machine and model; the machine not for a run that will be submitted.

    Args:
        config: complete and checked.
        run_dir: the folder of a run to continue; None for a new one under output_dir.
        is_in_job: whether this process belongs to the SLURM job of the run.
        may_download: whether `model.weights` may be downloaded if they are missing; a run with a checkpoint needs none.

    Raises:
        RunnerError: the only mistake, or a PreflightError with all mistakes of the stage.
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
        splits = open_splits(data, config.seed, global_batch_size=data.smallest_batch_size * world_size)
        model = config.model.model_copy(update={"weights": _full_path(config.model.weights)})
        teacher = config.distill.run and str(typed_path(config.distill.run, "distill.run").absolute())
        if plan is not None:
            distill = config.distill.model_copy(update={"run": teacher})
            update = {"data": data, "model": model, "distill": distill, "output_dir": str(output_dir)}
            resolved = config.model_copy(update=update)
            ready = Ready(config=resolved, splits=splits, plan=plan)
    except RunnerError as error:
        mistakes.append(error)
    is_new = run_dir is None or not (run_dir / "checkpoints" / "last").exists()
    if ready is not None and is_new:
        mistakes += _mistakes_of_metric(ready)
    _raise_all([*mistakes, *_mistakes_of_trackers(config), *(_mistakes_of_snapshot(config) if is_new else [])])
    assert ready is not None
    _check_machine_and_model(ready, has_to_be_here=is_new and not may_download)
    return ready


def _mistakes_of_trackers(config: Config) -> list[RunnerError]:
    try:
        check_trackers(config.tracker)
    except RunnerError as error:
        return [error]
    return []


def _mistakes_of_snapshot(config: Config) -> list[RunnerError]:
    try:
        if config.run.snapshot:
            check_snapshot(Path.cwd(), without=folders_of_runs(config))
    except RunnerError as error:
        return [error]
    return []


def _mistakes_of_metric(ready: Ready) -> list[RunnerError]:
    """A metric that can't improve; a run that has begun with one goes on."""
    num_classes, config = len(ready.splits.classes), ready.config
    if can_miss_top5(num_classes):
        return []
    message = f"is 100% from the start, as the data has {num_classes} classes and five guesses are counted"
    chosen = {"trainer.monitor": config.trainer.monitor, "sweep.metric": config.sweep.metric}
    return [
        ConfigError(
            [
                Problem(
                    key=key,
                    value=value,
                    has_value=True,
                    message=f"val_top5 {message}" if isinstance(value, tuple) else message,
                    hint=f"use {key}=val_top1 or {key}=val_loss",
                )
            ]
        )
        for key, value in chosen.items()
        if value == "val_top5" or (isinstance(value, tuple) and "val_top5" in value)
    ]


def _check_machine_and_model(ready: Ready, *, has_to_be_here: bool) -> None:
    with gc_paused():
        from runner.model import check_model  # noqa: PLC0415 - torch only once the data is good
        from runner.training.assemble import effective_data  # noqa: PLC0415 - as above
        from runner.training.model_check import check_trainable  # noqa: PLC0415 - as above
        from runner.training.teacher import check_teacher  # noqa: PLC0415 - as above

    config = ready.config
    # Of a submitted run, the device is checked on the machines that train.
    mistakes = _mistakes_of_machine(config, ready.plan) if ready.plan.mode != "submitted" else []
    growing = enumerate(config.data.progressive_resizing)
    early_sizes = {f"data.progressive_resizing.{number}.image_size": entry.image_size for number, entry in growing}
    try:
        check_model(
            config.model,
            len(ready.splits.classes),
            num_channels=config.data.channels,
            image_size=config.data.image_size,
            other_sizes={"data.eval_image_size": config.data.eval_image_size, **early_sizes},
            needs_head=config.trainer.freeze_backbone_epochs > 0,
            has_to_be_here=has_to_be_here,
            also=partial(check_trainable, config),
        )
    except RunnerError as error:
        mistakes.append(error)
    if config.distill.run is not None:
        try:
            check_teacher(config, effective_data(config, say=lambda _: None), ready.splits.classes)
        except RunnerError as error:
            mistakes.append(error)
    _raise_all(mistakes)


def check_machine(config: Config, plan: LaunchPlan) -> None:
    """Check what this machine has to provide for a config: device, number format, process group, compiler.

    Raises:
        DeviceError: the only mistake.
        PreflightError: all mistakes, if there are several.
    """
    _raise_all(_mistakes_of_machine(config, plan))


def _mistakes_of_machine(config: Config, plan: LaunchPlan) -> list[RunnerError]:
    from runner.dist.device import check_device, choose_device, choose_precision  # noqa: PLC0415 - torch, see above

    try:
        device = choose_device(config.trainer)
    except RunnerError as error:
        return [error]
    mistakes: list[RunnerError] = [*check_device(config, device, plan.world_size)]
    try:
        choose_precision(config.trainer, device)
    except RunnerError as error:
        mistakes.append(error)
    return mistakes


def _full_path(weights: str | None) -> str | None:
    """The full path of a weights file; a name stays as it is."""
    is_file = weights is not None and is_weights_file(weights)
    return str(typed_path(weights, "model.weights").absolute()) if weights is not None and is_file else weights


def _raise_all(mistakes: list[RunnerError]) -> None:
    if len(mistakes) == 1:
        raise mistakes[0]
    if mistakes:
        raise PreflightError([Problem(key="", message=f"{error.name}: {error}") for error in mistakes])
