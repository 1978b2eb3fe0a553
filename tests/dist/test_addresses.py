"""Which address is served, and which interface gloo and NCCL are kept to."""

from __future__ import annotations

import os
import socket

import pytest

from runner.base.errors import LaunchError
from runner.dist import addresses
from runner.dist.addresses import ANY, find_endpoint, interface_of, loopback_interface, network_id, use_interface


@pytest.fixture
def world(monkeypatch):
    """What names resolve to, and which addresses are this machine's."""

    def is_like(names, own=(), others=()):
        def resolve(host, *_, **__):
            return [(0, 0, 0, "", (address, 0)) for address in names[host]]

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        monkeypatch.setattr(addresses, "_is_own", lambda address: address in own)
        monkeypatch.setattr(addresses, "other_addresses", lambda: list(others))

    return is_like


@pytest.mark.parametrize(
    ("name", "resolved", "others", "own"),
    [
        ("node0", ["10.0.0.1"], ["10.0.0.1"], "10.0.0.1"),
        ("node0", ["127.0.1.1", "10.0.0.1"], ["10.0.0.1"], "10.0.0.1"),
        ("node0", ["fd00::1", "10.0.0.1"], ["10.0.0.1"], "10.0.0.1"),
        ("node0", ["127.0.1.1"], ["10.0.0.1"], "10.0.0.1"),
        ("node0", ["127.0.1.1"], [], "127.0.1.1"),
        ("node0", ["127.0.1.1"], ["10.0.0.1", "10.1.0.1"], ANY),
        ("localhost", ["::1", "127.0.0.1"], ["10.0.0.1"], "127.0.0.1"),
        ("127.0.0.1", ["127.0.0.1"], ["10.0.0.1"], "127.0.0.1"),
        ("node1", ["10.0.0.2"], ["10.0.0.1"], None),
    ],
)
def test_the_address_that_others_reach_is_the_one_to_serve_at(world, name, resolved, others, own):
    world({name: resolved}, own=("10.0.0.1", "10.1.0.1", "fd00::1", "127.0.1.1", "127.0.0.1", "::1"), others=others)
    endpoint = find_endpoint(name, 29400, 1)
    assert endpoint.own == own
    assert endpoint.target == (own or name)


def test_a_name_in_which_a_script_hides_does_not_resolve():
    with pytest.raises(LaunchError, match="does not resolve"):
        find_endpoint("a" * 300 + ".example", 29400, 0.1)


def test_the_loopback_interface_is_known_by_its_address():
    assert interface_of("127.0.0.1") == loopback_interface() is not None
    assert interface_of("192.0.2.200") is None


def test_what_the_user_names_is_kept(monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    use_interface("lo")
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == ("lo", "ib0")


def test_nothing_is_chosen_where_nothing_is_known(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    use_interface(None)
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_processes_of_one_network_know_each_other():
    assert network_id() == network_id() != ""
