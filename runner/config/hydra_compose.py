"""The only module that calls `hydra.compose`, and the check of what it composes.

`hydra.compose` calls no callback, configures no logger and makes no folder.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, ListConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from runner.base.errors import ConfigError, Problem
from runner.base.process import gc_paused
from runner.base.timeline import new_run_name
from runner.config import CONF_DIR
from runner.config.allowed_hydra import check_hydra_settings
from runner.config.config_folder import ambiguous_options, experiment_files
from runner.config.hydra_errors import with_origin, without_plus
from runner.config.hydra_words import in_our_words
from runner.config.interpolation import as_written, from_environment, passwords, unresolvable
from runner.config.schema import Config
from runner.config.schema.checks.validation import MISSING, validate_config

_MAX_CPU_SECONDS = 30
"""A config takes 0.2 seconds; files whose defaults lists form a cycle take forever."""
_REPEAT_SECONDS = 1


def compose_values(overrides: Sequence[str]) -> DictConfig:
    """Compose an experiment.

    Args:
        overrides: in Hydra's grammar, without sweeps; config folders are among them as hydra.searchpath.

    Returns:
        The values of all groups, and Hydra's own under `hydra`; interpolations are not resolved.

    Raises:
        ConfigError: it takes too long.
        HydraException, OmegaConfBaseException, YAMLError, OSError, UntrustedFileError: other mistakes, which
            :func:`runner.config.hydra_errors.to_problem` explains.
    """
    outer = GlobalHydra.instance().hydra  # a sweep composes while hydra.main runs
    GlobalHydra.instance().clear()
    try:
        with (
            sweep_dir_resolver(new_run_name()),
            cpu_time_limit(),
            gc_paused(),
            initialize_config_dir(config_dir=str(CONF_DIR), job_name="runner", version_base="1.3"),
        ):
            return compose("train", overrides=list(overrides), return_hydra_config=True)
    finally:
        GlobalHydra.instance().clear()
        if outer is not None:
            GlobalHydra.instance().initialize(outer)


@contextmanager
def sweep_dir_resolver(name: Path) -> Iterator[None]:
    """Register the resolver by which conf/train.yaml names the folder of a new sweep."""
    had_resolver = OmegaConf.has_resolver("new_sweep_dir")
    if not had_resolver:
        OmegaConf.register_new_resolver(
            "new_sweep_dir", lambda sweep_dir, output_dir: sweep_dir or str(Path(str(output_dir)) / "sweeps" / name)
        )
    try:
        yield
    finally:
        if not had_resolver:
            OmegaConf.clear_resolver("new_sweep_dir")


@contextmanager
def cpu_time_limit() -> Iterator[None]:
    """Limit the CPU time of composing or resolving within the block; on the main thread only.

    As OmegaConf catches all exceptions, the timer interrupts it every second until it ends.

    Raises:
        ConfigError: the limit is exceeded.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_VIRTUAL)[0]:
        yield
        return

    is_over = False

    def end(_signal: int, _frame: FrameType | None) -> None:
        nonlocal is_over
        is_over = True
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, _MAX_CPU_SECONDS, _REPEAT_SECONDS)
    caught: Exception | None = None
    try:
        yield
    except Exception as error:  # Hydra wraps what it catches
        if not is_over:
            raise
        caught = error
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    if is_over:
        message = f"composing takes more than {_MAX_CPU_SECONDS} seconds: do files list each other again and again?"
        raise ConfigError([Problem(key="", message=message)]) from caught


@dataclass(frozen=True, kw_only=True)
class ComposedJob:
    """One composed and checked experiment: a single run, or one job of a sweep."""

    config: Config
    overrides: tuple[str, ...]
    """What was typed, without Hydra's prefixes (++)."""
    folder: Path | None
    """The folder that a sweep has made for this job; None for a single run."""
    may_download: bool = True
    """Whether the weights in model.weights may be downloaded."""


def checked_config(
    composed: DictConfig,
    found_before: Sequence[Problem],
    given: Sequence[str],
    apply_trust: Callable[[Config], Config],
) -> tuple[Config, tuple[str, ...]]:
    """The config of a composed experiment, and its overrides without Hydra's prefixes.

    Args:
        composed: with the node `hydra`.
        found_before: mistakes that are reported along with those found here.
        given: the overrides that Hydra was given.
        apply_trust: see :meth:`runner.config.saved.TypedCommand.apply_trust`.

    Raises:
        ConfigError: with every mistake and where it was written; or what `apply_trust` raises.
    """
    typed = [item for item in given if not item.startswith(("hydra.", "hydra/"))]
    overrides = tuple(map(without_plus, typed))
    problems = [*found_before, *check_hydra_settings(composed, given)]
    hydra = as_plain(composed).get("hydra") or {}
    files = experiment_files(hydra, overrides)
    try:
        with cpu_time_limit():
            config = _checked(composed, [*problems, *ambiguous_options(hydra, overrides)], apply_trust)
    except ConfigError as error:
        raise ConfigError([with_origin(problem, overrides, files) for problem in error.problems]) from None
    return config.with_experiments(map(str, files)), overrides


def _checked(composed: DictConfig, problems: list[Problem], apply_trust: Callable[[Config], Config]) -> Config:
    written = as_plain(composed)
    if unbounded := unresolvable(written):
        raise ConfigError([*problems, *unbounded])
    from_outside = from_environment(written)
    problems += passwords(written)
    with flag_override(composed, ["struct", "readonly"], [False, False]):
        composed.pop("hydra", None)
    values = {str(key): value for key, value in plain_values(composed, problems).items()}
    try:
        return apply_trust(validate_config(values, tuple(problems)).with_written(from_outside))
    except ConfigError as error:
        raise ConfigError([as_written(problem, values, from_outside) for problem in error.problems]) from None


def as_plain(node: DictConfig) -> dict[Any, Any]:
    """Plain values with interpolations as they are written."""
    written = OmegaConf.to_container(node, resolve=False)
    assert isinstance(written, dict)
    return written


def plain_values(node: DictConfig | ListConfig, problems: list[Problem]) -> Any:  # noqa: ANN401 - plain values
    """Resolved plain values; an interpolation that can't be resolved stays as written and is added to `problems`."""
    as_written: Any = OmegaConf.to_container(node, resolve=False)
    names = range(len(node)) if isinstance(node, ListConfig) else list(node)
    values: dict[Any, Any] = {}
    for name in names:
        try:
            child = MISSING if OmegaConf.is_missing(node, name) else node[name]
        except OmegaConfBaseException as error:
            key = re.sub(r"\[(\d+)\]", r".\1", str(error.full_key or name))
            problems.append(Problem(key=key, message=in_our_words(str(error).splitlines()[0])))
            child = as_written[name]
        values[name] = plain_values(child, problems) if isinstance(child, DictConfig | ListConfig) else child
    return list(values.values()) if isinstance(node, ListConfig) else values
