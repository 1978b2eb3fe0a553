"""What the front process and a worker say to each other over a socket: JSON, and bytes beside it.

A frame is the length of its JSON and of its bytes (two big-endian integers), the JSON, the bytes. Nothing is
unpickled: a worker decodes images of strangers, and the front process would be the next to fall.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTHS = struct.Struct(">IQ")
_MOST_JSON_BYTES = 64 << 20


def split_parts(content: memoryview, sizes: Sequence[int]) -> list[bytes]:
    """The bytes of a frame, cut into parts of these sizes."""
    parts, start = [], 0
    for size in sizes:
        parts.append(bytes(content[start : start + size]))
        start += size
    return parts


async def send_frame(writer: asyncio.StreamWriter, facts: dict[str, Any], parts: Sequence[bytes] = ()) -> None:
    """Send a frame, in the front process.

    Raises:
        OSError: the worker has ended.
    """
    text = json.dumps(facts).encode()
    writer.write(_LENGTHS.pack(len(text), sum(map(len, parts))) + text)
    writer.writelines(parts)
    await writer.drain()


async def next_frame(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    """Wait for a frame, in the front process.

    Raises:
        EOFError: the worker has ended; asyncio.IncompleteReadError is one.
        OSError: likewise.
    """
    num_json, num_bytes = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
    if num_json > _MOST_JSON_BYTES:
        raise EOFError("the worker sends what is no frame")
    facts: dict[str, Any] = json.loads(await reader.readexactly(num_json))
    return facts, await reader.readexactly(num_bytes)


def write_frame(connection: socket.socket, facts: dict[str, Any], content: bytes = b"") -> None:
    """Send a frame, in a worker."""
    text = json.dumps(facts).encode()
    connection.sendall(_LENGTHS.pack(len(text), len(content)) + text + content)


def read_frame(connection: socket.socket) -> tuple[dict[str, Any], memoryview] | None:
    """Wait for a frame, in a worker; None once the front process has closed the connection or has ended."""
    lengths = _received(connection, _LENGTHS.size)
    if lengths is None:
        return None
    num_json, num_bytes = _LENGTHS.unpack(lengths)
    text = _received(connection, num_json)
    content = _received(connection, num_bytes)
    if text is None or content is None:
        return None
    return json.loads(bytes(text)), content


def _received(connection: socket.socket, num_bytes: int) -> memoryview | None:
    content = memoryview(bytearray(num_bytes))
    start = 0
    while start < num_bytes:
        num_read = connection.recv_into(content[start:])
        if num_read == 0:
            return None
        start += num_read
    return content
