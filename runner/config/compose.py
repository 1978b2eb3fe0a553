"""Hydra's part of the front door: YAML files and overrides become one tree of values, one per job.

Composition is permissive (`a.b=1` is read as `++a.b=1`) so that the schema, which knows every key, its unit and
its range, sees all mistakes at once; `runner/config/refusal.py` turns what Hydra refuses into the same kind of message.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import main as hydra_main
from hydra.core.hydra_config import HydraConfig
from hydra.errors import MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from runner.base.errors import ConfigError, Problem, UsageError
from runner.base.timeline import new_name
from runner.config.allowed_hydra import OUR_SWEEPER, SLURM_LAUNCHER, judge_hydra
from runner.config.arguments import SHELL_COMPLETION, CommandLine, read_command_line
from runner.config.composing import compose_values, limited_time, sweeps_named
from runner.config.conf_folder import CONF_DIR, group_options
from runner.config.interpolation import as_written, from_environment, passwords
from runner.config.overrides import choices_of_groups, permissive, refused
from runner.config.own_files import search_path
from runner.config.references import unresolvable
from runner.config.refusal import (
    experiment_files,
    override_behind,
    plain,
    stumbled,
    translate,
    unknown_option,
    with_origin,
)
from runner.config.saved import TypedCommand
from runner.config.schema import Config
from runner.config.schema.judge import MISSING, judge
from runner.config.trust import is_typed


@dataclass(frozen=True, kw_only=True)
class Job:
    """One composed and checked experiment."""

    config: Config
    overrides: tuple[str, ...]
    """What was typed, without Hydra's prefixes."""
    folder: Path | None
    """The folder that a sweep has made for this job; None for a single run."""
    may_download: bool = True
    """Whether weights that it names may be downloaded."""


def compose_one(argv: Sequence[str]) -> Job | None:
    """Compose and check one experiment, whatever sweep its file may ask for (hydra.mode).

    Args:
        argv: Hydra's flags and overrides, without the command.

    Returns:
        The experiment; None where Hydra was only asked to show something, such as the composed config.

    Raises:
        UsageError: a flag that is not taken; -m is none of them here.
        ConfigError: with every mistake.
    """
    line = read_command_line(argv)
    if line.is_multirun:
        raise UsageError("-m starts a sweep; this takes one experiment")
    if SHELL_COMPLETION & set(line.flags):
        _carry_out_by_hydra([*line.flags, *line.overrides], Task(_never, (), new_name(), _typed(line)))
        return None
    problems, overrides = _refused_and_kept(line)
    return _one(_composed(overrides, line, problems), line, problems, overrides)


def _one(composed: DictConfig, line: CommandLine, problems: list[Problem], overrides: list[str]) -> Job | None:
    if not line.flags:
        return _checked_job(composed, problems, overrides, _typed(line))
    _refuse_problems_of_hydra(composed, overrides)
    _carry_out_by_hydra([*line.flags, *overrides], Task(_never, (), new_name(), _typed(line)))
    return None


def compose_jobs(
    argv: Sequence[str], run_job: Callable[[Job], float | None], typed: TypedCommand | None = None
) -> None:
    """Compose each job that `argv` describes, check it, and hand it to `run_job`.

    What the config says to Hydra itself is judged before Hydra carries anything out.

    Args:
        argv: Hydra's flags and overrides, without the command.
        run_job: called once, or once per job of a multirun; its result is given to Hydra's sweeper.
        typed: what was typed, where `argv` is the command of a sweep from its folder; by default all was.

    Raises:
        UsageError: a flag that is not taken.
        ConfigError: when composing or checking fails. A single run has not begun then; of a multirun, other jobs
            may have run.
    """
    line = read_command_line(argv)
    if SHELL_COMPLETION & set(line.flags):
        compose_one(argv)
        return
    problems, overrides = _refused_and_kept(line)
    first = next(choices_of_groups(overrides))
    composed = _composed(first, line, problems)
    if line.is_multirun or _asks_for_multirun(composed):
        if problems:
            raise ConfigError(problems)
        _refuse_problems_of_hydra(composed, first)
        command = typed or _typed(line)
        _refuse_untyped_launcher(composed, command)
        _carry_out_sweep(composed, line, overrides, Task(run_job, (), new_name(), command))
        return
    is_swept = len(first) != len(overrides) - len(problems) or any(item not in overrides for item in first)
    job = _one(_composed(overrides, line, problems) if is_swept else composed, line, problems, first)
    if job is not None:
        run_job(job)


def _refuse_untyped_launcher(composed: DictConfig, command: TypedCommand) -> None:
    if command.defaults is None or is_typed("hydra/launcher", command.overrides):
        return
    if composed.hydra.launcher.get("_target_") == SLURM_LAUNCHER:
        message = "the saved command would submit jobs to SLURM, which it does only where that is typed again"
        hint = "type hydra/launcher=submitit_slurm, or to go on right here: hydra/launcher=trials"
        raise ConfigError([Problem(key="hydra/launcher", message=message, hint=hint)])


def _carry_out_sweep(composed: DictConfig, line: CommandLine, overrides: list[str], task: Task) -> None:
    """Judge all that the jobs of a sweep may say to Hydra, then leave them to Hydra's sweeper.

    Args:
        composed: the first of them.
        line: what was typed.
        overrides: of all of them, as Hydra reads them.
        task: called once per job, unless the sweeper starts processes.
    """
    if composed.hydra.sweeper.get("_target_") != OUR_SWEEPER:  # ours judges each trial itself
        params = [f"{key}={value}" for key, value in (composed.hydra.sweeper.get("params") or {}).items()]
        for choices in choices_of_groups([*overrides, *params]):
            _refuse_problems_of_hydra(_composed(choices, line, []), choices)
    _carry_out_by_hydra([*line.flags, "--multirun", *overrides], task)


