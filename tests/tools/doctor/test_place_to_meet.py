from __future__ import annotations

import socket
from datetime import timedelta

import pytest

from runner.base.errors import LaunchError
from runner.config import CONF_DIR
from runner.config.schema.dist import DistConfig
from runner.tools.doctor import rendezvous as meeting
from runner.tools.doctor.rendezvous import check_rendezvous


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
    monkeypatch.setattr(meeting, "_SECONDS_TO_ANSWER", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        finding = check_rendezvous(dist(f"127.0.0.1:{server.getsockname()[1]}"))
    assert isinstance(finding.error, LaunchError)
    assert "in use by something else" in str(finding.error)


def test_a_host_that_does_not_resolve():
    finding = check_rendezvous(dist("no.such.host.invalid:29500"))
    assert isinstance(finding.error, LaunchError)
    assert "does not resolve" in str(finding.error)
