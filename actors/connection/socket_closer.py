"""Closes sockets, so that their clients can read the reason, and some at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, cast

from actors.transports.stage import Stage

LINGER: Final = 5.0
"""Seconds for which a closing connection may still send output."""
_CLOSED_AT_ONCE = 64
"""Maximum number of sockets closed in one iteration of the event loop."""
_LINGERING, _DISCARDED = 256, 4 * 1024 * 1024
"""Maximum number of sockets of which only the sending side is closed, and of bytes that are read
from each of them and discarded."""
_READ_ON = 1.0
"""Seconds for which such a socket is read."""


class _Lingering:
    """Takes over a transport, closes its sending side, and discards what arrives for a second.

    For the protocol before, the connection has ended.
    """

    def __init__(self, transport: asyncio.Transport, among: set[_Lingering]) -> None:
        loop = asyncio.get_running_loop()
        self._transport = transport
        self._among = among
        self._left = _DISCARDED
        loop.call_soon(transport.get_protocol().connection_lost, None)
        transport.set_protocol(cast("asyncio.Protocol", self))
        among.add(self)
        self._timer = loop.call_later(_READ_ON, self._end)
        try:
            transport.write_eof()
        except OSError:  # the client has reset the connection
            transport.abort()
            return
        if not transport.is_reading():
            transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Discard input, up to a limit."""
        self._left -= len(data)
        if self._left < 0:
            self._transport.abort()

    def eof_received(self) -> bool:
        """Return False: the event loop closes the socket."""
        return False

    def pause_writing(self) -> None:
        """Do nothing: nothing more is written."""

    def resume_writing(self) -> None:
        """Do nothing: nothing more is written."""

    def connection_lost(self, _exc: Exception | None) -> None:
        """Forget the socket."""
        self._timer.cancel()
        self._among.discard(self)

    def _end(self) -> None:
        if self._transport.get_write_buffer_size():
            self._timer = asyncio.get_running_loop().call_later(LINGER, self._transport.abort)
        self._transport.close()


class SocketCloser:
    """Closes sockets whose clients have left, some in each iteration of the event loop.

    Closing a socket costs more than the rest of the work at the end of a connection, and the event
    loop itself would close all in one iteration, however many clients leave at the same time.
    """

    __slots__ = ("_lingering", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Transport] = deque()
        self._lingering: set[_Lingering] = set()

    def part(self, transport: asyncio.Transport) -> None:
        """Close a transport whose client is to read the reason, also while it sends.

        If the socket were closed with unread input, the system would reset the connection, and the
        reason might be lost.
        """
        if isinstance(transport, Stage):
            transport.part(self._half_close)
        else:
            self._half_close(transport)

    def _half_close(self, transport: asyncio.Transport) -> None:
        many = len(self._lingering) >= _LINGERING
        if many or transport.is_closing() or transport.get_extra_info("socket") is None:
            transport.close()
        else:
            _Lingering(transport, self._lingering)

    def close_soon(self, transport: asyncio.Transport) -> None:
        """Close a transport in this iteration or a later one."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._close_some)
        self._waiting.append(transport)

    def _close_some(self) -> None:
        for _ in range(min(_CLOSED_AT_ONCE, len(self._waiting))):
            self._waiting.popleft().close()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._close_some)
