"""Which of Hydra's own settings a config may set: a short allowlist; all others are refused before Hydra acts on them.

Hydra instantiates `hydra.callbacks`, configures loggers by factories that a config names, makes folders and sets
environment variables before the experiment's config is validated, and says that its blocklist of targets is no security
boundary. So the composed node `hydra` is checked first. Settings that are not listed here must have the values of Hydra
and conf/.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from runner.base.errors import Problem
from runner.config.overrides import OPTION_NAME

_NONE_LOGGING = {"version": 1, "root": None, "disable_existing_loggers": False}
# Settings that must have these values, which are those of Hydra and conf/.
_FIXED: dict[str, Any] = {
    "run.dir": ".",
    "output_subdir": None,
    "callbacks": {},
    "hydra_logging": _NONE_LOGGING,
    "job_logging": _NONE_LOGGING,
    "sweep.subdir": "${hydra.job.num}",
    "job.chdir": False,
    "job.env_set": {},
    "job.env_copy": [],
    "env": {},
}
_HINTS = {
    "run.dir": "say where run folders are made with output_dir=FOLDER",
    "output_subdir": "the resolved config lies in the run folder",
    "job.chdir": "run folders are made with output_dir=FOLDER; paths are relative to the folder that you start in",
    "job.env_set": "set environment variables in the shell that starts the runner",
}
# Texts that neither a shell, nor a batch script, nor joblib's eval could take for a command.
_PLAIN_TEXT = re.compile(r"[\w.:/@+=,%-]*(\$\{hydra\.job\.name\})?", re.ASCII)
_SUBMITIT = frozenset(
    {"timeout_min", "cpus_per_task", "gpus_per_node", "tasks_per_node", "mem_gb", "nodes", "name", "stderr_to_stdout"}
)
_SUBMITIT_DEFAULTS = {"submitit_folder": "${hydra.sweep.dir}/.submitit/%j"}
_SLURM = _SUBMITIT | frozenset(
    {"partition", "qos", "comment", "constraint", "exclude", "gres", "cpus_per_gpu", "gpus_per_task", "mem_per_gpu"}
    | {"mem_per_cpu", "account", "signal_delay_s", "max_num_timeout", "array_parallelism"}
)
_JOBLIB = frozenset({"n_jobs", "prefer", "require", "verbose", "timeout", "batch_size"})
_JOBLIB_DEFAULTS = {
    "backend": None,
    "pre_dispatch": "2*n_jobs",
    "temp_folder": None,
    "max_nbytes": None,
    "mmap_mode": "r",
}
SLURM_LAUNCHER = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher"
# By _target_: the options that may be set, and the required values of the others.
_LAUNCHERS: dict[str, tuple[frozenset[str], dict[str, Any]]] = {
    "hydra_plugins.runner_sweeps.TrialLauncher": (frozenset(), {}),
    "hydra._internal.core_plugins.basic_launcher.BasicLauncher": (frozenset(), {}),
    "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher": (_JOBLIB, _JOBLIB_DEFAULTS),
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher": (_SUBMITIT, _SUBMITIT_DEFAULTS),
    SLURM_LAUNCHER: (
        _SLURM,
        {**_SUBMITIT_DEFAULTS, "additional_parameters": {}, "setup": None},
    ),
}
OUR_SWEEPER = "hydra_plugins.runner_sweeps.TrialSweeper"
_SWEEPERS: dict[str, frozenset[str]] = {
    OUR_SWEEPER: frozenset({"sampler", "params"}),
    "hydra._internal.core_plugins.basic_sweeper.BasicSweeper": frozenset({"max_batch_size", "params"}),
}
# Nodes that Hydra itself fills in, or only prints.
_OF_HYDRA = frozenset({"help", "hydra_help", "runtime", "searchpath"})


def check_hydra_settings(composed: DictConfig, given: Collection[str]) -> list[Problem]:
    """Find settings of Hydra's own that a config must not have.

    Args:
        composed: with the node `hydra`, as composed: not yet acted on, interpolations not resolved.
        given: the overrides that Hydra was given.
    """
    written = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(written, dict)
    values = written.get("hydra")
    if not isinstance(values, dict):
        return [Problem(key="hydra", value=values, has_value=True, message="Hydra's own settings can't be deleted")]
    problems = [*_fixed(values), *_part("launcher", values, _launcher), *_part("sweeper", values, _sweeper)]
    for key, value in values.items():
        if key in _CHECKS:
            problems += _CHECKS[key](value)
        elif key not in _OF_HYDRA and not any(name.partition(".")[0] == key for name in (*_FIXED, *_CHECKED_ABOVE)):
            problems.append(_refused(str(key), value))
    return [*problems, *_overrides(values.get("overrides"), given), *_choices(values.get("runtime"))]


def _refused(key: str, value: Any, hint: str | None = None) -> Problem:  # noqa: ANN401 - whatever YAML can hold
    return Problem(
        key=f"hydra.{key}",
        value=value,
        has_value=True,
        message="can't be set: of Hydra's own settings a config may set hydra.sweep.dir, hydra.mode, hydra.job.name, "
        "the options of hydra/sweeper and hydra/launcher, and no others",
        hint=hint,
    )


def _fixed(values: Mapping[Any, Any]) -> Iterator[Problem]:
    for key, expected in _FIXED.items():
        found: Any = values
        for part in key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else found
        if found != expected and not (key == "job.chdir" and found is None):
            yield _refused(key, found, _HINTS.get(key))


def _part(
    name: str, values: Mapping[Any, Any], check: Callable[[str, Mapping[str, Any]], Iterator[Problem]]
) -> Iterator[Problem]:
    part = values.get(name)
    if not isinstance(part, Mapping):
        yield _refused(name, part)
        return
    target = part.get("_target_")
    known: Collection[str] = _LAUNCHERS if name == "launcher" else _SWEEPERS
    if target not in known:
        there = "grid, random, tpe, gp, nsga2 or basic" if name == "sweeper" else "trials, basic, joblib or submitit's"
        yield Problem(
            key=f"hydra.{name}._target_",
            value=target,
            has_value=True,
            message=f"is none of the runner's or Hydra's own; choose one with hydra/{name}=NAME: {there}",
        )
        return
    yield from check(str(target), {str(key): value for key, value in part.items() if key != "_target_"})


def _launcher(target: str, options: Mapping[str, Any]) -> Iterator[Problem]:
    free, fixed = _LAUNCHERS[target]
    for key, value in options.items():
        if key in fixed and value == fixed[key]:
            continue
        is_plain = value is None or isinstance(value, bool | int | float)
        if key not in free or not (is_plain or (isinstance(value, str) and _PLAIN_TEXT.fullmatch(value))):
            hint = (
                "dist=slurm submits jobs with dist.slurm.setup and dist.slurm.extra" if "submitit" in target else None
            )
            yield _refused(f"launcher.{key}", value, hint)


def _sweeper(target: str, options: Mapping[str, Any]) -> Iterator[Problem]:
    for key, value in options.items():
        if key not in _SWEEPERS[target]:
            yield _refused(f"sweeper.{key}", value)
    params = options.get("params") or {}
    if not isinstance(params, Mapping):
        yield _refused("sweeper.params", params)
        return
    for key, value in params.items():
        if str(key).lstrip("+~").startswith(("hydra", "/")):
            yield _refused(f"sweeper.params.{key}", value)


def _mode(value: Any) -> Iterator[Problem]:  # noqa: ANN401 - whatever YAML can hold
    if value is not None and getattr(value, "name", value) not in ("RUN", "MULTIRUN"):
        yield _refused("mode", value)


def _job(value: Any) -> Iterator[Problem]:  # noqa: ANN401 - whatever YAML can hold
    name = value.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name, re.ASCII):
        yield _refused("job.name", name, "letters, digits, dots, _ and - only")


def _verbose(value: Any) -> Iterator[Problem]:  # noqa: ANN401 - whatever YAML can hold
    if not isinstance(value, bool):
        yield _refused("verbose", value)


_CHECKS: dict[Any, Callable[[Any], Iterator[Problem]]] = {"mode": _mode, "job": _job, "verbose": _verbose}
_CHECKED_ABOVE = ("launcher", "sweeper", "sweep.dir", "overrides")


def _overrides(value: Any, given: Collection[str]) -> Iterator[Problem]:  # noqa: ANN401 - whatever YAML can hold
    """Hydra's launchers would compose jobs with overrides that a file lists here."""
    lists = value.values() if isinstance(value, Mapping) else ()
    for item in (item for items in lists for item in (items if isinstance(items, list) else [items])):
        if item not in given and item not in ("hydra.mode=RUN", "hydra.mode=MULTIRUN"):
            yield _refused("overrides", item)


def _choices(runtime: Any) -> Iterator[Problem]:  # noqa: ANN401 - whatever YAML can hold
    """Names of options, which files may choose by interpolation, must not lead out of the group's folder."""
    choices = runtime.get("choices") if isinstance(runtime, Mapping) else None
    for group, name in (choices or {}).items():
        if isinstance(name, str) and not OPTION_NAME.fullmatch(name):
            yield Problem(
                key=str(group),
                value=name,
                has_value=True,
                message="must be the name of an option in the folder of its group",
            )
