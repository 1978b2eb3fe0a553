from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from runner.base.errors import CheckpointError
from runner.evaluation.weights import choose_weights
from runner.run.checkpoint import CheckpointStore
from runner.trainer.progress import Best, Progress

FIRST, LAST = "0001-00000005", "0002-00000010"


@pytest.fixture
def going_on(tmp_path) -> Path:
    """A run of two epochs that goes on; in its first one, the best, the raw weights were better than their average."""
    best = Best(metric="val_top1", value=0.5, epoch=1, checkpoint=FIRST, weights="raw")
    (tmp_path / "run.json").write_text(json.dumps({"status": "running", "attempts": 1}))
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    for epoch, name in enumerate((FIRST, LAST), 1):
        tensors = {kind: {"x": torch.full((1,), epoch + shift)} for kind, shift in (("model", 0.0), ("ema", 0.5))}
        store.save(name, tensors, {"progress": Progress(epoch=epoch, best=best).to_json()})
    store.point("best", FIRST)
    store.point("last", LAST)
    return tmp_path


@pytest.mark.parametrize(
    ("checkpoint", "weights", "file", "label"),
    [
        ("best", "auto", f"{FIRST}/model.safetensors", ""),
        ("best", "raw", f"{FIRST}/model.safetensors", ""),
        ("best", "ema", f"{FIRST}/ema.safetensors", "best-ema"),
        ("last", "auto", f"{LAST}/ema.safetensors", LAST),
        ("last", "ema", f"{LAST}/ema.safetensors", LAST),
        ("last", "raw", f"{LAST}/model.safetensors", f"{LAST}-raw"),
        # By its name it is a checkpoint as any other.
        (FIRST, "auto", f"{FIRST}/ema.safetensors", FIRST),
    ],
)
def test_of_a_checkpoint_with_both_kinds_one_is_taken_and_named(going_on, checkpoint, weights, file, label):
    chosen = choose_weights(going_on, checkpoint, weights)
    assert chosen.file == going_on / "checkpoints" / file
    assert chosen.label == label
    assert chosen.to_json()["kind"] == ("ema" if "ema" in file else "raw")


def test_without_an_average_the_raw_weights_are_all_there_is(going_on):
    store = CheckpointStore(going_on / "checkpoints", keep=2)
    store.save("0003-00000015", {"model": {"x": torch.zeros(1)}}, {"progress": Progress(epoch=3).to_json()})
    assert choose_weights(going_on, "0003-00000015").kind == "raw"
    assert choose_weights(going_on, "0003-00000015", "raw").label == "0003-00000015"
    with pytest.raises(CheckpointError, match=r"holds no averaged weights.*trainer\.ema_decay; whole are 0001"):
        choose_weights(going_on, "0003-00000015", "ema")


def test_of_a_completed_run_the_package_is_taken_unless_the_other_kind_is_asked_for(trained):
    packaged = choose_weights(trained, "best")
    assert packaged.file == trained / "model" / "model.safetensors"
    assert choose_weights(trained, "best", packaged.kind) == packaged
    other = choose_weights(trained, "best", "raw" if packaged.kind == "ema" else "ema")
    assert other.file.parent == trained / "checkpoints" / (trained / "checkpoints" / "best").read_text().strip()
    assert (other.kind, other.sha256) != (packaged.kind, packaged.sha256)
