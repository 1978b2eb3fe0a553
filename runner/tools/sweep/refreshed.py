"""Keeps the leaderboard of a sweep true where its trials are trained by others: jobs of SLURM, Hydra's launchers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.base.console import LOGGER
from runner.base.errors import RunnerError
from runner.tools.sweep.folder import SweepFolder, is_sweep


@contextmanager
def refreshed_afterwards(run_dir: Path, *, is_first_process: bool = True) -> Iterator[None]:
    """Write the leaderboard anew once a run has ended, however it did; nothing where it is no trial of a sweep.

    Args:
        run_dir: the folder of the run.
        is_first_process: one process of a run does it.
    """
    try:
        yield
    finally:
        if is_first_process and is_sweep(run_dir.parent):
            _refresh(run_dir.parent)


def _refresh(path: Path) -> None:
    from runner.tools.sweep.leaderboard import refresh  # noqa: PLC0415 - only where there is one

    try:
        refresh(SweepFolder(path))
    except (RunnerError, OSError, ValueError) as error:  # the run itself is well: typed again, the sweep writes it
        LOGGER.warning("the leaderboard can't be written: %s", error)
