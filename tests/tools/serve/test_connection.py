"""Clients that are slow, broken or hostile: an answer of 4xx or a closed connection, and no other request harmed."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import ExitStack, suppress

import pytest

from tests.tools.serve.conftest import form

DEEP = b"[" * 100_000
INPUT = {"name": "image", "shape": [1], "datatype": "BYTES"}


@pytest.fixture
def image(trained) -> bytes:
    return next((trained.parents[2] / "photos" / "val").rglob("*.png")).read_bytes()


@pytest.fixture(autouse=True)
def same_as_before(served, image):
    """Around each test: the server lives, has the same worker, and answers the same."""
    before = served.score(image).json
    worker = served.workers()
    yield
    assert served.score(image).json == before
    assert served.workers() == worker
    assert served.process.poll() is None
    assert served.metric("runner_worker_deaths_total") == 0


def json_body(value: object) -> bytes:
    return json.dumps(value).encode()


REFUSED = [
    (b"", "image/png", 400),
    (b"x", "text/html", 415),
    (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml", 422),
    (b"\xff\xd8\xff\xe0" + b"\0" * 1000, "image/jpeg", 422),
    (b"\x89PNG\r\n\x1a\n" + b"\0" * 1000, "image/png", 422),
    (b"GIF89a" + b"\xff" * 100, "image/gif", 422),
    (b"P6 " + b"# " * 40_000, "application/octet-stream", 422),
    (b"{", "application/json", 400),
    (DEEP, "application/json", 400),
    (json_body({"image": "§"}), "application/json", 400),
    (json_body({"image": 7}), "application/json", 400),
    (json_body({"images": []}), "application/json", 400),
    (json_body({"images": [{}]}), "application/json", 400),
    (json_body({"image": "/etc/passwd"}), "application/json", 400),
    (json_body({"url": "file:///etc/passwd"}), "application/json", 400),
    (json_body({"images": ["aGk="] * 9}), "application/json", 413),
    (b"\xff\xfe", "application/json", 400),
    (b'{"image": NaN}', "application/json", 400),
    (b"--edge--\r\n", "multipart/form-data; boundary=edge", 400),
    (b"no form", "multipart/form-data; boundary=edge", 400),
    (form(b"x")[0], "multipart/form-data", 400),
    (form(b"x")[0][:-4], "multipart/form-data; boundary=edge", 400),
    (form(b"x")[0], "multipart/form-data; boundary=" + "e" * 300, 400),
    (*form(*[b"x"] * 9), 413),
    (*form(b"x"), 422),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_a_body_that_is_none_is_refused(served, number):
    body, kind, status = REFUSED[number]
    answer = served.score(body, kind)
    assert answer.status == status, answer.body
    assert set(answer.json) == {"error"}
    assert b"passwd" not in answer.body


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"", {}),
        (json_body({}), {}),
        (json_body({"inputs": []}), {}),
        (json_body({"inputs": [INPUT]}), {}),
        (json_body({"inputs": [{**INPUT, "data": "x"}]}), {}),
        (json_body({"inputs": [{**INPUT, "data": ["x"]}]}), {}),
        (json_body({"inputs": [{**INPUT, "data": ["aGk=", "aGk="]}]}), {}),
        (json_body({"inputs": [{**INPUT, "shape": [-1], "data": ["aGk="]}]}), {}),
        (json_body({"inputs": [{**INPUT, "datatype": "FP32", "data": [1.0]}]}), {}),
        (json_body({"inputs": [{**INPUT, "parameters": {"binary_data_size": 10**9}}]}), {}),
        (json_body({"inputs": [{**INPUT, "parameters": {"binary_data_size": 0}}]}), {}),
        (b"{}", {"inference_header_content_length": "99999999999999999999"}),
        (b"{}", {"inference_header_content_length": "-1"}),
        (json_body({"inputs": [{**INPUT, "parameters": {"binary_data_size": 3}}]}) + b"abc", {"cut": "3"}),
        (json_body({"inputs": [{**INPUT, "parameters": {"binary_data_size": 4}}]}) + b"\xff" * 4, {"cut": "4"}),
    ],
)
def test_an_inference_request_that_is_none_is_refused(served, body, headers):
    if cut := headers.pop("cut", None):
        headers["inference_header_content_length"] = str(len(body) - int(cut))
    answer = served.ask("POST", "/v2/models/birds/infer", body, **headers)
    assert answer.status == 400, answer.body
    assert served.ask("POST", "/v2/models/other/infer", body, **headers).status == 404


def talk(port: int, sent: bytes) -> bytes:
    """What is answered until the connection is closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        received = b""
        try:
            connection.sendall(sent)
            while chunk := connection.recv(65536):
                received += chunk
        except (ConnectionResetError, BrokenPipeError):
            pass
        return received


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", b"400"),  # TLS
        (b"GET\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000 + b"\r\n\r\n", b"400"),
        (b"GET /" + b"y" * 200_000 + b" HTTP/1.1\r\n\r\n", b"400"),
        (b"POST /score HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST /score HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"POST /score HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
        (b"POST /score HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"10000\r\n" + b"x" * 65536 + b"\r\n", b""),
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_is_closed(served, sent, status):
    answered = talk(served.port, sent)
    assert answered[:9] in (b"HTTP/1.1 ", b"")
    assert not status or answered[9:12] in (status, b"")


def test_chunks_without_end_are_cut_off_at_the_limit(served):
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    answered = talk(served.port, b"POST /score HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * 64)
    assert answered[9:12] in (b"413", b"")


def test_slow_clients_are_closed_and_keep_nobody_out(served, image):
    head = b"POST /score HTTP/1.1\r\nContent-Type: image/png\r\nContent-Length: 1000\r\n"
    with ExitStack() as stack:
        slow = []
        for number in range(200):  # of 40 connections that may be open
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=20))
            with suppress(OSError):  # closed already
                connection.sendall((b"", head, head + b"\r\n", head + b"\r\n" + b"x" * 999)[number % 4])
            slow.append(connection)
            if number % 20 == 0:
                assert served.score(image).status == 200
        began = time.monotonic()
        for connection in slow:
            with suppress(ConnectionResetError):
                assert connection.recv(1000) == b""
        assert time.monotonic() - began < 15


def test_a_client_that_leaves_harms_nobody(served, image):
    def leave() -> None:
        head = b"POST /score HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(image)
        for cut in (0, 10, len(image)):
            with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
                connection.sendall(head + image[:cut])

    others = [threading.Thread(target=leave) for _ in range(4)]
    for other in others:
        other.start()
    assert [served.score(image).status for _ in range(8)] == [200] * 8
    for other in others:
        other.join()


def test_connections_that_were_answered_and_wait_keep_nobody_out(served, image):
    with ExitStack() as stack:
        for _ in range(60):  # of 40 connections that may be open
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=20))
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"
        assert served.score(image).status == 200


def test_a_request_that_begins_in_the_packet_of_another_has_its_time_too(served):
    half = b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
    began = time.monotonic()
    answered = talk(served.port, b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n" + half)
    assert answered.startswith(b"HTTP/1.1 200")
    assert time.monotonic() - began < 15, "it was closed, and not by this test's own time limit"


def test_trailers_without_end_are_cut_off(served):
    head = b"POST /score HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
        connection.sendall(head)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            for _ in range(1000):  # 100 MB, of which a few hundred kB lie in buffers
                connection.sendall(b"x: " + b"y" * 100_000 + b"\r\n")
