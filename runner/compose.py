"""Hydra's part of the front door: YAML files and overrides become one tree of values, one per job.

Composition is permissive (`a.b=1` is read as `++a.b=1`) so that the schema, which knows every key, its unit and its
range, sees all mistakes at once; what Hydra itself refuses is turned into the same kind of message.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import main as hydra_main
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.errors import ConfigError, Problem, RunnerError
from runner.schema import VARIANT_KEYS, Config
from runner.schema.base import Section
from runner.schema.judge import judge

_PACKAGE_DIR = Path(__file__).resolve().parent
# In a wheel the YAML ships inside the package; in a checkout it stands beside it.
CONF_DIR = next(path for path in (_PACKAGE_DIR / "conf", _PACKAGE_DIR.parent / "conf") if path.is_dir())

GROUPS = frozenset(name for name, field in Config.model_fields.items() if (CONF_DIR / name).is_dir()) | {"experiment"}
COMMAND_LINE = "from the command line"
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
    sign, key, rest = match["sign"] or "", match["key"], match["rest"] or ""
    package = match["package"] or ""
    if key in GROUPS and sign in ("+", "++"):
        return f"{key}{package}{rest}"
    is_value = key not in GROUPS and "/" not in key and not package
    if is_value and sign == "" and rest and key.split(".", 1)[0] != "hydra":
        return f"++{key}{rest}"
    if is_value and sign == "+" and "." in key:
        return f"++{key}{rest}"
    return override


def plain(override: str) -> str:
    """An override as a person would type it."""
    return override.lstrip("+")


def compose_jobs(argv: Sequence[str], config_name: str, run_job: Callable[[Job], float | None]) -> None:
    """Compose each job that `argv` describes, check it, and hand it to `run_job`.

    Args:
        argv: Hydra's flags and overrides, without the command.
        config_name: the primary config in conf/.
        run_job: called once, or once per job of a multirun; its result is given to Hydra's sweeper.

    Raises:
        ConfigError: when composing or checking fails; nothing was run then.
    """
    arguments = [permissive(argument) for argument in argv]
    problems = [problem for argument in argv if (problem := _swapped_variant(argument))]
    failure: Exception | None = None

    def task(values: DictConfig) -> float | None:
        nonlocal failure
        try:
            return run_job(_checked_job(values, tuple(problems)))
        except Exception as error:
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                raise  # Hydra goes on with the next job and raises the first failure at the end.
            failure = error  # Raised below, past Hydra's own report of a failed job.
            return None

    while True:
        try:
            with _hydra_environment(arguments):
                hydra_main(version_base="1.3", config_path=str(CONF_DIR), config_name=config_name)(task)()
        except RunnerError:
            raise
        except MissingConfigException as error:
            culprit = _override_behind(error, arguments)
            problems.append(_unknown_option(error, culprit))
            if culprit is None:
                raise ConfigError(problems) from error
            # Left out, so that the schema can report the other mistakes along with this one.
            arguments.remove(culprit)
            continue
        except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
            raise ConfigError([*problems, _translated(error)]) from error
        except ValueError as error:
            if not str(error).startswith("Config group override"):
                raise
            raise ConfigError([*problems, _translated(error)]) from error
        if failure is not None:
            raise failure
        return


@contextmanager
def _hydra_environment(arguments: list[str]) -> Iterator[None]:
    """Hydra reads sys.argv, and prints and exits by itself unless HYDRA_FULL_ERROR lets exceptions through."""
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [argv[0], *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error


def _checked_job(composed: DictConfig, found_before: tuple[Problem, ...]) -> Job:
    hydra = HydraConfig.get()
    typed = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    assert isinstance(typed, list)
    overrides = tuple(plain(override) for override in typed)
    is_multirun = hydra.mode == RunMode.MULTIRUN
    try:
        values = OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError([*found_before, _translated(error)]) from error
    assert isinstance(values, dict)
    try:
        config = judge(_without_hydra(values), found_before)
    except ConfigError as error:
        experiment = _experiment_file(hydra)
        raise ConfigError([_with_origin(problem, overrides, experiment) for problem in error.problems]) from None
    return Job(config=config, overrides=overrides, folder=Path(hydra.runtime.output_dir) if is_multirun else None)


def _without_hydra(values: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in values.items() if key != "hydra"}


def _override_behind(error: MissingConfigException, arguments: Sequence[str]) -> str | None:
    missing = (error.missing_cfg_file or "").removesuffix(".yaml")
    group, _, option = missing.rpartition("/")
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key.partition("@")[0].lstrip("+") == group and option in value:
            return argument
    return None


def _swapped_variant(argument: str) -> Problem | None:
    key, equals, value = argument.partition("=")
    group = key.lstrip("+").partition(".")[0]
    if not equals or VARIANT_KEYS.get(group) != key.lstrip("+").partition(".")[2] or group == "model":
        return None
    return Problem(
        key=key.lstrip("+"),
        value=value,
        has_value=True,
        message="follows from the option of the group and brings its own keys",
        hint=f"choose it with {group}={value}",
        origin=COMMAND_LINE,
    )


def _unknown_option(error: MissingConfigException, culprit: str | None) -> Problem:
    missing = (error.missing_cfg_file or "").removesuffix(".yaml")
    group, _, option = missing.rpartition("/")
    options = sorted(name for name in error.options or () if not name.startswith("_"))
    if not group:
        return Problem(key="", message=str(error).splitlines()[0])
    close = difflib.get_close_matches(option, options, n=1)
    return Problem(
        key=group,
        value=option,
        has_value=True,
        message=f"no such option; there are {', '.join(options) or 'none'}",
        hint=f"did you mean {close[0]}?" if close else None,
        origin=COMMAND_LINE if culprit else None,
    )


def _translated(error: Exception) -> Problem:
    if isinstance(error, OverrideParseException):
        return Problem(
            key="",
            message=f"{plain(error.override)!r} can't be read as key=value: {str(error).splitlines()[0]}",
            hint="quote what the shell or Hydra would take apart, such as 'key=\"a b\"'",
            origin=COMMAND_LINE,
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    full_key = getattr(error, "full_key", None)
    if isinstance(error, OmegaConfBaseException) and full_key:
        return Problem(key=str(full_key), message=lines[0])
    return Problem(key="", message="; ".join(lines) or type(error).__name__)


def _experiment_file(hydra: Any) -> Path | None:  # noqa: ANN401 - Hydra's own structured config
    name = hydra.runtime.choices.get("experiment")
    if not name or name == "null":
        return None
    for source in hydra.runtime.config_sources:
        path = Path(source.path) / "experiment" / f"{name}.yaml"
        if source.path and path.is_file():
            return path
    return None


def _with_origin(problem: Problem, overrides: Sequence[str], experiment: Path | None) -> Problem:
    if problem.origin is not None or not problem.key:
        return problem
    origin = None
    if any(override.lstrip("~").partition("=")[0] == problem.key for override in overrides):
        origin = COMMAND_LINE
    elif experiment is not None and _stands_in(experiment, problem.key):
        origin = f"from {experiment}"
    if problem.key == "experiment" and experiment is not None:
        return Problem(key="", message=f"{experiment} must begin with the line `# @package _global_`")
    return Problem(
        key=problem.key,
        value=problem.value,
        has_value=problem.has_value,
        message=problem.message,
        hint=problem.hint,
        origin=origin,
    )


def _stands_in(file: Path, key: str) -> bool:
    node: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True


def group_options(group: str) -> list[str]:
    """The options of a config group that ship with the runner."""
    return sorted(path.stem for path in (CONF_DIR / group).glob("*.yaml") if not path.stem.startswith("_"))


def to_yaml(config: Section) -> str:
    """A config as YAML, in the order of the schema."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
