from __future__ import annotations

import socket
from collections import namedtuple
from datetime import timedelta
from pathlib import Path

import pytest

from runner.base.errors import DeviceError, LaunchError, OutputError
from runner.config import CONF_DIR
from runner.config.schema.data import SyntheticData
from runner.config.schema.dist import DistConfig
from runner.data.cache import memory
from runner.data.cache.memory import available_memory
from runner.tools.doctor import system
from runner.tools.doctor.system import Load, check_cores, check_disk, check_open_files, check_rendezvous
from runner.tools.doctor.system import check_shared_memory as check_shm

Usage = namedtuple("Usage", "total used free")


def load(processes: int = 1, threads: int = 2, workers: int = 0) -> Load:
    return Load(num_processes=processes, num_threads=threads, num_workers=workers)


@pytest.fixture
def free(monkeypatch):
    def give(num_bytes: int) -> None:
        monkeypatch.setattr(system.shutil, "disk_usage", lambda folder: Usage(0, 0, num_bytes))

    return give


@pytest.mark.parametrize(
    ("asked", "cores", "advice"),
    [
        (load(1, 2, 0), 2, ()),
        (load(1, 1, 3), 4, ()),
        (load(1, 8, 0), 2, ("8 threads and loader processes share 2 cores: OMP_NUM_THREADS=2",)),
        (load(1, 2, 2), 2, ("4 threads and loader processes share 2 cores: OMP_NUM_THREADS=1 or data.workers=0",)),
        (load(4, 1, 0), 2, ("4 threads and loader processes share 2 cores: fewer processes",)),
    ],
)
def test_cores(asked, cores, advice, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert check_cores(asked, cores, computes=True).advice == advice


def test_cores_left_idle_by_the_environment(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert check_cores(load(1, 1), 4, computes=True).advice == ("OMP_NUM_THREADS=1 leaves 3 cores idle: unset it",)
    assert check_cores(load(1, 1), 4, computes=False).advice == ()


def test_shared_memory(tmp_path, free):
    sizes = {"image_size": 224, "eval_image_size": 160}
    data = SyntheticData.model_construct(batch_size=64, channels=3, bit_depth=8, resize="crop", fill=0, **sizes)
    needed = 2 * 4 * 2 * 3 * 64 * 3 * 224 * 224
    free(needed)
    assert check_shm(data, load(2, 1, 4), tmp_path).mark == "ok"
    free(64 << 20)  # what Docker gives
    refused = check_shm(data, load(2, 1, 4), tmp_path)
    assert isinstance(refused.error, DeviceError)
    assert "--shm-size=1g" in str(refused.error)
    assert check_shm(data, load(2, 1, 0), tmp_path).values == {"needed_bytes": 0}


def test_open_files(monkeypatch):
    monkeypatch.setattr(system.resource, "getrlimit", lambda kind: (256, 4096))
    assert check_open_files(load(workers=1)).error is None
    refused = check_open_files(load(workers=16))
    assert isinstance(refused.error, DeviceError)
    assert "ulimit -n 4096" in str(refused.error)


def test_disk(tmp_path, free):
    free(10_000)
    assert check_disk(tmp_path / "not" / "there" / "yet", 10_000).error is None
    assert check_disk(tmp_path, None).error is None
    refused = check_disk(tmp_path, 10_001)
    assert isinstance(refused.error, OutputError)
    assert not (tmp_path / "not").exists()


def test_memory_is_that_of_the_machine_or_of_a_container(monkeypatch, tmp_path):
    machine = available_memory()
    assert machine is None or machine > 1 << 20
    (tmp_path / "memory.max").write_text("max\n")
    monkeypatch.setattr(memory, "_CONTROL_GROUPS", Path(tmp_path))
    assert available_memory() is None or available_memory() > 1 << 20
    (tmp_path / "memory.max").write_text("1000000\n")
    assert available_memory() == 1_000_000
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 500000\ninactive_file 40000\nactive_file 60000\nshmem 1\n")
    assert available_memory() == 400_000
    assert memory.free_fraction_of_memory() == 0.4
    (tmp_path / "memory.current").write_text("2000000\n")
    assert available_memory() == 0


def test_memory_of_older_containers(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_CONTROL_GROUPS", Path(tmp_path))
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("1000000\n")
    (folder / "memory.usage_in_bytes").write_text("300000\n")
    (folder / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 30000\ntotal_active_file 70000\n")
    assert available_memory() == 800_000


def dist(rendezvous: str | None) -> DistConfig:
    import yaml

    values = yaml.safe_load((CONF_DIR / "dist" / "default.yaml").read_text())
    return DistConfig.model_validate({**values, "rendezvous": rendezvous}, strict=False)


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_run_of_one_machine_needs_none():
    assert check_rendezvous(dist(None)).found.startswith("not needed")


def test_a_free_port_of_this_machine(port):
    finding = check_rendezvous(dist(f"127.0.0.1:{port}"))
    assert (finding.mark, finding.values["addresses"]) == ("ok", ["127.0.0.1"])
    assert "is free" in finding.found


def test_a_port_at_which_a_run_waits(port):
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10))
    assert "a run waits" in check_rendezvous(dist(f"127.0.0.1:{port}")).found
    del store


def test_a_port_that_something_else_uses(monkeypatch):
    monkeypatch.setattr(system, "_SECONDS_TO_ANSWER", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        finding = check_rendezvous(dist(f"127.0.0.1:{server.getsockname()[1]}"))
    assert isinstance(finding.error, LaunchError)
    assert "in use by something else" in str(finding.error)


def test_a_host_that_does_not_resolve():
    finding = check_rendezvous(dist("no.such.host.invalid:29500"))
    assert isinstance(finding.error, LaunchError)
    assert "does not resolve" in str(finding.error)
