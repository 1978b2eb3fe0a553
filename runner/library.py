"""The Python API: `runner.load_config`, `runner.fit` and `runner.load_model`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.errors import UsageError
from runner.config.compose import compose_one
from runner.config.schema import Config
from runner.launch.preflight import preflight
from runner.tools.hooks import training_hooks
from runner.tools.notebook import shown_in_cell
from runner.tools.registry.resolve import resolve_model
from runner.training.attempt import Attempt, Training

if TYPE_CHECKING:
    from runner.launch.slurm import Submission
    from runner.training.assemble_trained import LoadedModel
    from runner.training.train import RunResult


def load_config(overrides: Sequence[str] = ()) -> Config:
    """Compose and check a config, as the command line does.

    Args:
        overrides: what would be typed, such as ["model=resnet50", "trainer.epochs=10"].

    Raises:
        ConfigError: with every mistake.
        UsageError: a flag of the command line; only --config-dir is accepted.
    """
    flags = [flag for flag in overrides if flag.startswith("-") and flag not in ("--config-dir", "-cd")]
    if flags:
        raise UsageError(f"load_config composes one experiment; it takes KEY=VALUE, not {flags[0]}")
    job = compose_one(overrides)
    assert job is not None, "only with the flags that were refused above"
    return job.config


def fit(config: Config) -> RunResult | Submission:
    """Train one experiment in a new run folder: in this process, or in as many as the group `dist` asks for.

    In a notebook, the cell shows the log, a line of progress, and curves that grow with each epoch; of a run of several
    processes the curves are drawn at the end. With dist=slurm it submits the run; the result then has `job_id` and
    `run_dir`.

    Raises:
        RunnerError: what the command line would print and turn into an exit code.
    """
    with shown_in_cell() as draw_curves:
        ready = preflight(config)
        from runner.launch import launch  # noqa: PLC0415 - torch only once config and data are good
        from runner.tools.doctor.batch_size import settle_batch_size  # noqa: PLC0415 - as above

        ready = settle_batch_size(ready)
        hooks = training_hooks(config)
        is_here = ready.plan.mode == "inline"
        if is_here and draw_curves is not None:
            hooks = replace(hooks, after_epoch=draw_curves)
        result = launch(ready, Training(attempt=Attempt(), hooks=hooks))
        if not is_here and draw_curves is not None:
            draw_curves(result.run_dir)
    return result


def load_model(run_dir: str | Path, *, registry: str | None = None) -> LoadedModel:
    """Load the packaged model of a run, or a registered version.

    Args:
        run_dir: a run folder, its `model/` folder, or a reference such as models:/birds@champion or models:/birds/2.
        registry: for references: a folder or the address of MLflow's registry; None: what the environment variable
            RUNNER_REGISTRY says, else the folder `models` here.

    Raises:
        CheckpointError: there is no package, or it is damaged or of a newer format.
        ConfigError: no folder can have this name.
        InvalidModelError: a custom model is no longer installed.
        RegistryError: the registry has no such version, or its files are not those that were registered.
    """
    folder = resolve_model(str(run_dir), registry, key="run_dir")
    from runner.training.assemble_trained import load_packaged  # noqa: PLC0415 - torch only where it is needed

    return load_packaged(folder)
