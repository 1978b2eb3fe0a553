"""A single run, composed by Hydra once.

`hydra.main` composes everything twice: first to learn whether a config file sets `hydra.mode`, then for the run itself.
Nearly always none does; then one composition tells both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import run_job
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig

from runner.garbage import collection_paused

# What hydra.main calls the job when runner/compose.py calls it.
_JOB_NAME = "compose"


def run_composed_once(arguments: Sequence[str], conf_dir: Path, config_name: str, task: TaskFunction) -> bool:
    """Compose a config and run the task with it, where that is what `hydra.main` would do.

    Args:
        arguments: overrides and flags, as `hydra.main` takes them.
        conf_dir: the folder of the primary config, as a full path.
        config_name: the primary config.
        task: called with the composed config.

    Returns:
        False when nothing was done and `hydra.main` has to look for itself: flags are given, the config is refused,
        or it sets hydra.mode to MULTIRUN.
    """
    if any(argument.startswith("-") for argument in arguments):
        return False
    with initialize_config_dir(config_dir=str(conf_dir), job_name=_JOB_NAME, version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None, "it was initialized above"
        try:
            with collection_paused():
                config = hydra.compose_config(
                    config_name=config_name,
                    overrides=list(arguments),
                    run_mode=RunMode.RUN,
                    with_log_configuration=True,
                )
        except HydraException:
            return False  # A multirun may allow what a single run refuses; else Hydra refuses it again.
        if config.hydra.mode == RunMode.MULTIRUN:
            return False
        _run(hydra, config, config_name, task)
    return True


def _run(hydra: Hydra, config: DictConfig, config_name: str, task: TaskFunction) -> None:
    """What Hydra.run does with a config once it is composed."""
    if config.hydra.mode is None:
        config.hydra.mode = RunMode.RUN
        config.hydra.overrides.hydra.append("hydra.mode=RUN")
    callbacks = Callbacks(config)
    callbacks.on_run_start(config=config, config_name=config_name)
    result = run_job(
        hydra_context=HydraContext(config_loader=hydra.config_loader, callbacks=callbacks),
        task_function=task,
        config=config,
        job_dir_key="hydra.run.dir",
        job_subdir_key=None,
    )
    callbacks.on_run_end(config=config, config_name=config_name, job_return=result)
    _ = result.return_value  # raises what the task has raised
