from __future__ import annotations

import threading

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from runner.base.errors import OutputError
from runner.run.tensorboard import TensorBoardLog


def read(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    return events


def test_scalars_images_and_hparams_are_read_by_tensorboard(tmp_path):
    with TensorBoardLog(tmp_path) as log:
        log.scalars({"loss": 2.0}, step=1)
        log.scalars({"loss": 1.0}, step=2)
        log.images("preview", torch.zeros(9, 3, 4, 4, dtype=torch.uint8))
        log.hparams({"optimizer.lr": 0.1, "data.transforms": ["flip"]}, {"best": 0.5}, step=2)
    events = read(tmp_path)
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 2.0), (2, 1.0)]
    assert [event.value for event in events.Scalars("best")] == [0.5]
    assert [event.step for event in events.Images("preview")] == [0]
    assert "_hparams_/session_start_info" in events.summary_metadata
    assert not [path for path in tmp_path.iterdir() if path.is_dir()], "hparams are in the run's own event file"


def test_a_resumed_run_replaces_the_points_after_its_step(tmp_path):
    with TensorBoardLog(tmp_path) as log:
        for step in (1, 2, 3):
            log.scalars({"loss": float(step)}, step)
    with TensorBoardLog(tmp_path, purge_step=2) as log:
        log.scalars({"loss": 20.0}, 2)
    assert [(event.step, event.value) for event in read(tmp_path).Scalars("loss")] == [(1, 1.0), (2, 20.0)]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "tensorboard").write_text("")
    with pytest.raises(OutputError, match="tensorboard"):
        TensorBoardLog(tmp_path / "tensorboard")


def test_the_hook_for_errors_of_threads_is_restored(tmp_path):
    before = threading.excepthook
    with TensorBoardLog(tmp_path):
        assert threading.excepthook != before
    assert threading.excepthook == before
