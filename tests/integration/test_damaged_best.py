"""A damaged best checkpoint, for many processes: one decides, all go on with the same."""

from __future__ import annotations

import json

import pytest

from runner.base.files import sha256_of
from runner.run.checkpoint import CheckpointStore
from tests.conftest import SMALL_NET, TINY

# Nothing is learnt, so the first epoch stays the best.
STILL = ("schedule=constant", "optimizer.lr=1e-15", "optimizer.weight_decay=0", "trainer.keep=9")


@pytest.mark.long
def test_two_processes_agree_on_what_takes_its_place(run_cli, tmp_path):
    typed = [*TINY, *SMALL_NET, *STILL, f"output_dir={tmp_path}/outputs", "dist.procs_per_node=2"]
    done = run_cli(*typed)
    assert done.returncode == 0, done.stderr
    (record,) = tmp_path.glob("outputs/*/*/run.json")
    store = CheckpointStore(record.parent / "checkpoints", keep=9)
    first, second = store.names()
    assert store.pointed("best") == first
    weights = store.folder / first / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    done = run_cli("resume", f"run={record.parent}", "trainer.epochs=3")
    assert done.returncode == 0, done.stderr
    found = json.loads(record.read_text())
    assert (found["status"], found["world_size"], found["best"]["epoch"]) == ("completed", 2, 2)
    assert found["damaged"][0]["instead"] == second
    assert sha256_of(record.parent / "model" / "model.safetensors") == sha256_of(store.folder / second / weights.name)
