"""Starts and ends the process that follows a run for its trackers."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.base.console import LOGGER
from runner.base.errors import ConfigError, Extra, MissingPackageError, Problem, StoppedOnRequest, how_to_install
from runner.base.reasons import reason_of
from runner.config.schema.tracker import TrackerConfig

TRAINING_HAS_ENDED = b"end\n"
"""The last line that the follower reads; without it the training was killed."""
_URI_VARIABLE = "MLFLOW_TRACKING_URI"
_SECONDS_WHEN_STOPPED = 5.0
_PACKAGES: dict[str, Extra] = {"mlflow": "mlflow", "wandb": "wandb"}


def uri_of(config: TrackerConfig) -> str | None:
    """The address of MLflow's server: the typed one, or that of the environment."""
    return config.uri or os.environ.get(_URI_VARIABLE) or None


def check_trackers(config: TrackerConfig) -> None:
    """Check that the trackers of a config can be used here; no server is asked.

    Raises:
        MissingPackageError: the client of a tracker is not installed.
        ConfigError: MLflow has no address.
    """
    for name in config.names:
        if name in _PACKAGES and importlib.util.find_spec(name) is None:
            raise MissingPackageError(
                f"tracker={name} needs {name}, which is not installed: {how_to_install(_PACKAGES[name])}"
            )
    if "mlflow" in config.names and uri_of(config) is None:
        raise ConfigError(
            [
                Problem(
                    key="tracker.uri",
                    message="MLflow's address is not known; a saved one counts only where it is typed again",
                    hint=f"type tracker.uri=http://HOST:PORT, set {_URI_VARIABLE}, or leave MLflow out: tracker=none",
                )
            ]
        )


@contextmanager
def with_trackers(run_dir: Path, config: TrackerConfig) -> Iterator[None]:
    """Let the trackers follow a run within the block; at its end wait until they have all of it, for a while.

    Nothing that a tracker does or fails to do raises here.
    """
    process = _start(run_dir, config) if config.names else None
    if process is None:
        yield
        return
    reader = threading.Thread(target=_show_warnings, args=(process,), daemon=True)
    reader.start()
    seconds = config.wait_seconds
    try:
        yield
    except StoppedOnRequest:
        seconds = min(seconds, _SECONDS_WHEN_STOPPED)
        raise
    finally:
        _end(process, run_dir, seconds)
        reader.join()  # the pipe ends with the process


def _start(run_dir: Path, config: TrackerConfig) -> subprocess.Popen[bytes] | None:
    """Start the follower; None, after a warning, where this machine can't start another process or open its log."""
    try:
        with (run_dir / "logs" / "tracking.log").open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "runner.run.tracking.follower"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # signals to the group of the training are not for the follower
            )
    except OSError as error:
        message = "tracker     can't be started (%s); `runs sync run=%s` sends the run"
        LOGGER.warning(message, reason_of(error), run_dir)
        return None
    settings = {"run_dir": str(run_dir), "uri": uri_of(config), "config": config.model_dump(mode="json")}
    _tell(process, json.dumps(settings).encode() + b"\n")
    return process


def _tell(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None, "a pipe"
    try:
        process.stdin.write(line)
        process.stdin.flush()
    except BrokenPipeError:  # it has ended early, which its exit code and its log say
        return


def _show_warnings(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None, "a pipe"
    with process.stdout:
        for line in process.stdout:
            LOGGER.warning("tracker     %s", line.decode(errors="replace").rstrip())


def _end(process: subprocess.Popen[bytes], run_dir: Path, seconds: float) -> None:
    _tell(process, TRAINING_HAS_ENDED)
    assert process.stdin is not None, "a pipe"
    with suppress(BrokenPipeError):  # as in _tell
        process.stdin.close()
    try:
        has_all = process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        has_all = False
    if not has_all:
        LOGGER.warning(
            "tracker     not everything of this run could be sent; `runs sync run=%s` sends the rest (%s)",
            run_dir,
            run_dir / "logs" / "tracking.log",
        )
