"""Hydra's part of the front door: YAML files and overrides become one tree of values, one per job.

Composition is permissive (`a.b=1` is read as `++a.b=1`) so that the schema, which knows every key, its unit and
its range, sees all mistakes at once; `runner/refusal.py` turns what Hydra refuses into the same kind of message.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import main as hydra_main
from hydra.core.hydra_config import HydraConfig
from hydra.errors import MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.conf_folder import CONF_DIR, group_options
from runner.errors import ConfigError, Problem
from runner.refusal import (
    COMMAND_LINE,
    SHELL_COMPLETION,
    experiment_files,
    override_behind,
    plain,
    translate,
    unknown_option,
    with_origin,
)
from runner.run_folder import new_name
from runner.schema import VARIANT_KEYS, Config
from runner.schema.base import Section
from runner.schema.judge import MISSING, judge
from runner.single_run import run_composed_once

GROUPS = frozenset(name for name, field in Config.model_fields.items() if (CONF_DIR / name).is_dir()) | {"experiment"}
# Their values are paths or other plain text, taken as they are typed; keys without a group, `model` too, are those of
# commands.
PATH_KEYS = frozenset(
    {"data.root", "data.train", "data.val", "data.test", "data.exclude", "output_dir", "sweep.dir", "model.weights"}
    | {"run", "a", "b", "model", "checkpoint", "input", "output", "root"}
    | {"path_column", "label_column", "group_column", "split_column", "delimiter", "encoding"}
)
# Hydra would make these before anything is checked.
_FOLDERS_OF_HYDRA = frozenset({"hydra.run.dir", "hydra.output_subdir"})
_PLAIN_PATH = re.compile(r"[A-Za-z./_-][\w./@%:+-]*", re.ASCII)
_KEY = re.compile(r"^(?P<sign>\+\+|\+|~)?(?P<key>[^=]+?)(?P<package>@[^=]*)?(?P<rest>=.*)?$", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One composed and checked experiment."""

    config: Config
    overrides: tuple[str, ...]
    """What was typed, without Hydra's prefixes."""
    folder: Path | None
    """The folder that a sweep has made for this job; None for a single run."""


def permissive(override: str) -> str:
    """Read an override as its writer meant it: values may be added, groups need no plus."""
    match = _KEY.match(override)
    if match is None or override.startswith("-"):
        return override
    if override == "experiment=null":
        return "~experiment"  # It stands like this in train.yaml, but Hydra takes no null on the command line.
    sign, key, rest = match["sign"] or "", match["key"], _quoted(match["key"], match["rest"] or "")
    package = match["package"] or ""
    if key in GROUPS and sign in ("+", "++"):
        return f"{key}{package}{rest}"
    is_value = key not in GROUPS and "/" not in key and not package
    if is_value and sign == "" and rest and key.split(".", 1)[0] != "hydra":
        return f"++{key}{rest}"
    if is_value and sign == "+" and ("." in key or key in Config.model_fields):
        return f"++{key}{rest}"
    return override


def as_typed(override: str, *, is_swept: bool = False) -> str:
    """An override of a command's own key: a path is taken as it was typed, commas and all unless it is swept."""
    key, equals, value = override.partition("=")
    return f"{key}{_quoted(key, equals + value, has_list=is_swept)}"


def _quoted(key: str, rest: str, *, has_list: bool = True) -> str:
    """A path as it was typed: Hydra's grammar would stumble over ~, umlauts or brackets, and read 2024 as a number."""
    value = rest[1:]
    is_for_hydra = value in ("", "null") or value[0] in "'\"[" or ("," in value and has_list) or "${" in value
    if key not in PATH_KEYS or is_for_hydra or _PLAIN_PATH.fullmatch(value):
        return rest
    return "='" + value.replace("'", "\\'") + "'"


def compose_jobs(argv: Sequence[str], config_name: str, run_job: Callable[[Job], float | None]) -> None:
    """Compose each job that `argv` describes, check it, and hand it to `run_job`.

    Args:
        argv: Hydra's flags and overrides, without the command.
        config_name: the primary config in conf/.
        run_job: called once, or once per job of a multirun; its result is given to Hydra's sweeper.

    Raises:
        ConfigError: when composing or checking fails. A single run has not begun then; of a multirun, other jobs
            may have run.
    """
    problems = [problem for argument in argv if (problem := _refused(argument))]
    arguments = _for_hydra(argv)
    while culprit := _compose(arguments, config_name, run_job, problems):
        if {"-m", "--multirun"} & set(argv):
            raise ConfigError(problems)
        # Left out, so that the schema can report the other mistakes along with this one.
        arguments.remove(culprit)


