"""Composes what the command line describes: one experiment or a sweep, checked, or all mistakes at once.

Composition is permissive (`a.b=1` is read as `++a.b=1`), so that the schema, which knows every key, its unit and its
range, sees all mistakes; `runner/config/hydra_errors.py` turns Hydra's errors into the same kind of message.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.hydra_config import HydraConfig
from hydra.errors import MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig

from runner.base.errors import ConfigError, Problem, UsageError
from runner.config import group_options
from runner.config.allowed_hydra import OUR_SWEEPER, SLURM_LAUNCHER, check_hydra_settings
from runner.config.arguments import SHELL_COMPLETION, CommandLine, read_command_line
from runner.config.config_folder import ambiguous_options, search_path
from runner.config.hydra_compose import ComposedJob, as_plain, checked_config, compose_values
from runner.config.hydra_errors import override_behind, to_problem, unforeseen_problem, unknown_option
from runner.config.interpolation import passwords, unresolvable
from runner.config.multirun import Multirun, run_hydra_flag
from runner.config.overrides import choices_of_groups, find_mistake, permissive, with_names
from runner.config.saved import TypedCommand
from runner.config.trust import is_typed


def compose_one(argv: Sequence[str]) -> ComposedJob | None:
    """Compose and check one experiment, also where its file asks for a sweep (hydra.mode).

    Args:
        argv: Hydra's flags and overrides, without the command.

    Returns:
        The experiment; None where a flag of Hydra's only shows something, such as the composed config.

    Raises:
        UsageError: a flag that is not accepted, such as -m.
        ConfigError: with every mistake.
    """
    line = read_command_line(argv)
    if line.is_multirun:
        raise UsageError("-m starts a sweep; this takes one experiment")
    if _completes_for_shell(line):
        return None
    problems, overrides = _read_overrides(line)
    return _single_job(_compose(overrides, line, problems), line, problems, overrides)


def compose(argv: Sequence[str], typed: TypedCommand | None = None) -> ComposedJob | Multirun | None:
    """Compose and check what `argv` describes; Hydra's own settings are checked before Hydra acts on them.

    Args:
        argv: Hydra's flags and overrides, without the command.
        typed: what was typed, where `argv` is the saved command of a sweep; by default all of `argv`.

    Returns:
        One experiment; or a sweep, whose jobs are composed when it runs; None where a flag of Hydra's only shows
        something.

    Raises:
        UsageError: a flag that is not accepted.
        ConfigError: with every mistake.
    """
    line = read_command_line(argv)
    if _completes_for_shell(line):
        return None
    problems, overrides = _read_overrides(line)
    first = next(choices_of_groups(overrides))
    composed = _compose(first, line, problems)
    if line.is_multirun or _asks_for_multirun(composed):
        if problems:
            raise ConfigError(problems)
        return _multirun(composed, line, overrides, typed or TypedCommand(overrides=line.overrides))
    is_swept = len(first) != len(overrides) - len(problems) or any(item not in overrides for item in first)
    return _single_job(_compose(overrides, line, problems) if is_swept else composed, line, problems, first)


def _completes_for_shell(line: CommandLine) -> bool:
    """Print completions where a shell asks for them."""
    is_asked = bool(SHELL_COMPLETION & set(line.flags))
    if is_asked:
        run_hydra_flag([*line.flags, *line.overrides], TypedCommand(overrides=line.overrides))
    return is_asked


def _single_job(
    composed: DictConfig, line: CommandLine, problems: list[Problem], overrides: list[str]
) -> ComposedJob | None:
    command = TypedCommand(overrides=line.overrides)
    if line.flags:
        _check_for_hydra(composed, overrides)
        run_hydra_flag([*line.flags, *overrides], command)
        return None
    HydraConfig.instance().set_config(composed)  # for interpolations such as ${hydra:job.name}
    config, typed = checked_config(composed, problems, overrides, command.apply_trust)
    return ComposedJob(config=config, overrides=typed, folder=None)


def _multirun(composed: DictConfig, line: CommandLine, overrides: list[str], command: TypedCommand) -> Multirun:
    """Check Hydra's own settings in all jobs of a sweep.

    Args:
        composed: the first job.
        line: what was typed.
        overrides: of all jobs, as Hydra reads them.
        command: what was typed; the rest comes from a sweep folder.
    """
    _check_for_hydra(composed, next(choices_of_groups(overrides)))
    is_saved = command.defaults is not None and not is_typed("hydra/launcher", command.overrides)
    if is_saved and composed.hydra.launcher.get("_target_") == SLURM_LAUNCHER:
        message = "the saved command would submit jobs to SLURM, which it does only where that is typed again"
        hint = "type hydra/launcher=submitit_slurm, or to train on this machine: hydra/launcher=trials"
        raise ConfigError([Problem(key="hydra/launcher", message=message, hint=hint)])
    if composed.hydra.sweeper.get("_target_") != OUR_SWEEPER:  # our sweeper checks each trial itself
        params = [f"{key}={value}" for key, value in (composed.hydra.sweeper.get("params") or {}).items()]
        for choices in choices_of_groups([*overrides, *params]):
            _check_for_hydra(_compose(choices, line, []), choices)
    return Multirun(arguments=(*line.flags, *overrides), command=command)


def _asks_for_multirun(composed: DictConfig) -> bool:
    """Whether the experiment sets hydra.mode to MULTIRUN, read without resolving interpolations."""
    hydra = as_plain(composed).get("hydra")
    mode = hydra.get("mode") if isinstance(hydra, dict) else None
    return getattr(mode, "name", mode) == RunMode.MULTIRUN.name


def _read_overrides(line: CommandLine) -> tuple[list[Problem], list[str]]:
    """The mistakes of single overrides, and the other overrides as Hydra reads them."""
    mistakes = {override: find_mistake(override) for override in line.overrides}
    problems = [mistake for override in line.overrides if (mistake := mistakes[override])]
    good = [permissive(override) for override in line.overrides if mistakes[override] is None]
    return problems, [*search_path(line.folders), *(with_names(override, line.folders) for override in good)]


def _check_for_hydra(composed: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse Hydra settings that are not allowed, and interpolations that can't be resolved, before Hydra acts."""
    values = as_plain(composed)
    problems = [*check_hydra_settings(composed, overrides), *unresolvable(values), *passwords(values)]
    problems += ambiguous_options(values["hydra"], overrides) if not problems else []
    if problems:
        raise ConfigError(problems)


def _compose(overrides: list[str], line: CommandLine, problems: list[Problem]) -> DictConfig:
    """Compose one experiment.

    An override with an unknown option is removed from `overrides` and added to `problems`, so that the schema can
    report the other mistakes along with it.
    """
    while True:
        try:
            return compose_values(overrides)
        except MissingConfigException as error:
            culprit = override_behind(error, overrides)
            options = lambda group: group_options(group, line.folders)  # noqa: E731
            problems.append(unknown_option(error, culprit, overrides, options))
            if culprit is None or line.is_multirun:
                raise ConfigError(problems) from error
            overrides.remove(culprit)
        except ConfigError as error:
            raise ConfigError([*problems, *error.problems]) from error
        except Exception as error:
            # Only Hydra runs here, on files that others may have written: any exception is a mistake in these.
            problem = to_problem(error, overrides) or unforeseen_problem(error)
            raise ConfigError([*problems, problem]) from error
