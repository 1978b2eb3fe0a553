"""What breaks around a training, in its middle: a named error, the last checkpoint intact, and it can go on."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import runner
from runner.base.errors import DeviceError, InvalidDatasetError, OutputError, RunnerError
from runner.config.saved import load_saved
from runner.launch import launch
from runner.launch.preflight import preflight
from runner.run.checkpoint import CheckpointStore
from runner.run.checkpoint_writer import CheckpointWriter
from runner.trainer.step import Stepper
from runner.training.attempt import Attempt, Training

LOADERS = ("data.workers=1", "data.cache=none")  # those of evaluation stay for the next epoch
AT_STEP = 7  # of 10; the first epoch is saved at step 5


def fails(
    overrides: list[str], monkeypatch: pytest.MonkeyPatch, fault: Callable[[], None], error: type[RunnerError]
) -> str:
    """Train until a fault happens; gives the message of the error by which the run ends."""
    take_step, submit = Stepper.take, CheckpointWriter.submit

    def faulty(stepper: Stepper, stream: object) -> None:
        if stepper.state.progress.step == AT_STEP:
            fault()
        take_step(stepper, stream)  # type: ignore[arg-type]

    def submit_and_wait(writer: CheckpointWriter, *args: Any, **kwargs: Any) -> None:
        submit(writer, *args, **kwargs)
        writer.wait()  # the fault is to hit the training, not the checkpoint of the epoch before

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "take", faulty)
        patch.setattr(CheckpointWriter, "submit", submit_and_wait)
        with pytest.raises(error) as caught:
            runner.fit(runner.load_config(overrides))
    return str(caught.value)


def run_dir_in(folder: Path) -> Path:
    (record,) = folder.glob("outputs/*/*/run.json")
    return record.parent


def newest(run_dir: Path) -> str:
    checkpoint, damages = CheckpointStore(run_dir / "checkpoints", keep=2).newest_valid()
    assert checkpoint is not None
    assert damages == []
    return checkpoint.name


def record_of(run_dir: Path) -> dict:
    return json.loads((run_dir / "run.json").read_text())


def goes_on(run_dir: Path) -> None:
    launch(preflight(load_saved(run_dir)), Training(attempt=Attempt(is_resumed=True)), folder=run_dir)
    assert record_of(run_dir)["status"] == "completed"
    assert [json.loads(line)["step"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()] == [5, 10]


def kill_a_loader() -> None:
    # Of those that train and those that evaluate the former are started first, and may have made all batches by now.
    os.kill(min(process.pid or 0 for process in multiprocessing.active_children()), signal.SIGKILL)


def run_out_of_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


# Torch says so once more where it takes down what the dead process has left.
once_more = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@once_more
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (kill_a_loader, "a process that loads images died ("),
        (run_out_of_memory, "out of memory on cpu with data.batch_size = 8; try data.batch_size=4 with trainer.accum"),
    ],
)
def test_what_the_machine_can_not_do_is_named(tiny, tmp_path, monkeypatch, fault, message):
    assert message in fails(tiny(*LOADERS), monkeypatch, fault, DeviceError)
    run_dir = run_dir_in(tmp_path)
    record = record_of(run_dir)
    assert (record["status"], record["error"]["name"]) == ("failed", "DeviceError")
    assert message in record["error"]["message"]
    assert newest(run_dir) == "0001-00000005"
    goes_on(run_dir)


@once_more
def test_a_loader_that_dies_while_nobody_waits_for_it_is_named(tiny, monkeypatch):
    """Torch raises where the main process happens to be, at the signal of its child's death."""

    def kill_and_compute() -> None:
        kill_a_loader()
        while True:
            torch.ones(8).sum()

    message = fails(tiny(*LOADERS), monkeypatch, kill_and_compute, DeviceError)
    assert "a process that loads images died (DataLoader worker (pid" in message


