"""A server on the loopback interface that hands out one file, well or badly."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Served:
    """What the server does; tests change it while it runs."""

    content: bytes = b""
    etag: str | None = '"1"'
    last_modified: str | None = None
    knows_ranges: bool = True
    knows_if_range: bool = True
    status: int | None = None
    """Of each answer, instead of the file."""
    location: str | None = None
    claimed: int | None = None
    """What Content-Length says of the whole file, instead of its size."""
    is_chunked: bool = False
    tells_size: bool = True
    break_after: list[int] = field(default_factory=list)
    """Bytes of the body of each coming answer after which the connection is cut."""
    hang_after: int | None = None
    """Bytes of the body after which nothing more comes until `go_on` is set."""
    go_on: threading.Event = field(default_factory=threading.Event)
    is_endless: bool = False
    content_range: str | None = None
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    served: Served

    def log_message(self, *args: object) -> None:
        """Tests look at requests."""

    def do_GET(self) -> None:
        served = self.served
        served.requests.append((self.path, dict(self.headers.items())))
        if served.status is not None and not self.path.startswith("/final"):
            self._answer(served.status, {"Location": served.location} if served.location else {})
            return
        start = self._start()
        body = served.content[start:]
        headers = {"ETag": served.etag, "Last-Modified": served.last_modified, "Content-Type": "application/x-test"}
        if start:
            whole = len(served.content)
            headers["Content-Range"] = served.content_range or f"bytes {start}-{whole - 1}/{whole}"
        if served.is_chunked:
            headers["Transfer-Encoding"] = "chunked"
        elif served.tells_size:
            headers["Content-Length"] = str(served.claimed - start if served.claimed is not None else len(body))
        if start >= len(served.content) > 0:
            self._answer(416, {"Content-Range": f"bytes */{len(served.content)}"})
            return
        self._answer(206 if start else 200, headers)
        self._send(body)

    def _start(self) -> int:
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if found is None or not self.served.knows_ranges:
            return 0
        is_same = self.headers.get("If-Range") in (self.served.etag, self.served.last_modified)
        return int(found[1]) if is_same or not self.served.knows_if_range else 0

    def _answer(self, status: int, headers: dict[str, str | None]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()

    def _send(self, body: bytes) -> None:
        served = self.served
        cut = served.break_after.pop(0) if served.break_after else None
        body = body[:cut]
        try:
            if served.hang_after is not None:
                self._write(body[: served.hang_after])
                served.go_on.wait()
                body = body[served.hang_after :]
            self._write(body)
            while served.is_endless:
                self._write(bytes(1 << 16))
            if served.is_chunked and cut is None:
                self.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            return

    def _write(self, body: bytes) -> None:
        if self.served.is_chunked and body:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(body), body))
        else:
            self.wfile.write(body)
        self.wfile.flush()


@contextmanager
def serving(certificate: Path | None = None) -> Iterator[Served]:
    """Serve until the block ends.

    Args:
        certificate: with its key; by TLS then.
    """
    served = Served()
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0),
        type("Handler", (_Handler,), {"served": served, "protocol_version": "HTTP/1.1", "timeout": 60}),
    )
    server.handle_error = lambda *_: None  # type: ignore[method-assign] - who hangs up in the handshake
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    scheme = "http" if certificate is None else "https"
    served.url = f"{scheme}://127.0.0.1:{server.server_port}/photos.zip"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        served.go_on.set()
        served.is_endless = False
        server.shutdown()
        server.server_close()
        thread.join()


def make_certificate(folder: Path) -> Path | None:
    """A certificate of our own for 127.0.0.1, with its key; None where there is no openssl to make it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        return None
    file = folder / "own.pem"
    subprocess.run(
        [
            openssl,
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=127.0.0.1",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            folder / "key.pem",
            "-out",
            file,
        ],
        check=True,
        capture_output=True,
    )
    file.write_bytes((folder / "key.pem").read_bytes() + file.read_bytes())
    return file
