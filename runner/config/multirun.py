"""Calls `hydra.main`: for sweeps, and for flags with which Hydra shows something (`--cfg job`, shell completion)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hydra import main as hydra_main
from hydra.core.hydra_config import HydraConfig
from hydra.errors import MissingConfigException
from omegaconf import DictConfig, flag_override

from runner.base.errors import ConfigError
from runner.base.timeline import new_run_name
from runner.config import CONF_DIR, group_options
from runner.config.hydra_compose import ComposedJob, checked_config, sweep_dir_resolver
from runner.config.hydra_errors import override_behind, to_problem, unknown_option
from runner.config.overrides import folders_in
from runner.config.saved import TypedCommand


@dataclass(frozen=True, kw_only=True)
class Multirun:
    """A sweep whose Hydra settings are checked in all jobs; the jobs are composed when it runs."""

    arguments: tuple[str, ...]
    """Hydra's flags and overrides."""
    command: TypedCommand
    """What was typed; the rest comes from a sweep folder."""

    def run(self, run_job: Callable[[ComposedJob], float | None]) -> None:
        """Run the jobs by Hydra's sweeper and launcher.

        Args:
            run_job: called with each job, unless the sweeper starts processes of its own; its result is given to the
                sweeper.

        Raises:
            ConfigError: a job has mistakes; other jobs may have run.
        """
        _call_hydra_main(["--multirun", *self.arguments], JobFunction(run_job, new_run_name(), self.command))


def run_hydra_flag(arguments: Sequence[str], command: TypedCommand) -> None:
    """Let Hydra show something, such as the composed config or completions for a shell.

    Args:
        arguments: the flag, and overrides.
        command: what was typed.
    """
    _call_hydra_main(list(arguments), JobFunction(_never, new_run_name(), command))


def _never(job: ComposedJob) -> float | None:
    raise AssertionError(f"a flag that only shows something must not run {job}")


class JobFunction:
    """The function that Hydra calls with each composed config; launchers such as joblib's pickle it."""

    def __init__(self, run_job: Callable[[ComposedJob], float | None], sweep_name: Path, command: TypedCommand) -> None:
        self.run_job = run_job
        self.sweep_name = sweep_name
        self.command = command
        self.failures: list[Exception] = []

    def __call__(self, values: DictConfig) -> float | None:
        """Check and run one job; after an exception Hydra runs the other jobs, then raises the first exception."""
        try:
            return self.run_job(_checked_job(values, self.command))
        except Exception as error:
            self.failures.append(error)
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        """Register the resolver of new_sweep_dir on unpickling, before the config is read."""
        return _unpickle, (self.run_job, self.sweep_name, self.command)


def _unpickle(
    run_job: Callable[[ComposedJob], float | None],
    sweep_name: Path,
    command: TypedCommand,
) -> JobFunction:
    # Never exited: that process reads the config after this has returned.
    ExitStack().enter_context(sweep_dir_resolver(sweep_name))
    return JobFunction(run_job, sweep_name, command)


def _call_hydra_main(arguments: list[str], function: JobFunction) -> None:
    try:
        with _hydra_environment(arguments, function.sweep_name):
            hydra_main(version_base="1.3", config_path=str(CONF_DIR), config_name="train")(function)()
    except MissingConfigException as error:
        culprit = override_behind(error, arguments)
        options = partial(group_options, own_folders=folders_in(arguments))
        raise ConfigError([unknown_option(error, culprit, arguments, options)]) from error
    except Exception as error:
        problem = to_problem(error, arguments) if error not in function.failures else None
        if problem is None:
            raise
        raise ConfigError([problem]) from error


@contextmanager
def _hydra_environment(arguments: list[str], sweep_name: Path) -> Iterator[None]:
    """Set sys.argv and the resolver of new sweep folders, and make Hydra raise (HYDRA_FULL_ERROR) instead of exit."""
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [argv[0], *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        with sweep_dir_resolver(sweep_name):
            yield
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error


def _checked_job(composed: DictConfig, command: TypedCommand) -> ComposedJob:
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    given = [*hydra.overrides.hydra, *hydra.overrides.task]
    with flag_override(composed, ["struct", "readonly"], [False, False]):
        composed.hydra = hydra
    try:
        config, overrides = checked_config(composed, (), given, command.apply_trust)
    except ConfigError:
        if not any(folder.iterdir()):
            folder.rmdir()  # made by Hydra; a refused job leaves nothing behind
        raise
    return ComposedJob(config=config, overrides=overrides, folder=folder, may_download=command.may_download)
