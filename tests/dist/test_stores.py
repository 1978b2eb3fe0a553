"""Stores of the rendezvous, served and reached on this machine."""

from __future__ import annotations

import socket

import pytest

from runner.dist.stores import connect_store, open_store, serve_store


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_a_client_reads_what_the_server_has_set(port):
    server = serve_store("127.0.0.1", port, seconds=30)
    server.set("key", "value")
    assert connect_store("127.0.0.1", port, seconds=30).get("key") == b"value"


def test_a_port_that_is_in_use_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(OSError, match="in use"):
        serve_store("127.0.0.1", listener.getsockname()[1], seconds=30)


def test_rank_0_serves_the_store_of_its_url(port, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    store = open_store(f"tcp://127.0.0.1:{port}", 0, 1, 30)
    store.set("key", "value")
    assert connect_store("127.0.0.1", port, seconds=30).get("key") == b"value"


def test_a_file_is_a_store(tmp_path):
    store = open_store(f"file://{tmp_path / 'store'}", 0, 1, 30)
    store.set("key", "value")
    assert store.get("key") == b"value"


@pytest.mark.parametrize("port", ["x", "0", "99999", "-1", "9" * 5_000])
def test_a_port_that_is_none_is_an_error(monkeypatch, port):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", port)
    with pytest.raises(ValueError, match="MASTER_PORT must be a port from 1 to 65535"):
        open_store("env://", 0, 1, 30)


@pytest.mark.parametrize(("url", "message"), [("env://", "MASTER_ADDR is not set"), ("http://x:1", "no tcp://")])
def test_a_url_without_an_address_is_an_error(url, message, monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ValueError, match=message):
        open_store(url, 0, 1, 30)