def test_an_image_that_has_become_unreadable_is_named(tiny, tmp_path, monkeypatch):
    photos = tmp_path / "photos"
    for split, count in (("train", 20), ("val", 4)):
        for number, name in enumerate(("a", "b")):
            (photos / split / name).mkdir(parents=True)
            for image in range(count):
                Image.new("RGB", (40, 40), (6 * image, 99 * number, 0)).save(photos / split / name / f"{image}.png")
    overrides = [item for item in tiny() if not item.startswith("data")]
    overrides += ["data=folder", f"data.root={photos}", "data.image_size=32", "data.batch_size=8", "data.workers=0"]
    overrides.append("data.cache=none")  # which reads the files in each epoch
    intact = {file: file.read_bytes() for file in photos.rglob("*.png")}

    def damage() -> None:
        for file in intact:
            file.write_bytes(b"no image any more")

    message = fails(overrides, monkeypatch, damage, InvalidDatasetError)
    assert any(message.startswith(str(file)) for file in intact), message
    run_dir = run_dir_in(tmp_path)
    assert record_of(run_dir)["error"]["name"] == "InvalidDatasetError"
    assert newest(run_dir) == "0001-00000005"
    for file, content in intact.items():
        file.write_bytes(content)
    goes_on(run_dir)


def test_a_run_folder_that_has_vanished_is_named(tiny, tmp_path, monkeypatch):
    moved = tmp_path / "elsewhere"
    message = fails(tiny(), monkeypatch, lambda: [*run_dir_in(tmp_path).parents][1].rename(moved), OutputError)
    assert str(tmp_path / "outputs") in message
    assert "there is no such file or folder" in message
    (record_file,) = moved.glob("*/*/run.json")
    assert newest(record_file.parent) == "0001-00000005"
    goes_on(record_file.parent)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 64 MB."""
    folder = tmp_path / "outputs"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a file system needs root and, in a container, CAP_SYS_ADMIN")
    yield folder
    while folder.is_mount():  # a test that fails may leave a second mount on the first
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_has_become_read_only_is_named(disk, tiny, tmp_path, monkeypatch):
    def become_read_only() -> None:
        # A second mount on top: files that are open for writing would keep the first one from it.
        subprocess.run(["mount", "--bind", str(disk), str(disk)], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", str(disk)], check=True)

    message = fails(tiny(), monkeypatch, become_read_only, OutputError)
    assert "can't be written: its file system is mounted for reading only" in message
    run_dir = run_dir_in(tmp_path)
    assert newest(run_dir) == "0001-00000005"
    subprocess.run(["umount", "--lazy", str(disk)], check=True)  # a file on it may still be open
    goes_on(run_dir)


def test_a_disk_that_is_full_is_named(disk, tiny, tmp_path, monkeypatch):
    def fill() -> None:
        with (disk / "filler").open("wb") as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(bytes(1 << 20))
                file.flush()

    message = fails(tiny(), monkeypatch, fill, OutputError)
    assert "the disk is full" in message
    run_dir = run_dir_in(tmp_path)
    assert (record_of(run_dir)["status"], record_of(run_dir)["error"]["message"]) == ("failed", message)
    assert newest(run_dir) == "0001-00000005"
    (disk / "filler").unlink()
    goes_on(run_dir)


def test_the_record_says_so_where_no_file_finds_room_any_more(full_disk, tiny, tmp_path, monkeypatch, capsys):
    message = fails(tiny(), monkeypatch, full_disk.fill, OutputError)
    full_disk.free()
    run_dir = run_dir_in(tmp_path)
    record = record_of(run_dir)
    assert (record["status"], record["error"]["name"]) == ("failed", "OutputError")
    assert record["error"]["message"] == message
    assert "the disk is full" in message
    told = capsys.readouterr().err
    assert (
        told.count(f"messages are missing in {run_dir}/logs/rank_0.log, which can't be written: the disk is full") == 1
    )
    assert "Traceback" not in told
    assert newest(run_dir) == "0001-00000005"
    goes_on(run_dir)
    assert [path.name for path in run_dir.glob(".*")] == []
