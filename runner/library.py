"""Use from Python: compose a config, train it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner.base.errors import UsageError
from runner.config.compose import compose_one
from runner.config.schema import Config
from runner.launch.preflight import preflight
from runner.tools.hooks import training_hooks
from runner.training.attempt import Attempt
from runner.training.work import Training

if TYPE_CHECKING:
    from runner.launch.slurm.submitted import Submission
    from runner.training.train import RunResult


def load_config(overrides: Sequence[str] = ()) -> Config:
    """Compose and check a config, as the command line does.

    Args:
        overrides: what would be typed, such as ["model=resnet50", "trainer.epochs=10"].

    Raises:
        ConfigError: with every mistake.
        UsageError: a flag, which means something on the command line only.
    """
    shown_or_swept = [flag for flag in overrides if flag.startswith("-") and flag not in ("--config-dir", "-cd")]
    if shown_or_swept:
        raise UsageError(f"load_config composes one experiment; it takes KEY=VALUE, not {shown_or_swept[0]}")
    job = compose_one(overrides)
    assert job is not None, "flags that only show something are refused above"
    return job.config


def fit(config: Config) -> RunResult | Submission:
    """Train one experiment in a new run folder: in this process, or in as many as the group `dist` asks for.

    With dist=slurm it only puts the run into the queue; the result has `job_id` and `run_dir` then.

    Raises:
        RunnerError: what the command line would print and turn into an exit code.
    """
    ready = preflight(config)
    from runner.launch import launch  # noqa: PLC0415 - torch only once config and data are good

    return launch(ready, Training(attempt=Attempt(), hooks=training_hooks(config)))
