"""The one place where YAML files and overrides become a tree of values: `hydra.compose`, which only composes.

Nothing that a config says is carried out here: no callback, no logger, no folder.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, ListConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from runner.base.errors import ConfigError, Problem
from runner.base.process import collection_paused
from runner.base.timeline import new_name
from runner.config import CONF_DIR
from runner.config.allowed_hydra import judge_hydra
from runner.config.interpolation import as_written, from_environment, passwords
from runner.config.references import unresolvable
from runner.config.refusal import experiment_files, plain, with_origin
from runner.config.schema import Config
from runner.config.schema.judge import MISSING, judge

if TYPE_CHECKING:
    from runner.config.saved import TypedCommand

_MAX_CPU_SECONDS = 30
"""A config takes 0.2 seconds; files that list each other again and again take forever."""
_SECONDS_BETWEEN = 1


def compose_values(overrides: Sequence[str]) -> DictConfig:
    """Compose an experiment.

    Args:
        overrides: in Hydra's grammar, none of them swept; folders of the user's own configs are among them.

    Returns:
        The values of all groups, and Hydra's own under `hydra`; interpolations are not resolved.

    Raises:
        ConfigError: it takes too long.
        HydraException, OmegaConfBaseException, YAMLError, OSError, UntrustedFileError: what else is wrong, for
            `runner/config/refusal.py` to tell.
    """
    outer = GlobalHydra.instance().hydra  # a sweep composes while Hydra is at work
    GlobalHydra.instance().clear()
    try:
        with (
            sweeps_named(new_name()),
            limited_time(),
            collection_paused(),
            initialize_config_dir(config_dir=str(CONF_DIR), job_name="runner", version_base="1.3"),
        ):
            return compose("train", overrides=list(overrides), return_hydra_config=True)
    finally:
        GlobalHydra.instance().clear()
        if outer is not None:
            GlobalHydra.instance().initialize(outer)


@contextmanager
def sweeps_named(name: Path) -> Iterator[None]:
    """Let conf/train.yaml name the folder of a new sweep."""
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
def limited_time() -> Iterator[None]:
    """End what composes or resolves for longer than any experiment needs; only the main thread can be interrupted.

    Whoever catches all exceptions, as OmegaConf does, is interrupted again and again until it ends.

    Raises:
        ConfigError: it took longer.
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
    signal.setitimer(signal.ITIMER_VIRTUAL, _MAX_CPU_SECONDS, _SECONDS_BETWEEN)
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
class Job:
    """One composed and checked experiment."""

    config: Config
    overrides: tuple[str, ...]
    """What was typed, without Hydra's prefixes."""
    folder: Path | None
    """The folder that a sweep has made for this job; None for a single run."""
    may_download: bool = True
    """Whether weights that it names may be downloaded."""


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
