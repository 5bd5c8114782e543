"""TLS between a socket and the protocol above it.

The handshake runs in threads (actors.transports.handshakes); from then on each read is decrypted,
and all data written in a turn of the event loop is encrypted together, on the event loop: this
costs a few microseconds. OpenSSL works on buffers in memory and never touches the socket.
"""

import asyncio
import contextlib
import enum
import ssl
from collections.abc import Callable
from typing import Any, Final

from actors.transports.handshakes import HandshakeError, Handshakes, Step, whole_records
from actors.transports.stage import Sendable, Stage

_RECORD: Final = 16 * 1024
"""Maximum bytes in one TLS record."""
_MAX_UNPROCESSED: Final = 128 * 1024
"""Maximum bytes that a client may be ahead of the handshake's threads before reading pauses."""
_FLUSH_AT: Final = 128 * 1024
"""Size in bytes from which data is encrypted and written before the end of the turn."""


class _State(enum.Enum):
    HANDSHAKE = enum.auto()
    OPEN = enum.auto()
    CLOSED = enum.auto()
    """Closed or closing: nothing more is read or written."""


class TlsStage(Stage):
    """The server's side of TLS.

    Extra info, once data was passed on: ``peercert`` (of the client, as ``ssl`` describes it, or
    None), ``cipher``, ``tls_version``, ``ssl_object``, and ``incomplete`` while a record is
    incomplete. A handshake that fails, or takes longer than ``timeout`` seconds, ends the
    connection with a HandshakeError.
    """

    __slots__ = (
        "_answered",
        "_asked",
        "_context",
        "_eof",
        "_error",
        "_gone",
        "_handshakes",
        "_held",
        "_in",
        "_kept",
        "_loop",
        "_out",
        "_partial",
        "_paused",
        "_plain",
        "_plain_size",
        "_soon",
        "_state",
        "_stepping",
        "_timeout",
        "_timer",
        "_tls",
        "_unprocessed",
    )

    def __init__(
        self,
        upper: asyncio.Protocol,
        context: ssl.SSLContext,
        handshakes: Handshakes,
        timeout: float | None = None,
    ) -> None:
        super().__init__(upper)
        self._context = context
        self._handshakes = handshakes
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._asked = 0.0  # when the last step was requested
        self._kept = 0.0  # seconds that finished steps took, including waits
        self._state = _State.HANDSHAKE
        self._tls: ssl.SSLObject | None = None  # until the client has sent data
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._unprocessed = bytearray()  # input not passed to OpenSSL yet
        self._answered = False  # the first step was taken
        self._gone = False  # the connection is lost, but a thread still uses its input
        self._stepping = False  # a thread uses, or will use, _tls, _in and _out
        self._eof = False  # the client sends no more, but a thread still uses its input
        self._held = False  # reading is paused because the client is ahead of the threads
        self._paused = False  # reading is paused by the protocol above
        self._partial = False  # the last input was not a complete record
        self._plain: list[bytes] = []
        self._plain_size = 0
        self._soon = False  # _plain will be written in the next turn
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None

    # As a protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the client, which sends the first data."""
        super().connection_made(transport)
        if self._timeout is not None and not self.is_closing():
            self._timer = self._loop.call_later(self._timeout, self._late)

    def data_received(self, data: bytes) -> None:
        """Decrypt data; before that, continue the handshake."""
        self._read(len(data))
        if self._state is _State.OPEN:
            self._in.write(data)
            self._decrypt()
        elif self._state is _State.HANDSHAKE:
            self._unprocessed += data
            if not self._stepping:
                self._continue_handshake()
            elif len(self._unprocessed) > _MAX_UNPROCESSED and not self._held:
                self._held = True
                self.lower.pause_reading()

    def eof_received(self) -> bool | None:
        """Close after the handshake's input was handled."""
        if self._stepping and self._state is _State.HANDSHAKE:
            self._eof = True
            return True
        return self._upper.eof_received() if self._state is _State.OPEN else None

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on the reason for the end: a failed handshake is more precise."""
        if self._state is _State.HANDSHAKE:
            if self._stepping and self._answered:
                # The last input may be an alert with the client's reason.
                self._gone = True
                return
            self._give_up()
        self._end(exc)

    # As a transport.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return extra information about TLS, or that of the lower transport."""
        if name == "kept_waiting":
            return self._kept + (self._loop.time() - self._asked if self._stepping else 0.0)
        tls = self._tls
        if tls is not None and self._state is _State.OPEN:
            match name:
                case "peercert":
                    return tls.getpeercert() or default
                case "cipher":
                    return tls.cipher()
                case "tls_version":
                    return tls.version()
                case "ssl_object":
                    return tls
                case "incomplete" if self._partial:
                    return True
        return super().get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Return whether it is closed or closing."""
        return self._state is _State.CLOSED or self.lower.is_closing()

    def close(self) -> None:
        """Send the TLS close alert after the data, and close without waiting for the client's."""
        self._say_goodbye()
        self.lower.close()

    def part(self, close: Callable[[asyncio.Transport], object]) -> None:
        """Send the TLS close alert after the data; ``close`` closes the socket."""
        self._say_goodbye()
        super().part(close)

    def _say_goodbye(self) -> None:
        if self._state is _State.HANDSHAKE:
            self._give_up()
            self._end_if_gone()
        elif self._state is _State.OPEN:
            self._encrypt()
            if self._tls is not None:
                with contextlib.suppress(ssl.SSLError):
                    self._tls.unwrap()
            self._flush()
        self._state = _State.CLOSED

    def abort(self) -> None:
        """Close at once."""
        if self._state is _State.HANDSHAKE:
            self._give_up()
            self._end_if_gone()
        self._state = _State.CLOSED
        self.lower.abort()

    def is_reading(self) -> bool:
        """Return whether data is passed up."""
        return not self._paused and not self.is_closing()

    def pause_reading(self) -> None:
        """Stop passing data up; a handshake may still finish."""
        if self._paused:
            return
        self._paused = True
        if self._state is _State.OPEN:
            self.lower.pause_reading()

    def resume_reading(self) -> None:
        """Pass data up again."""
        if not self._paused:
            return
        self._paused = False
        if self._state is _State.OPEN:
            self.lower.resume_reading()
            self._loop.call_soon(self._continue)

    def get_write_buffer_size(self) -> int:
        """Return the number of unsent bytes, encrypted or not."""
        return self._plain_size + self.lower.get_write_buffer_size()

    def write(self, data: Sendable) -> None:
        """Send bytes, at the latest in the next turn of the event loop."""
        if self._state is _State.CLOSED:
            return
        part = bytes(data)
        self._plain.append(part)
        self._plain_size += len(part)
        if self._state is not _State.OPEN:
            return
        if self._plain_size >= _FLUSH_AT:
            self._encrypt()
        elif not self._soon:
            self._soon = True
            self._loop.call_soon(self._encrypt)

    # The handshake.

    def _continue_handshake(self) -> None:
        """Start the next step in a thread, if there is a whole record."""
        size = whole_records(self._unprocessed, first=self._tls is None)
        if size < 0:
            self._fail_handshake(HandshakeError("plaintext", "the client does not use TLS"))
            self.abort()
        elif size > 0:
            self._in.write(self._unprocessed[:size])
            del self._unprocessed[:size]
            new = self._tls is None
            if self._tls is None:
                self._tls = self._context.wrap_bio(self._in, self._out, server_side=True)
            self._asked = self._loop.time()
            step = self._handshakes.step
            self._stepping = step(self._tls, self._stepped, self._wanted, new=new)
            if not self._stepping:
                self._fail_handshake(HandshakeError("busy", "too many TLS handshakes wait"))
                self.abort()

    def _wanted(self) -> bool:
        """Return whether the client still waits for the step."""
        return self._state is _State.HANDSHAKE

    def _stepped(self, step: Step) -> None:
        """Send the answer; continue with the input that arrived meanwhile."""
        self._stepping = False
        self._answered = True
        self._kept += self._loop.time() - self._asked
        if self._gone:
            self._fail_handshake(step.error or _closed())
            self._end(None)
            return
        if self._state is not _State.HANDSHAKE:
            self._drop()
            return
        self._flush()
        if step.error is not None:
            self._fail_handshake(step.error)
            self._state = _State.CLOSED
            self.lower.close()  # after the alert with the reason
        elif step.done:
            self._opened()
        else:
            self._resume_lower()
            self._continue_handshake()
        if self._eof and not self._stepping and self._state is not _State.CLOSED:
            self._upper.eof_received()
            self.close()

    def _opened(self) -> None:
        stats = self._handshakes.stats
        stats.handshakes += 1
        stats.resumed += bool(self._tls is not None and self._tls.session_reused)
        self._state = _State.OPEN
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._in.write(self._unprocessed)
        self._unprocessed = bytearray()
        if self._paused and not self._held:
            self.lower.pause_reading()
        elif not self._paused:
            self._resume_lower()
        self._held = False
        if self._plain:
            self._encrypt()
        self._continue()

    def _resume_lower(self) -> None:
        if self._held:
            self._held = False
            self.lower.resume_reading()

    def _late(self) -> None:
        self._timer = None
        if self._state is _State.HANDSHAKE:
            self._fail_handshake(HandshakeError("timeout", "the TLS handshake took too long"))
            self.abort()

    def _give_up(self) -> None:
        self._fail_handshake(_closed())

    def _end_if_gone(self) -> None:
        """Report that the connection is lost, if that was delayed by a step."""
        if self._gone:
            self._gone = False
            self._loop.call_soon(self._end, None)

    def _fail_handshake(self, error: HandshakeError) -> None:
        """Record the first reason for the failure of this handshake."""
        if self._error is None:
            self._error = error
            self._handshakes.stats.failed[error.kind] += 1

    # Established.

    def _continue(self) -> None:
        """Pass up data that arrived with the end of the handshake, or while reading was paused."""
        if self._state is _State.OPEN and not self._paused and self._in.pending:
            self._decrypt()

    def _decrypt(self) -> None:
        """Pass up all available data in one piece."""
        tls, waiting = self._tls, self._in
        assert tls is not None  # noqa: S101 - narrows the type
        parts = []
        ended = False
        broken: ssl.SSLError | None = None
        try:
            while waiting.pending or tls.pending():
                part = tls.read(_RECORD)
                if not part:
                    ended = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            ended = True
        except ssl.SSLError as error:
            broken = error
        if self._out.pending:
            self._flush()
        self._partial = not parts
        if parts:
            self._upper.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if broken is not None:
            self._error = self._error or ConnectionError(f"TLS: {broken.reason or broken}")
            self._state = _State.CLOSED
            self.lower.close()
        elif ended and self._state is _State.OPEN:
            self._upper.eof_received()
            self.close()

    def _encrypt(self) -> None:
        """Encrypt and send the written data."""
        self._soon = False
        if self._state is not _State.OPEN or not self._plain:
            return
        tls = self._tls
        assert tls is not None  # noqa: S101 - narrows the type
        data = self._plain[0] if len(self._plain) == 1 else b"".join(self._plain)
        self._plain.clear()
        self._plain_size = 0
        try:
            if len(data) <= _RECORD:
                tls.write(data)
            else:
                view = memoryview(data)
                for at in range(0, len(data), _RECORD):
                    tls.write(view[at : at + _RECORD])
        except ssl.SSLError as error:
            self._error = self._error or ConnectionError(f"TLS: {error.reason or error}")
            self.abort()
            return
        self._flush()

    def _flush(self) -> None:
        if self._out.pending and not self.lower.is_closing():
            self.lower.write(self._out.read())

    def _end(self, exc: Exception | None) -> None:
        self._state = _State.CLOSED
        self._drop()
        self._upper.connection_lost(self._error or exc)

    def _drop(self) -> None:
        """Release large buffers; a thread may still use the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._unprocessed = bytearray()
        self._plain.clear()
        self._plain_size = 0
        if not self._stepping:
            self._tls = None


def _closed() -> HandshakeError:
    return HandshakeError("closed", "closed within the TLS handshake")