def _asks_for_multirun(composed: DictConfig) -> bool:
    """Whether the experiment sets hydra.mode, as files of searches do; read as it is written."""
    written = OmegaConf.to_container(composed, resolve=False)
    hydra = written.get("hydra") if isinstance(written, dict) else None
    mode = hydra.get("mode") if isinstance(hydra, dict) else None
    return getattr(mode, "name", mode) == RunMode.MULTIRUN.name


def _typed(line: CommandLine) -> TypedCommand:
    return TypedCommand(overrides=line.overrides)


def _never(job: Job) -> float | None:
    raise AssertionError(f"Hydra was to show something, not to carry out {job}")


def _refused_and_kept(line: CommandLine) -> tuple[list[Problem], list[str]]:
    """Overrides that are refused by themselves, as problems, and the others as Hydra reads them."""
    problems = [problem for override in line.overrides if (problem := refused(override))]
    kept = [permissive(override) for override in line.overrides if refused(override) is None]
    return problems, [*search_path(line.folders), *kept]


def _refuse_problems_of_hydra(composed: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse before Hydra carries out a config that says to it what it may not, or that could not even be resolved."""
    problems = [*judge_hydra(composed, overrides), *_unresolvable(composed)]
    if problems:
        raise ConfigError(problems)


def _unresolvable(composed: DictConfig) -> list[Problem]:
    written = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(written, dict)
    return unresolvable(written)


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


def _composed(overrides: list[str], line: CommandLine, problems: list[Problem]) -> DictConfig:
    """Compose one experiment.

    Overrides that ask for options which are not there are removed, after adding them to the problems, so that the
    schema can report the other mistakes along with them.
    """
    while True:
        try:
            return compose_values(overrides)
        except MissingConfigException as error:
            culprit = override_behind(error, overrides)
            problems.append(unknown_option(error, culprit, overrides, _options_with(line)))
            if culprit is None or line.is_multirun:
                raise ConfigError(problems) from error
            overrides.remove(culprit)
        except ConfigError as error:
            raise ConfigError([*problems, *error.problems]) from error
        except Exception as error:
            # Only Hydra is at work here, on what others may have written: whatever it stumbles over is their mistake.
            told = translate(error, overrides) or stumbled(error)
            raise ConfigError([*problems, told]) from error


def _options_with(line: CommandLine) -> Callable[[str], list[str]]:
    return lambda group: group_options(group, line.folders)


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


def _checked_job(
    composed: DictConfig, found_before: Sequence[Problem], overrides: Sequence[str], command: TypedCommand
) -> Job:
    """A single run."""
    HydraConfig.instance().set_config(composed)  # for interpolations such as ${hydra:job.name}
    config, told = checked_config(composed, found_before, overrides, command)
    return Job(config=config, overrides=told, folder=None)


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


def checked_config(
    composed: DictConfig, found_before: Sequence[Problem], given: Sequence[str], command: TypedCommand
) -> tuple[Config, tuple[str, ...]]:
    """The config of a composed experiment, and what was typed for it, without Hydra's prefixes.

    Args:
        composed: with the node `hydra`.
        found_before: mistakes that are reported along with those found here.
        given: the overrides that Hydra was given.
        command: what was typed.

    Raises:
        ConfigError: with every mistake and the place where it stands; or it reaches beyond its run, untyped.
    """
    typed = [item for item in given if not item.startswith(("hydra.", "hydra/"))]
    overrides = tuple(map(plain, typed))
    hydra = composed.get("hydra")
    try:
        with limited_time():
            return _judged(composed, [*found_before, *judge_hydra(composed, given)], command), overrides
    except ConfigError as error:
        files = experiment_files(hydra, overrides)
        raise ConfigError([with_origin(problem, overrides, files) for problem in error.problems]) from None


def _judged(composed: DictConfig, problems: list[Problem], command: TypedCommand) -> Config:
    written = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(written, dict)
    if unbounded := unresolvable(written):
        raise ConfigError([*problems, *unbounded])
    from_outside = from_environment(written)
    problems += passwords(written)
    with flag_override(composed, ["struct", "readonly"], [False, False]):
        composed.pop("hydra", None)
    values = {str(key): value for key, value in plain_values(composed, problems).items()}
    try:
        return command.judged(judge(values, tuple(problems)).with_written(from_outside))
    except ConfigError as error:
        raise ConfigError([as_written(problem, values, from_outside) for problem in error.problems]) from None


def plain_values(node: DictConfig | ListConfig, problems: list[Problem]) -> Any:  # noqa: ANN401 - plain values
    """Plain values; an interpolation that leads nowhere stays as it was written and is reported in `problems`."""
    as_written: Any = OmegaConf.to_container(node, resolve=False)
    names = range(len(node)) if isinstance(node, ListConfig) else list(node)
    values: dict[Any, Any] = {}
    for name in names:
        try:
            child = MISSING if OmegaConf.is_missing(node, name) else node[name]
        except OmegaConfBaseException as error:
            key = re.sub(r"\[(\d+)\]", r".\1", str(error.full_key or name))
            problems.append(Problem(key=key, message=str(error).splitlines()[0]))
            child = as_written[name]
        values[name] = plain_values(child, problems) if isinstance(child, DictConfig | ListConfig) else child
    return list(values.values()) if isinstance(node, ListConfig) else values


def to_yaml(config: Config) -> str:
    """A config as YAML, in the order of the schema, as it is saved and shown."""
    return yaml.safe_dump(config.to_save(), sort_keys=False, allow_unicode=True)
