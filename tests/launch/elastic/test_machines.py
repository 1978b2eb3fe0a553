import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch.distributed

import runner
from runner.base.errors import LaunchError
from runner.launch.elastic import machines
from runner.launch.elastic.machines import connect_machines, single_machine
from runner.launch.plan import choose_launch
from runner.launch.ranks import rendezvous as group


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def prepared(host, port, nodes=2, seconds=2, **more):
    overrides = [f"dist.nodes={nodes}", f"dist.rendezvous={host}:{port}", "trainer.device=cpu"]
    overrides += [f"dist.rendezvous_timeout_seconds={seconds}", *(f"dist.{key}={value}" for key, value in more.items())]
    config = runner.load_config(overrides)
    return config, choose_launch(config)


def connect(*place, **more):
    return connect_machines(*prepared(*place, **more))


def test_a_host_that_does_not_resolve():
    with pytest.raises(LaunchError, match=r"host 'no-such-host.invalid' of the rendezvous .* does not resolve"):
        connect("no-such-host.invalid", 29400, seconds=0.5)


def test_a_port_in_use():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        with pytest.raises(LaunchError, match="in use by another program"):
            connect("127.0.0.1", other.getsockname()[1])


def test_the_others_do_not_come():
    with pytest.raises(LaunchError, match=r"dist.nodes = 3, but 1 machines connected within 1 seconds"):
        connect("127.0.0.1", free_port(), nodes=3, seconds=1)


def test_machines_of_different_opinions_end_together():
    port, errors = free_port(), {}

    def come(config, plan):
        try:
            connect_machines(config, plan)
        except LaunchError as error:
            errors[plan.num_nodes] = str(error)

    both = [prepared("127.0.0.1", port, nodes=nodes, seconds=20) for nodes in (2, 3)]
    threads = [threading.Thread(target=come, args=place) for place in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(errors) == {2, 3}
    (message,) = set(errors.values())
    assert "the machines disagree" in message
    assert {"2", "3"} <= set(re.findall(r"\d+", message)), "both numbers are named"


def test_machine_0_is_the_one_that_is_named():
    with pytest.raises(LaunchError, match=r"dist.node_rank = 0 is the machine that dist.rendezvous"):
        connect("192.0.2.1", 29400, node_rank=0)


def test_one_machine_needs_no_port_of_its_own():
    alone = single_machine()
    assert (alone.count, alone.number, alone.port) == (1, 0, 0)
    assert isinstance(alone.store, torch.distributed.HashStore), "it is in this process only"


@contextmanager
def threads_ended():
    """Waits for what was left behind as it waits for an answer; torch prints when its wait is over, to nobody then."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def silent_port():
    """Of a program that accepts connections and says nothing."""
    with threads_ended(), socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_program_that_says_nothing_where_the_machines_meet(silent_port):
    with pytest.raises(LaunchError, match=r"did not answer within 0.5 seconds"):
        connect("127.0.0.1", silent_port, seconds=0.5, node_rank=1)


def test_a_program_that_says_nothing_where_the_processes_meet(silent_port, monkeypatch):
    monkeypatch.setattr(group, "_SECONDS_TO_ANSWER", 0.5)
    with pytest.raises(
        LaunchError, match=r"rank 1 of 2 can't connect to the others at tcp://.*no answer within 1 seconds"
    ):
        group.open_rendezvous_store(f"tcp://127.0.0.1:{silent_port}", rank=1, world_size=2, seconds=0.5)


@pytest.fixture
def frozen_store():
    """A store whose machine froze after a client had connected."""
    serve = "import torch.distributed as d; s = d.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)"
    command = [sys.executable, "-c", f"{serve}; print(s.port, flush=True); input()"]
    with threads_ended(), subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        timeout = timedelta(seconds=20)
        port = int(server.stdout.readline())
        store = torch.distributed.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timeout)
        server.send_signal(signal.SIGSTOP)
        yield port, store
        server.kill()


def test_a_machine_that_freezes_while_the_others_meet_there(frozen_store, monkeypatch):
    port, store = frozen_store
    monkeypatch.setattr(machines, "_READ_SECONDS", 0.5)
    monkeypatch.setattr(machines, "_open_store", lambda *_, **__: (store, False))
    with pytest.raises(LaunchError, match=rf"127.0.0.1:{port} does not answer any more"):
        connect("127.0.0.1", port, seconds=0.5, node_rank=1)


def test_a_rank_0_that_freezes_while_the_others_ask(frozen_store, monkeypatch):
    monkeypatch.setattr(group, "_SECONDS_TO_ANSWER", 0.5)
    monkeypatch.setattr(group, "_MOST_SECONDS_TO_LEAVE", 0)
    refused = group.gather_facts(None, None, LaunchError("told"))
    with pytest.raises(LaunchError, match=r"rank 1 of 2 was connected to the others, which do not answer any more"):
        group.assign_ranks(frozen_store[1], 1, 2, refused, seconds=0.5)
