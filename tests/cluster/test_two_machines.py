"""Two machines, played by two network namespaces that a cable joins; then the cable is cut."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.conftest import PAIR
from tests.conftest import ROOT, TINY

pytestmark = pytest.mark.cluster
NODES = {"A": "10.77.0.1", "B": "10.77.0.2"}
HOSTS = "127.0.0.1 localhost\n10.77.0.1 nodeA\n10.77.0.2 nodeB\n"


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


@pytest.fixture
def cable():
    """Two namespaces nA and nB, joined; yields a function that cuts the cable."""
    for node in NODES if shutil.which("ip") else ():
        ip("netns", "del", f"n{node}", check=False)  # of a test that was killed
    if shutil.which("ip") is None or ip("netns", "add", "nA", check=False).returncode:
        pytest.skip("needs `ip netns` and the right to use it (Debian: iproute2, root)")
    try:
        ip("netns", "add", "nB")
        ip("link", "add", "vA", "type", "veth", "peer", "name", "vB")
        for node, address in NODES.items():
            folder = Path(f"/etc/netns/n{node}")
            folder.mkdir(parents=True, exist_ok=True)
            # The machine's own name is a loopback address, as Debian's installer writes it.
            (folder / "hosts").write_text(f"127.0.1.1 node{node}\n{HOSTS}")
            ip("link", "set", f"v{node}", "netns", f"n{node}")
            ip("-n", f"n{node}", "addr", "add", f"{address}/24", "dev", f"v{node}")
            ip("-n", f"n{node}", "link", "set", "lo", "up")
            ip("-n", f"n{node}", "link", "set", f"v{node}", "up")
        yield lambda: ip("-n", "nB", "link", "set", "vB", "down")
    finally:
        for node in NODES:
            ip("netns", "del", f"n{node}", check=False)
            shutil.rmtree(f"/etc/netns/n{node}", ignore_errors=True)


@pytest.fixture
def start_on(tmp_path):
    """Type a command on a machine."""
    started = []

    def start(node, *overrides, disk=None):
        outputs = tmp_path / "outputs"
        own_disk = f"mount --bind '{disk}' {outputs} && " if disk is not None else ""
        for folder in (disk, outputs) if disk is not None else ():
            folder.mkdir(exist_ok=True)
        line = [
            "unshare",
            "--uts",
            "--mount",
            "bash",
            "-c",
            f'hostname node{node} && {own_disk} exec "$@"',
            "-",
            sys.executable,
            "-m",
            "runner",
        ]
        given = [f"output_dir={tmp_path}/outputs", "dist.nodes=2", "dist.rendezvous=nodeA:29400"]
        with (tmp_path / f"{node}.txt").open("w") as out:
            process = subprocess.Popen(
                ["ip", "netns", "exec", f"n{node}", *line, *TINY, *PAIR, *given, *overrides],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_the_same_command_on_two_machines_makes_one_run(cable, start_on, tmp_path):
    second = start_on("B", "trainer.epochs=1")
    time.sleep(3)  # machines come in any order
    first = start_on("A", "trainer.epochs=1")
    assert (first.wait(120), second.wait(120)) == (0, 0), (tmp_path / "A.txt").read_text()
    (run_file,) = tmp_path.glob("outputs/*/*/run.json")
    record = json.loads(run_file.read_text())
    assert (record["status"], record["world_size"]) == ("completed", 2)
    logs = {path.name for path in (run_file.parent / "logs").iterdir()}
    assert logs == {"rank_0.log", "rank_1.log", "run.json.lock", "launcher_nodeA.log", "launcher_nodeB.log"}


def test_without_a_shared_file_system_rank_0s_machine_keeps_the_run(cable, start_on, tmp_path):
    disks = {node: tmp_path / f"disk of {node}" for node in NODES}
    both = [
        start_on(node, "trainer.epochs=1", f"dist.node_rank={number}", disk=disks[node])
        for number, node in enumerate(NODES)
    ]
    assert [process.wait(200) for process in both] == [0, 0], (tmp_path / "A.txt").read_text()
    (run_file,) = tmp_path.glob("*/*/*/run.json")
    place = run_file.parent.relative_to(disks["A"])
    assert json.loads(run_file.read_text())["status"] == "completed"
    assert [path.name for path in (disks["B"] / place).iterdir()] == ["logs"]
    logs = disks["B"] / place / "logs"
    assert {path.name for path in logs.iterdir()} == {"rank_1.log", "launcher_nodeB.log"}
    run_dir = tmp_path / "outputs" / place
    words = f"run folder  {run_dir} on nodeA; on this machine only logs, in {run_dir}/logs"
    assert words in (tmp_path / "B.txt").read_text() and words in (logs / "rank_1.log").read_text()


def test_machines_that_disagree_say_so(cable, start_on, tmp_path):
    both = [start_on("A", "optimizer.lr=0.1"), start_on("B", "optimizer.lr=0.2")]
    assert [process.wait(120) for process in both] == [2, 2]
    for node in NODES:
        assert "optimizer.lr = 0." in (tmp_path / f"{node}.txt").read_text()


def test_a_cut_cable_ends_both_sides(cable, start_on, tmp_path):
    endless = (
        "trainer.epochs=100000",
        "trainer.patience=null",
        "trainer.print_every=1",
        "dist.stall_timeout_seconds=5",
    )
    both = [start_on(node, *endless) for node in NODES]
    deadline = time.monotonic() + 90
    while not any("step 3/" in (tmp_path / f"{node}.txt").read_text() for node in NODES):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    cable()
    cut_at = time.monotonic()
    assert [process.wait(60) for process in both] == [1, 1]
    print(f"both sides ended {time.monotonic() - cut_at:.1f} seconds after the cut")
    for node in NODES:
        print(f"last on node{node}:", *(tmp_path / f"{node}.txt").read_text().splitlines()[-15:], sep="\n")
        assert (tmp_path / f"{node}.txt").read_text().splitlines()[-1].startswith("runner: StalledError: rank")