class Task:
    """What Hydra calls with each composed config; launchers such as joblib's send it to other processes."""

    def __init__(
        self, run_job: Callable[[Job], float | None], found_before: tuple[Problem, ...], sweep_name: Path
    ) -> None:
        self.run_job = run_job
        self.found_before = found_before
        self.sweep_name = sweep_name
        self.failures: list[Exception] = []

    def __call__(self, values: DictConfig) -> float | None:
        """Check one job and run it."""
        try:
            return self.run_job(_checked_job(values, self.found_before))
        except Exception as error:
            self.failures.append(error)
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                raise  # Hydra goes on with the next job and raises the first failure at the end.
            return None  # Raised below, past Hydra's own report of a failed job.

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process the resolver has to be there before the config is read."""
        return _revived, (self.run_job, self.found_before, self.sweep_name)


def _revived(run_job: Callable[[Job], float | None], found_before: tuple[Problem, ...], sweep_name: Path) -> Task:
    _name_sweeps(sweep_name)
    return Task(run_job, found_before, sweep_name)


def _compose(
    arguments: list[str], config_name: str, run_job: Callable[[Job], float | None], problems: list[Problem]
) -> str | None:
    """Returns the override that asks for an option that is not there, after adding it to the problems; else None."""
    task = Task(run_job, tuple(problems), new_name())
    try:
        _run_hydra(arguments, config_name, task)
    except MissingConfigException as error:
        culprit = override_behind(error, arguments)
        problems.append(unknown_option(error, culprit, arguments, group_options))
        if culprit is None:
            raise ConfigError(problems) from error
        return culprit
    except Exception as error:
        refusal = translate(error, arguments) if error not in task.failures else None
        if refusal is None:
            raise
        raise ConfigError([*problems, refusal]) from error
    if task.failures:
        raise task.failures[0]
    return None


def _run_hydra(arguments: list[str], config_name: str, task: Task) -> None:
    with _hydra_environment(arguments, task.sweep_name):
        if run_composed_once(arguments, CONF_DIR, config_name, task):
            return
        hydra_main(version_base="1.3", config_path=str(CONF_DIR), config_name=config_name)(task)()


def _for_hydra(argv: Sequence[str]) -> list[str]:
    if SHELL_COMPLETION & set(argv):
        return list(argv)  # What follows this flag looks like overrides, but is none.
    return [permissive(argument) for argument in argv if _refused(argument) is None]


def _name_sweeps(name: Path) -> None:
    OmegaConf.register_new_resolver(
        "new_sweep_dir",
        lambda sweep_dir, output_dir: sweep_dir or str(Path(str(output_dir)) / "sweeps" / name),
        replace=True,
    )


@contextmanager
def _hydra_environment(arguments: list[str], sweep_name: Path) -> Iterator[None]:
    """What Hydra takes from its surroundings: sys.argv, and the name of a new sweep folder.

    Hydra prints and exits by itself unless HYDRA_FULL_ERROR lets its exceptions through.
    """
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    _name_sweeps(sweep_name)
    sys.argv = [argv[0], *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        OmegaConf.clear_resolver("new_sweep_dir")
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error


def _checked_job(composed: DictConfig, found_before: tuple[Problem, ...]) -> Job:
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir) if hydra.mode == RunMode.MULTIRUN else None
    try:
        config, overrides = checked_config(composed, hydra, found_before)
    except ConfigError:
        if folder is not None and not any(folder.iterdir()):
            folder.rmdir()  # Hydra has made it for this job; a refusal leaves nothing behind.
        raise
    return Job(config=config, overrides=overrides, folder=folder)


def checked_config(
    composed: DictConfig,
    hydra: Any,  # noqa: ANN401 - Hydra's structured config
    found_before: tuple[Problem, ...] = (),
) -> tuple[Config, tuple[str, ...]]:
    """The config of a composed experiment, and what was typed for it, without Hydra's prefixes.

    Args:
        composed: with or without the node `hydra`.
        hydra: that node.
        found_before: mistakes that are reported along with those found here.

    Raises:
        ConfigError: with every mistake and the place where it stands.
    """
    typed = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    assert isinstance(typed, list)
    overrides = tuple(plain(override) for override in typed)
    unresolved: list[Problem] = []
    values = {str(key): value for key, value in plain_values(composed, unresolved).items() if key != "hydra"}
    try:
        return judge(values, (*found_before, *unresolved)), overrides
    except ConfigError as error:
        files = experiment_files(hydra, overrides)
        raise ConfigError([with_origin(problem, overrides, files) for problem in error.problems]) from None


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


def _refused(argument: str) -> Problem | None:
    return _folder_of_hydra(argument) or _swapped_variant(argument)


def _folder_of_hydra(argument: str) -> Problem | None:
    key, equals, value = argument.lstrip("+").partition("=")
    if not equals or key not in _FOLDERS_OF_HYDRA:
        return None
    return Problem(
        key=key,
        value=value,
        has_value=True,
        message="run folders are made by the runner, after everything was checked",
        hint="say where with output_dir=…",
        origin=COMMAND_LINE,
    )


def _swapped_variant(argument: str) -> Problem | None:
    key, equals, value = argument.lstrip("+").partition("=")
    group, _, name = key.partition(".")
    if not equals or VARIANT_KEYS.get(group) != name:
        return None
    return Problem(
        key=key,
        value=value,
        has_value=True,
        message="follows from the option of the group, which brings its own keys",
        hint=f"choose it with {group}={value if value in group_options(group) else '…'}",
        origin=COMMAND_LINE,
    )


def to_yaml(config: Section) -> str:
    """A config as YAML, in the order of the schema."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
