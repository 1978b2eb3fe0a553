"""What the elastic agent is given to start processes with."""

from __future__ import annotations

import multiprocessing.context
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest

import runner
from runner.base.errors import OutputError
from runner.launch.elastic import agent as elastic
from runner.launch.elastic.rounds import RankOutcome
from runner.launch.preflight import Ready, preflight
from runner.training.attempt import Attempt, Training

PIPE_BYTES = 4096  # of the smallest pipes of Linux; they usually hold 16 times as much


class Starting:
    """Stands for a process that is being started, which is given what memory and files it is to share."""

    duplicate_for_child = staticmethod(int)
    DupFd = staticmethod(int)


@pytest.fixture
def ready(tiny: Callable[..., list[str]]) -> Ready:
    return preflight(runner.load_config(tiny("data.num_train=400", "dist.procs_per_node=2")))


def test_no_process_waits_until_the_one_before_has_read_its_images(
    ready: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit into the pipe is written only when the process at its other end has imported torch."""
    sizes = []

    def agent(config: object, entry: object) -> Callable[..., dict[int, RankOutcome[Any]]]:
        def start(*arguments: object) -> dict[int, RankOutcome[Any]]:
            multiprocessing.context.set_spawning_popen(Starting())
            try:
                sizes.append(len(ForkingPickler.dumps((entry, arguments))))
            finally:
                multiprocessing.context.set_spawning_popen(None)
            return {0: RankOutcome(result="done", stopped=None)}

        return start

    monkeypatch.setattr(elastic, "elastic_launch", agent)
    assert elastic.launch_elastic(ready, tmp_path, Training(attempt=Attempt())) == "done"
    assert len(ForkingPickler.dumps(ready)) > 16 * PIPE_BYTES
    assert max(sizes) < PIPE_BYTES


def test_without_room_for_temporary_files_no_run_folder_is_made(
    ready: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(OutputError, match=r"gone: temporary files can't be written: there is no such file.*TMPDIR"):
        elastic.launch_elastic(ready, None, Training(attempt=Attempt()))
    assert list(tmp_path.iterdir()) == []
