"""A run that was asked to stop and hangs ends anyway. Real processes, which really hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import runner
from runner.launch.ranks.grace import grace_seconds
from runner.run.checkpoint import CheckpointStore
from tests.conftest import ROOT

# A save that waits for a disk for ever; and a step that hangs in C code, where Python runs no handler of a signal.
HANGING = {
    "save": """
from runner.run.checkpoint import CheckpointStore
save = CheckpointStore.save
def hang(store, name, *rest):
    if name.startswith("0001"):
        return save(store, name, *rest)
    print("it hangs", flush=True)
    threading.Event().wait()
CheckpointStore.save = hang
""",
    "step": """
import ctypes
from runner.run.checkpoint_writer import CheckpointWriter
from runner.trainer.step import Stepper
step, submit = Stepper.take, CheckpointWriter.submit
def submit_and_wait(writer, *args, **kwargs):
    submit(writer, *args, **kwargs)
    writer.wait()
def hang(stepper, stream):
    if stepper.state.progress.epoch == 0:
        return step(stepper, stream)
    mutex = ctypes.create_string_buffer(128)
    print("it hangs", flush=True)
    while True:
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
Stepper.take, CheckpointWriter.submit = hang, submit_and_wait
""",
}
PROGRAM = "import sys, threading\n{}\nfrom runner.__main__ import main\nsys.exit(main())"


@pytest.mark.parametrize(
    ("hangs", "reason"),
    [
        ("save", "a checkpoint was still being written"),
        pytest.param(
            "step",
            "the process did not get to the end of a step",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="a mutex that is all zeros is Linux's"),
        ),
    ],
)
def test_a_stop_that_hangs_ends_within_the_grace(tiny, tmp_path, hangs, reason):
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(HANGING[hangs]), *tiny("trainer.grace_seconds=1")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert any(line == "it hangs\n" for line in process.stdout)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1, err
    last = err.splitlines()[-1]
    assert last.startswith("runner: GraceExceededError: asked to stop")
    assert f"not done within 1 seconds (trainer.grace_seconds): {reason}" in last
    (record_file,) = tmp_path.glob("outputs/*/*/run.json")
    record, log = json.loads(record_file.read_text()), record_file.parent / "logs" / "rank_0.log"
    assert (record["status"], record["error"]["name"]) == ("failed", "GraceExceededError")
    assert "GraceExceededError" not in last.partition("; the stacks")[2]
    assert "in hang" in log.read_text(), "its stacks are in the log"
    store = CheckpointStore(record_file.parent / "checkpoints", keep=2)
    newest, damages = store.newest_valid()
    assert newest is not None
    assert (newest.name, damages) == ("0001-00000005", [])


def test_slurm_gives_no_more_time_than_its_warning(tiny, tmp_path: Path):
    def seconds(*overrides: str) -> float:
        return grace_seconds(runner.load_config(tiny(*overrides)))

    assert seconds("trainer.grace_seconds=50", "dist.slurm.warning_seconds=20") == 50
    assert seconds("dist=slurm", "trainer.grace_seconds=50", "dist.slurm.warning_seconds=20") == 20
    assert seconds("dist=slurm", "trainer.grace_seconds=5", "dist.slurm.warning_seconds=20") == 5
