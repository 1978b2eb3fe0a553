"""The one place where YAML files and overrides become a tree of values: `hydra.compose`, which only composes.

Nothing that a config says is carried out here: no callback, no logger, no folder.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from runner.base.errors import ConfigError, Problem
from runner.base.process import collection_paused
from runner.base.timeline import new_name
from runner.config.conf_folder import CONF_DIR

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
