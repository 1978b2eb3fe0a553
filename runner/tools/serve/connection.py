"""A connection that can't be held for ever: limits that uvicorn leaves to a proxy.

uvicorn waits without limit for the head of a request, for its body and for a client that does not read, and by
httptools takes heads of any size. Here a request must have arrived, and an answer must have been read, within a time;
and where connections run out, one that has been answered and waits, or the one that has been sending its request for
longest, makes room, so that clients who send nothing keep nobody else out.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_HEAD_BYTES = 1 << 16


class ConnectionLimits:
    """What the connections of a server share."""

    def __init__(self, max_connections: int, seconds: float) -> None:
        """See :func:`limited_connections`."""
        self.max_connections = max_connections
        self.seconds = seconds
        # In the order in which they began to send a request that has not arrived yet.
        self.sending: dict[LimitedConnection, None] = {}
        self.idle: dict[LimitedConnection, None] = {}
        """Those that were answered and are kept open for another request, in the order of their answers."""


class LimitedConnection(HttpToolsProtocol):
    """uvicorn's connection within limits of time and size."""

    limits: ClassVar[ConnectionLimits]

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(*arguments, **options)
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._num_head_bytes = 0
        self._has_head = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request; without room, close another connection, or this one."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            oldest = next(chain(self.limits.idle, self.limits.sending), self)
            oldest.transport.abort()
            oldest.connection_lost_once()
            if oldest is self:
                return
        self._begin()

    def connection_lost_once(self) -> None:
        """Count a connection that is being closed as closed already."""
        self.connections.discard(self)
        self.limits.idle.pop(self, None)
        self.limits.sending.pop(self, None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.limits.idle.pop(self, None)
        self._arrived()
        self._stop_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        self.limits.idle.pop(self, None)
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._begin()  # of another request on the same connection
        if not self._has_head:
            self._num_head_bytes += len(data)
        super().data_received(data)
        if not self._has_head and self._num_head_bytes > _MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        """A request begins, perhaps in the same packet as the end of another one."""
        if self._timer is None:
            self._begin()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A line of the head, or after the last chunk of a body a trailer, which counts as one."""
        if self._has_head:
            self._num_head_bytes += len(name) + len(value)
            if self._num_head_bytes > _MOST_HEAD_BYTES:
                self.transport.abort()
                return
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head has arrived."""
        self._has_head = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body has arrived."""
        self._arrived()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is sent."""
        super().on_response_complete()
        if self._timer is None and not self.transport.is_closing() and self.cycle.response_complete:
            self.limits.idle[self] = None

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read."""
        self._stop_write_timer()
        super().resume_writing()

    def _begin(self) -> None:
        self._has_head = False
        self._num_head_bytes = 0
        self.limits.sending[self] = None
        self._timer = self.loop.call_later(self.limits.seconds, self.transport.abort)

    def _arrived(self) -> None:
        self.limits.sending.pop(self, None)
        self._num_head_bytes = 0
        self._has_head = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def limited_connections(max_connections: int, seconds: float) -> type[LimitedConnection]:
    """The class of the connections of one server, for uvicorn's `http`.

    Args:
        max_connections: open at once.
        seconds: how long a request may take to arrive, and the client to read an answer.
    """

    class _OfOneServer(LimitedConnection):
        limits = ConnectionLimits(max_connections, seconds)

    return _OfOneServer
