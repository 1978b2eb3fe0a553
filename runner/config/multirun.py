"""A sweep that Hydra itself carries out, job by job, and what Hydra itself shows (`--cfg job`, shell completion)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import main as hydra_main
from hydra.core.hydra_config import HydraConfig
from hydra.errors import MissingConfigException
from omegaconf import DictConfig, flag_override

from runner.base.errors import ConfigError, Problem
from runner.base.timeline import new_name
from runner.config import CONF_DIR, group_options
from runner.config.composing import Job, checked_config, sweeps_named
from runner.config.refusal import override_behind, translate, unknown_option
from runner.config.saved import TypedCommand


@dataclass(frozen=True, kw_only=True)
class Multirun:
    """A sweep whose first job was composed, and all of whose jobs say to Hydra what they may."""

    arguments: tuple[str, ...]
    """Hydra's flags and overrides."""
    command: TypedCommand
    """What was typed; the rest comes from the folder of a sweep."""

    def carry_out(self, run_job: Callable[[Job], float | None]) -> None:
        """Leave the jobs to Hydra's sweeper and launcher.

        Args:
            run_job: called once per job with its config, unless the sweeper starts processes; its result is given to
                the sweeper.

        Raises:
            ConfigError: a job does not compose, or breaks the schema; other jobs may have run.
        """
        _carry_out_by_hydra(["--multirun", *self.arguments], Task(run_job, (), new_name(), self.command))


def shown_by_hydra(arguments: Sequence[str], command: TypedCommand) -> None:
    """Let Hydra show something, such as the composed config or completions for a shell.

    Args:
        arguments: the flag that asks for it, and overrides.
        command: what was typed.
    """
    _carry_out_by_hydra(list(arguments), Task(_never, (), new_name(), command))


def _never(job: Job) -> float | None:
    raise AssertionError(f"Hydra was to show something, not to carry out {job}")


class Task:
    """What Hydra calls with each composed config; launchers such as joblib's send it to other processes."""

    def __init__(
        self,
        run_job: Callable[[Job], float | None],
        found_before: tuple[Problem, ...],
        sweep_name: Path,
        command: TypedCommand,
    ) -> None:
        self.run_job = run_job
        self.found_before = found_before
        self.sweep_name = sweep_name
        self.command = command
        self.failures: list[Exception] = []

    def __call__(self, values: DictConfig) -> float | None:
        """Check one job and run it; Hydra goes on with the next job and raises the first failure at the end."""
        try:
            return self.run_job(_checked_job_of_sweep(values, self.found_before, self.command))
        except Exception as error:
            self.failures.append(error)
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process the resolver has to be there before the config is read."""
        return _revived, (self.run_job, self.found_before, self.sweep_name, self.command)


def _revived(
    run_job: Callable[[Job], float | None],
    found_before: tuple[Problem, ...],
    sweep_name: Path,
    command: TypedCommand,
) -> Task:
    # For as long as that process lives: it reads the config after this has returned.
    ExitStack().enter_context(sweeps_named(sweep_name))
    return Task(run_job, found_before, sweep_name, command)


def _carry_out_by_hydra(arguments: list[str], task: Task) -> None:
    """A multirun, or one of Hydra's flags that shows something."""
    try:
        with _hydra_environment(arguments, task.sweep_name):
            hydra_main(version_base="1.3", config_path=str(CONF_DIR), config_name="train")(task)()
    except MissingConfigException as error:
        culprit = override_behind(error, arguments)
        raise ConfigError([unknown_option(error, culprit, arguments, group_options)]) from error
    except Exception as error:
        refusal = translate(error, arguments) if error not in task.failures else None
        if refusal is None:
            raise
        raise ConfigError([*task.found_before, refusal]) from error


@contextmanager
def _hydra_environment(arguments: list[str], sweep_name: Path) -> Iterator[None]:
    """What Hydra takes from its surroundings: sys.argv, and the name of a new sweep folder.

    Hydra prints and exits by itself unless HYDRA_FULL_ERROR lets its exceptions through.
    """
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [argv[0], *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        with sweeps_named(sweep_name):
            yield
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error


def _checked_job_of_sweep(composed: DictConfig, found_before: tuple[Problem, ...], command: TypedCommand) -> Job:
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    given = [*hydra.overrides.hydra, *hydra.overrides.task]
    with flag_override(composed, ["struct", "readonly"], [False, False]):
        composed.hydra = hydra
    try:
        config, overrides = checked_config(composed, found_before, given, command)
    except ConfigError:
        if not any(folder.iterdir()):
            folder.rmdir()  # Hydra has made it for this job; a refusal leaves nothing behind.
        raise
    return Job(config=config, overrides=overrides, folder=folder, may_download=command.may_download)
