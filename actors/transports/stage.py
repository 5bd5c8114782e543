"""What all stages between a socket and a connection have in common.

A stage is a protocol towards what lies below it (the socket, or another stage) and a transport
towards what lies above it (another stage, or the connection). This one passes everything on; the
others say what they do differently.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Sendable = bytes | bytearray | memoryview


class Stage(asyncio.Protocol, asyncio.Transport):
    """Stands between ``upper`` and what it is the protocol of, its *lower* transport.

    ``upper`` gets its ``connection_made`` at once when the socket is connected, so that what it
    counts and its deadlines cover handshakes. It gets data only when this stage is ready.
    """

    __slots__ = ("_lower", "_tell_read", "_upper")

    def __init__(self, upper: asyncio.Protocol) -> None:
        super().__init__()
        self._upper = upper
        self._tell_read: Callable[[int], bool] | None = None
        self._lower: asyncio.Transport | None = None

    # As a protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport, and be one for what is above."""
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
        """Tell what is on top how much was read, for as long as it wants to know.

        Only the lowest stage does; what stages keep before a CONNECT is no more than that.
        """
        if self._tell_read is not None and not self._tell_read(size):
            self._tell_read = None

    def data_received(self, data: bytes) -> None:
        """Pass on what was read."""
        self._read(len(data))
        self._upper.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass on that nothing more comes; gives True if what is above keeps the other way open."""
        return self._upper.eof_received()

    def pause_writing(self) -> None:
        """Pass on that the peer reads too slowly."""
        self._upper.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that there is room again."""
        self._upper.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on that the connection is gone."""
        self._upper.connection_lost(exc)

    def peer_known(self) -> None:
        """Pass on that the extra info ``peername`` is now the client's: see ProxyStage."""
        tell = getattr(self._upper, "peer_known", None)
        if tell is not None:
            tell()

    # As a transport. Nothing above calls it before connection_made.

    @property
    def lower(self) -> asyncio.Transport:
        """What this stage is the protocol of."""
        assert self._lower is not None  # noqa: S101 - narrows the type
        return self._lower

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Tell about the connection as asyncio's transports do."""
        return self.lower.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Tell whether it is closed or being closed."""
        return self.lower.is_closing()

    def close(self) -> None:
        """Close it once what was written has gone."""
        self.lower.close()

    def abort(self) -> None:
        """Close it at once."""
        self.lower.abort()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Have another one above."""
        self._upper = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Tell what is above."""
        return self._upper

    def is_reading(self) -> bool:
        """Tell whether it is being read."""
        return self.lower.is_reading()

    def pause_reading(self) -> None:
        """Read nothing until ``resume_reading``."""
        self.lower.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self.lower.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Say at how many unsent bytes ``pause_writing`` and ``resume_writing`` are due."""
        self.lower.set_write_buffer_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Give the limits, low and high, in bytes."""
        return self.lower.get_write_buffer_limits()

    def get_write_buffer_size(self) -> int:
        """Give how many bytes wait for the peer."""
        return self.lower.get_write_buffer_size()

    def write(self, data: Sendable) -> None:
        """Send bytes."""
        self.lower.write(data)

    def writelines(self, list_of_data: Iterable[Sendable]) -> None:
        """Send bytes."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """Say no: none of the protocols here leaves one way open."""
        return False

    def write_eof(self) -> None:
        """Not to be had."""
        raise NotImplementedError
