"""A server as a user starts it, in a process of its own, and a client without any magic."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT


class Answered:
    """An answer."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    """`python -m runner serve`, with its log."""

    def __init__(self, *argv: str, **environment: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runner", "serve", "serve.port=0", *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environment},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = int(self.said(r"address +http://127\.0\.0\.1:(\d+)")[1])

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    def said(self, pattern: str, *, count: int = 1, seconds: float = 120) -> re.Match[str]:
        """Wait until the log has a line like this, so many times."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = [match for line in list(self.lines) if (match := re.search(pattern, line))]
            if len(found) >= count:
                return found[count - 1]
            assert self.process.poll() is None or self._reader.is_alive(), "".join(self.lines)
            time.sleep(0.01)
        raise AssertionError(f"not said: {pattern}\n{''.join(self.lines)}")

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answered:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
            return Answered(connection.getresponse())
        finally:
            connection.close()

    def score(self, body: bytes, kind: str = "application/octet-stream") -> Answered:
        return self.ask("POST", "/score", body, content_type=kind)

    def metric(self, name: str) -> float:
        lines = self.ask("GET", "/metrics").body.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    def workers(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(child) for child in children]

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    """Start a server and wait until it is ready; it is ended with the test."""
    started: list[Server] = []

    def begin(*argv: str, **environment: str) -> Server:
        server = Server(*argv, **environment)
        started.append(server)
        server.said("serving ")
        return server

    yield begin
    for server in started:
        server.process.kill()
        server.stop()


@pytest.fixture(scope="module")
def served(trained: Path) -> Iterator[Server]:
    """One server of this module, in fp32, with small limits."""
    server = Server(
        f"model={trained}",
        "serve.name=birds",
        "serve.precision=fp32",
        "serve.max_batch_size=8",
        "serve.max_body_mib=1",
        "serve.max_images=8",
        "serve.max_pixels=1000000",
        "serve.receive_seconds=1",
        "serve.max_connections=40",
    )
    try:
        server.said("serving ")
        yield server
    finally:
        server.process.kill()
        server.stop()


def form(*files: bytes) -> tuple[bytes, str]:
    """The files as a browser's form sends them, and the type of the body."""
    head = b'--edge\r\nContent-Disposition: form-data; name="image"; filename="secret-name.png"\r\n\r\n'
    return b"".join(
        head + content + b"\r\n" for content in files
    ) + b"--edge--\r\n", "multipart/form-data; boundary=edge"
