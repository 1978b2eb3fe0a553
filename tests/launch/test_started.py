"""What the processes of a machine are started with."""

from __future__ import annotations

import multiprocessing.context
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest

import runner
from runner.attempt import Attempt
from runner.errors import OutputError
from runner.launch.board import Board
from runner.launch.rank import Task
from runner.launch.started import Assignment
from runner.preflight import preflight

PIPE_BYTES = 4096  # the least that POSIX lets a pipe hold


class Starting:
    """Stands for a process that is being started, which is given what memory it is to share."""

    duplicate_for_child = staticmethod(int)
    DupFd = staticmethod(int)


@pytest.fixture
def task(tiny: Callable[..., list[str]]) -> Task[Any]:
    config = runner.load_config(tiny("data.num_train=400", "dist.procs_per_node=2"))
    return Task(ready=preflight(config), work=Attempt(), folder=None)


def test_the_next_process_need_not_wait_until_one_reads(task: Task[Any], tmp_path: Path) -> None:
    """What does not fit into the pipe is written when the process at its other end has imported torch."""
    assignment: Assignment[Any] = Assignment(board=Board(2), records=tmp_path, is_shown=True)
    assignment.leave_task(task)
    multiprocessing.context.set_spawning_popen(Starting())
    try:
        handed = bytes(ForkingPickler.dumps(assignment))
    finally:
        multiprocessing.context.set_spawning_popen(None)
    assert len(handed) < PIPE_BYTES
    (left,) = tmp_path.iterdir()
    assert left.stat().st_size > 65536, "of so many images"
    found = assignment.read_task()
    assert found.ready.config == task.ready.config
    assert found.ready.splits.train.labels.tolist() == task.ready.splits.train.labels.tolist()


def test_a_full_folder_of_temporary_files_is_named(task: Task[Any], tmp_path: Path) -> None:
    assignment: Assignment[Any] = Assignment(board=Board(2), records=tmp_path / "gone", is_shown=True)
    with pytest.raises(OutputError, match="gone"):
        assignment.leave_task(task)
