"""Jobs as the commands get them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from runner.base.errors import ConfigError
from runner.config.compose import compose
from runner.config.hydra_compose import ComposedJob
from runner.config.saved import TypedCommand


def compose_jobs(
    argv: Sequence[str], run_job: Callable[[ComposedJob], float | None], typed: TypedCommand | None = None
) -> None:
    """Hand one experiment, or each job of a sweep, to `run_job`."""
    composed = compose(argv, typed)
    if isinstance(composed, ComposedJob):
        run_job(composed)
    elif composed is not None:
        composed.run(run_job)


def must_not_run(job: ComposedJob) -> None:
    """For arguments that are refused."""
    raise AssertionError(f"a refused config was run: {job}")


def refusal(*argv: str) -> ConfigError:
    """The error of arguments that are refused."""
    with pytest.raises(ConfigError) as caught:
        compose_jobs(argv, must_not_run)
    return caught.value


def refused(*argv: str) -> str:
    """The message of arguments that are refused."""
    return str(refusal(*argv))
