from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest
import torch

from runner.base.errors import OutputError
from runner.run.checkpoint import CheckpointStore
from runner.run.checkpoint_writer import CheckpointWriter

FIRST, SECOND = "0001-00000005", "0002-00000010"


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep=2)


def test_a_checkpoint_holds_the_tensors_as_they_were_when_it_was_submitted(store):
    tensors = {"model": {"x": torch.ones(3)}}
    with CheckpointWriter(store) as writer:
        writer.submit(FIRST, tensors, {"step": 1}, is_best=True)
        tensors["model"]["x"].zero_()
        writer.submit(SECOND, {"model": {"x": tensors["model"]["x"]}}, {"step": 2}, is_best=False)
    assert store.load(FIRST).tensors["model"]["x"].tolist() == [1, 1, 1]
    assert store.load(SECOND).tensors["model"]["x"].tolist() == [0, 0, 0]
    assert (store.pointed("best"), store.pointed("last")) == (FIRST, SECOND)


def test_tensors_that_are_gone_are_not_written_again(store):
    with CheckpointWriter(store) as writer:
        writer.submit(FIRST, {"model": {"x": torch.ones(1), "y": torch.ones(1)}}, {}, is_best=False)
        writer.submit(SECOND, {"model": {"x": torch.ones(1)}}, {}, is_best=False)
        writer.point_best(SECOND)
    assert store.load(SECOND).tensors["model"].keys() == {"x"}
    assert store.pointed("best") == SECOND


def test_the_error_of_a_write_is_raised_by_the_next_call(store, monkeypatch):
    def fail(*_: object) -> None:
        raise OutputError("no space left")

    monkeypatch.setattr(store, "save", fail)
    with CheckpointWriter(store) as writer:
        writer.submit(FIRST, {"model": {"x": torch.ones(1)}}, {}, is_best=False)
        with pytest.raises(OutputError, match="no space left"):
            writer.wait()
    assert store.names() == []


def test_the_error_of_a_write_is_logged_where_the_training_has_failed_already(store, monkeypatch, caplog):
    def fail(*_: object) -> None:
        raise OutputError("no space left")

    monkeypatch.setattr(store, "save", fail)

    def train() -> None:
        with CheckpointWriter(store) as writer:
            writer.submit(FIRST, {"model": {"x": torch.ones(1)}}, {}, is_best=False)
            raise KeyError("the training")

    with pytest.raises(KeyError, match="the training"):
        train()
    assert "the last checkpoint could not be written either: no space left" in caplog.text


def test_a_disk_that_is_too_full_is_noticed_before_a_snapshot_is_taken(store, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=17_000_000))
    writer = CheckpointWriter(store)
    with pytest.raises(OutputError, match=r"a checkpoint needs 21 MB, but the disk has 17 MB left.*resume the run"):
        writer.submit(FIRST, {"model": {"x": torch.ones(1_000_000)}}, {}, is_best=False)
    assert store.names() == []
