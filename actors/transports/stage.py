"""The base class of stages between a socket and a connection.

A stage is a protocol for the transport below it (the socket, or another stage) and a transport for
the protocol above it (another stage, or the connection). This class passes everything on;
subclasses change that.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

Sendable = bytes | bytearray | memoryview


class Stage(asyncio.Protocol, asyncio.Transport):
    """A stage between ``upper`` and its *lower* transport.

    ``connection_made`` of ``upper`` is called when the socket is connected, so that its counters
    and deadlines cover handshakes. It gets data only when this stage is ready.
    """

    __slots__ = ("_lower", "_tell_read", "_upper")

    def __init__(self, upper: asyncio.Protocol) -> None:
        super().__init__()
        self._upper = upper
        self._tell_read: Callable[[int], bool] | None = None
        self._lower: asyncio.Transport | None = None

    # As a protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the lower transport, and act as one for ``upper``."""
        self._lower = cast("asyncio.Transport", transport)
        if not isinstance(transport, Stage):
            self._tell_read = getattr(self._top(), "read_below", None)
        self._upper.connection_made(self)

    def _top(self) -> asyncio.Protocol:
        top = self._upper
        while isinstance(top, Stage):
            top = top._upper  # noqa: SLF001 - one of us
        return top

    def _read(self, size: int) -> None:
        """Report the number of bytes read to the connection, as long as it needs the number.

        Only the lowest stage does this; stages buffer no more than these bytes before a CONNECT.
        """
        if self._tell_read is not None and not self._tell_read(size):
            self._tell_read = None

    def data_received(self, data: bytes) -> None:
        """Pass on received data."""
        self._read(len(data))
        self._upper.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass on the end of input; return True if ``upper`` keeps the other direction open."""
        return self._upper.eof_received()

    def pause_writing(self) -> None:
        """Pass on that the write buffer is full."""
        self._upper.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the write buffer has room again."""
        self._upper.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on that the connection is lost."""
        self._upper.connection_lost(exc)

    def peer_known(self) -> None:
        """Pass on that the extra info ``peername`` is now the client's address: see ProxyStage."""
        tell = getattr(self._upper, "peer_known", None)
        if tell is not None:
            tell()

    # As a transport. Nothing above calls it before connection_made.

    @property
    def lower(self) -> asyncio.Transport:
        """The transport below this stage."""
        assert self._lower is not None  # noqa: S101 - narrows the type
        return self._lower

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return extra information, as asyncio's transports do."""
        return self.lower.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Return whether it is closed or closing."""
        return self.lower.is_closing()

    def close(self) -> None:
        """Close it once the written data is sent."""
        self.lower.close()

    def part(self, close: Callable[[asyncio.Transport], object]) -> None:
        """Close it once the written data is sent; ``close`` closes the socket."""
        if isinstance(self.lower, Stage):
            self.lower.part(close)
        else:
            close(self.lower)

    def abort(self) -> None:
        """Close it at once."""
        self.lower.abort()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Set the protocol above."""
        self._upper = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol above."""
        return self._upper

    def is_reading(self) -> bool:
        """Return whether it is being read."""
        return self.lower.is_reading()

    def pause_reading(self) -> None:
        """Stop reading until ``resume_reading``."""
        self.lower.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading."""
        self.lower.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the number of unsent bytes for ``pause_writing`` and ``resume_writing``."""
        self.lower.set_write_buffer_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the low and high limit in bytes."""
        return self.lower.get_write_buffer_limits()

    def get_write_buffer_size(self) -> int:
        """Return the number of unsent bytes."""
        return self.lower.get_write_buffer_size()

    def write(self, data: Sendable) -> None:
        """Send bytes."""
        self.lower.write(data)

    def writelines(self, list_of_data: Iterable[Sendable]) -> None:
        """Send bytes."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """Return False: none of these protocols supports closing one direction."""
        return False

    def write_eof(self) -> None:
        """Raise an error: none of these protocols supports closing one direction."""
        raise NotImplementedError
