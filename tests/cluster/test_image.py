"""The container image does what its page promises: `make image`, then these with RUNNER_IMAGE=runner."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import command_output, wait_for

IMAGE = os.environ.get("RUNNER_IMAGE", "")
# A folder of root says nothing about who wrote there.
USER = os.getuid() or 12345
SMALL = ("model=torchvision", "model.name=shufflenet_v2_x0_5", "optimizer.lr=0.001", "trainer.device=cpu")


def engine() -> str | None:
    """The program that runs containers here."""
    for program in ("docker", "podman"):
        if (
            shutil.which(program)
            and subprocess.run([program, "info"], capture_output=True, check=False).returncode == 0
        ):
            return program
    return None


ENGINE = engine() if IMAGE else None
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not IMAGE, reason="no image is named: `make image`, then RUNNER_IMAGE=runner"),
    pytest.mark.skipif(bool(IMAGE) and ENGINE is None, reason="neither docker nor podman works here"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The user's folder, which the container sees as /work."""
    place = tmp_path / "mine"
    place.mkdir()
    os.chown(place, USER, USER if os.getuid() == 0 else os.getgid())
    return place


@pytest.fixture
def contained(folder: Path) -> Iterator[Callable[..., tuple[str, ...]]]:
    """The command that runs a container; whatever is left of containers is taken away afterwards."""
    name = f"runner-test-{os.getpid()}"

    def command(*argv: str, mounts: bool = True) -> tuple[str, ...]:
        mount = ("--volume", f"{folder}:/work") if mounts else ()
        owner = folder.stat()
        who = ("--user", f"{owner.st_uid}:{owner.st_gid}")
        # What trains in one container needs no network.
        return (str(ENGINE), "run", "--rm", "--name", name, "--network=none", *who, *mount, IMAGE, *argv)

    yield command
    subprocess.run([str(ENGINE), "rm", "--force", name], capture_output=True, check=False, timeout=60)


def run(command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)


def record(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("outputs/*/*/run.json")
    return json.loads(file.read_text())


def test_the_digits_are_trained_and_what_is_written_belongs_to_the_caller(contained, folder):
    done = run(contained("trainer.max_steps=5"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (record(folder)["status"], len(list(folder.glob("outputs/*/*/model/model.safetensors")))) == ("completed", 1)
    (place,) = folder.glob("outputs/*/*")
    done = run(
        contained("evaluate", f"run={place.relative_to(folder)}")
    )  # in another container, with the digits of its own
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.stat().st_uid for path in folder.rglob("*")} == {folder.stat().st_uid}


def test_an_experiment_of_the_folder_is_found(contained, folder):
    file = folder / "conf" / "experiment" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\ntrainer:\n  max_steps: 3\n")
    done = run(contained("validate", "--config-dir", "conf", "experiment=mine"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("processes", [1, 2])
def test_a_stop_saves_everything_and_the_next_container_continues(contained, folder, processes):
    # The digits give 11 full batches of 64 for each of two processes.
    command = contained(*SMALL, f"dist.procs_per_node={processes}", "trainer.epochs=4000", "trainer.checkpoint_every=2")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as container:
        wait_for("a checkpoint", lambda: bool(list(folder.glob("outputs/*/*/checkpoints/*/state.json"))))
        command_output(str(ENGINE), "kill", "--signal", "TERM", command[command.index("--name") + 1])
        said, _ = container.communicate(timeout=120)
    assert container.returncode == 75, said
    stopped = record(folder)
    assert stopped["status"] == "stopped"
    (place,) = folder.glob("outputs/*/*")
    step = max(int(path.name.rpartition("-")[2]) for path in place.glob("checkpoints/*-*") if path.is_dir())
    done = run(
        contained(
            "resume",
            f"run={place.relative_to(folder)}",
            f"trainer.max_steps={step + 2}",
            f"dist.procs_per_node={processes}",
        )
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (record(folder)["status"], record(folder)["attempts"]) == ("completed", 2)


def test_without_a_folder_nothing_is_trained(contained):
    done = run(contained("trainer.max_steps=5", mounts=False))
    assert (done.returncode, "OutputError" in done.stderr) == (2, True), done.stdout + done.stderr
