"""Hydra's part of the front door: YAML files and overrides become one tree of values, one per job.

Composition is permissive (`a.b=1` is read as `++a.b=1`) so that the schema, which knows every key, its unit and
its range, sees all mistakes at once; `runner/config/refusal.py` turns what Hydra refuses into the same kind of message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hydra.core.hydra_config import HydraConfig
from hydra.errors import MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from runner.base.errors import ConfigError, Problem, UsageError
from runner.config import group_options
from runner.config.allowed_hydra import OUR_SWEEPER, SLURM_LAUNCHER, judge_hydra
from runner.config.arguments import SHELL_COMPLETION, CommandLine, read_command_line
from runner.config.composing import Job, checked_config, compose_values
from runner.config.multirun import Multirun, shown_by_hydra
from runner.config.overrides import choices_of_groups, permissive, refused
from runner.config.own_files import search_path
from runner.config.references import unresolvable
from runner.config.refusal import (
    override_behind,
    stumbled,
    translate,
    unknown_option,
)
from runner.config.saved import TypedCommand
from runner.config.trust import is_typed


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
    if _is_for_completion(line):
        return None
    problems, overrides = _refused_and_kept(line)
    return _one(_composed(overrides, line, problems), line, problems, overrides)


def compose(argv: Sequence[str], typed: TypedCommand | None = None) -> Job | Multirun | None:
    """Compose and check what `argv` describes; what a config says to Hydra is judged before Hydra carries it out.

    Args:
        argv: Hydra's flags and overrides, without the command.
        typed: what was typed, where `argv` is the command of a sweep from its folder; by default all was.

    Returns:
        One experiment; or a sweep, whose jobs are composed when it is carried out; None where Hydra was only asked to
        show something.

    Raises:
        UsageError: a flag that is not taken.
        ConfigError: with every mistake.
    """
    line = read_command_line(argv)
    if _is_for_completion(line):
        return None
    problems, overrides = _refused_and_kept(line)
    first = next(choices_of_groups(overrides))
    composed = _composed(first, line, problems)
    if line.is_multirun or _asks_for_multirun(composed):
        if problems:
            raise ConfigError(problems)
        return _multirun(composed, line, overrides, typed or _typed(line))
    is_swept = len(first) != len(overrides) - len(problems) or any(item not in overrides for item in first)
    return _one(_composed(overrides, line, problems) if is_swept else composed, line, problems, first)


def _is_for_completion(line: CommandLine) -> bool:
    """Whether a shell asked for completion, which it has got then."""
    is_asked = bool(SHELL_COMPLETION & set(line.flags))
    if is_asked:
        shown_by_hydra([*line.flags, *line.overrides], _typed(line))
    return is_asked


def _one(composed: DictConfig, line: CommandLine, problems: list[Problem], overrides: list[str]) -> Job | None:
    if not line.flags:
        return _checked_job(composed, problems, overrides, _typed(line))
    _refuse_problems_of_hydra(composed, overrides)
    shown_by_hydra([*line.flags, *overrides], _typed(line))
    return None


def _multirun(composed: DictConfig, line: CommandLine, overrides: list[str], command: TypedCommand) -> Multirun:
    """Judge all that the jobs of a sweep may say to Hydra.

    Args:
        composed: the first of them.
        line: what was typed.
        overrides: of all of them, as Hydra reads them.
        command: what was typed; the rest comes from the folder of a sweep.
    """
    _refuse_problems_of_hydra(composed, next(choices_of_groups(overrides)))
    _refuse_untyped_launcher(composed, command)
    if composed.hydra.sweeper.get("_target_") != OUR_SWEEPER:  # ours judges each trial itself
        params = [f"{key}={value}" for key, value in (composed.hydra.sweeper.get("params") or {}).items()]
        for choices in choices_of_groups([*overrides, *params]):
            _refuse_problems_of_hydra(_composed(choices, line, []), choices)
    return Multirun(arguments=(*line.flags, *overrides), command=command)


def _refuse_untyped_launcher(composed: DictConfig, command: TypedCommand) -> None:
    if command.defaults is None or is_typed("hydra/launcher", command.overrides):
        return
    if composed.hydra.launcher.get("_target_") == SLURM_LAUNCHER:
        message = "the saved command would submit jobs to SLURM, which it does only where that is typed again"
        hint = "type hydra/launcher=submitit_slurm, or to go on right here: hydra/launcher=trials"
        raise ConfigError([Problem(key="hydra/launcher", message=message, hint=hint)])


def _asks_for_multirun(composed: DictConfig) -> bool:
    """Whether the experiment sets hydra.mode, as files of searches do; read as it is written."""
    written = OmegaConf.to_container(composed, resolve=False)
    hydra = written.get("hydra") if isinstance(written, dict) else None
    mode = hydra.get("mode") if isinstance(hydra, dict) else None
    return getattr(mode, "name", mode) == RunMode.MULTIRUN.name


def _typed(line: CommandLine) -> TypedCommand:
    return TypedCommand(overrides=line.overrides)


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


def _checked_job(
    composed: DictConfig, found_before: Sequence[Problem], overrides: Sequence[str], command: TypedCommand
) -> Job:
    """A single run."""
    HydraConfig.instance().set_config(composed)  # for interpolations such as ${hydra:job.name}
    config, told = checked_config(composed, found_before, overrides, command)
    return Job(config=config, overrides=told, folder=None)
