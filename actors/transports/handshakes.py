"""TLS handshakes, off the event loop: a few at work, a bounded number waiting.

The arithmetic of a handshake takes from a tenth of a millisecond to several; OpenSSL lets go of
the interpreter meanwhile, so threads keep it from delaying the clients that are connected.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from actors.kernel import lower_thread_priority
from eventstore.metrics import by_reason, counted

if TYPE_CHECKING:
    from collections.abc import Callable

_HEADER: Final = 5
_LONGEST_RECORD: Final = 16 * 1024 + 2048
"""A record's length as its header may tell it (RFC 5246, 6.2.3)."""
_HANDSHAKE_TYPE: Final = 22
_MOST_THREADS: Final = 4
_LATE: Final = 0.002
"""Seconds by which the event loop comes late to a step that is done when it has enough to do."""
_BREATH: Final = 0.005
"""Seconds for which no new handshake is begun then: over a hundred in a second are all the same."""

FAILURES = (
    "busy",
    "certificate",
    "cipher",
    "client_refused",
    "closed",
    "no_certificate",
    "other",
    "plaintext",
    "timeout",
    "version",
)
"""Why TLS handshakes fail, see :class:`HandshakeError`."""


class HandshakeError(ConnectionError):
    """A TLS handshake that came to nothing.

    ``kind`` is one of a few words for metrics: ``plaintext`` (not TLS at all), ``version``,
    ``cipher``, ``no_certificate`` (of the client, which must have one), ``certificate`` (one that
    is not accepted), ``client_refused`` (the client does not accept ours), ``closed`` (ended by
    either side before it was done), ``timeout``, ``busy`` (too many wait), ``other``.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(slots=True)
class TlsStats:
    """What TLS listeners count since the start."""

    handshakes: int = counted(
        "foldmq_tls_handshakes_total", "Completed TLS handshakes.", "tls.handshakes"
    )
    resumed: int = counted("foldmq_tls_resumed_total", "Resumed TLS sessions.", "tls.resumed")
    failed: Counter[str] = counted(
        "foldmq_tls_failed_total",
        "Failed TLS handshakes, by reason.",
        "tls.failed",
        start=Counter,
        labels=("reason",),
        read=by_reason(*FAILURES),
    )
    """By the kind of :class:`HandshakeError`."""
    cpu_seconds: float = counted(
        "foldmq_tls_handshake_seconds_total",
        "Processor time of all TLS handshakes.",
        "tls.cpu_s",
        start=float,
    )


class Step(NamedTuple):
    """The outcome of one step of a handshake."""

    done: bool
    """The handshake is complete; if not, and without an error, the client has to send more."""
    error: HandshakeError | None
    seconds: float
    """Processor time that it took."""


def classify(error: ssl.SSLError) -> HandshakeError:
    """Say in words why OpenSSL gave up a handshake."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return HandshakeError("certificate", f"client certificate: {error.verify_message}")
    text = reason.lower().replace("_", " ") or "TLS handshake failed"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return HandshakeError("no_certificate", "the client shows no certificate")
    if reason in ("UNSUPPORTED_PROTOCOL", "WRONG_VERSION_NUMBER", "VERSION_TOO_LOW"):
        return HandshakeError("version", text)
    if reason.startswith("NO_SHARED_") or reason == "NO_SUITABLE_KEY_SHARE":
        return HandshakeError("cipher", text)
    if reason in ("HTTP_REQUEST", "HTTPS_PROXY_REQUEST"):
        return HandshakeError("plaintext", text)
    if "_ALERT_" in reason:
        return HandshakeError("client_refused", f"the client gave up: {text}")
    return HandshakeError("other", text)


def take_step(tls: ssl.SSLObject) -> Step:
    """Go on with a handshake as far as what the client sent leads; never raises."""
    began = time.thread_time()
    done, failure = False, None
    try:
        tls.do_handshake()
        done = True
    except ssl.SSLWantReadError:
        pass
    except ssl.SSLError as error:
        failure = classify(error)
    except OSError as error:
        failure = HandshakeError("other", str(error))
    return Step(done, failure, time.thread_time() - began)


class _HandshakeJob(NamedTuple):
    tls: ssl.SSLObject
    done: Callable[[Step], None]
    wanted: Callable[[], bool]


class Handshakes:
    """Runs steps of handshakes in threads, for all listeners.

    ``threads`` work, by default one less than there are processors. Handshakes that have begun go
    before new ones, of which at most ``waiting`` wait. A client that is let in makes work for the
    event loop too: when that has enough to do, new handshakes are begun a few at a time with breaks
    between, so that many who come at once do not delay those who are there. All methods are for the
    event loop's thread; so are the calls back.
    """

    def __init__(self, threads: int | None = None, waiting: int = 4096) -> None:
        threads = threads or max(1, min(_MOST_THREADS, (os.cpu_count() or 1) - 1))
        self.stats = TlsStats()
        self.busy_recently: Callable[[], bool] = lambda: False
        """Says whether clients that are there have something to do; may be replaced."""
        self._threads = threads
        self._most_waiting = waiting
        self._pool = ThreadPoolExecutor(threads, "tls", lower_thread_priority)
        self._working = 0
        self._begun: deque[_HandshakeJob] = deque()
        self._new: deque[_HandshakeJob] = deque()
        self._closed = False
        self._breathing = False

    @property
    def waiting(self) -> int:
        """How many clients wait for the first step of theirs."""
        return len(self._new)

    def step(
        self,
        tls: ssl.SSLObject,
        done: Callable[[Step], None],
        wanted: Callable[[], bool],
        *,
        new: bool,
    ) -> bool:
        """Take a step and call ``done``; False if that cannot be, as too many ``new`` ones wait.

        Until then nothing else may use ``tls`` and its buffers. When its turn comes and it is not
        ``wanted`` any more, as the client has gone, nothing is done and nothing called.
        """
        if self._closed or (new and len(self._new) >= self._most_waiting):
            return False
        (self._new if new else self._begun).append(_HandshakeJob(tls, done, wanted))
        self._start()
        return True

    def close(self) -> None:
        """End the threads once what they are at is done; what waits fails."""
        self._closed = True
        waiting = [*self._begun, *self._new]
        self._begun.clear()
        self._new.clear()
        self._pool.shutdown(wait=False)
        for job in waiting:
            job.done(Step(False, HandshakeError("closed", "the broker ends"), 0.0))

    def _start(self) -> None:
        while self._working < self._threads:
            if self._begun:
                job = self._begun.popleft()
            elif self._new and not self._breathing:
                job = self._new.popleft()
            else:
                break
            if job.wanted():
                self._working += 1
                self._pool.submit(self._run, job, asyncio.get_running_loop())

    def _run(self, job: _HandshakeJob, loop: asyncio.AbstractEventLoop) -> None:
        """Work, in a thread."""
        step = take_step(job.tls)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._finished, job, step, time.monotonic())

    def _finished(self, job: _HandshakeJob, step: Step, when: float) -> None:
        self._working -= 1
        self.stats.cpu_seconds += step.seconds
        busy = self.busy_recently() or time.monotonic() - when > _LATE
        if self._new and busy and not self._breathing:
            self._breathing = True
            asyncio.get_running_loop().call_later(_BREATH, self._breathed)
        self._start()
        job.done(step)

    def _breathed(self) -> None:
        self._breathing = False
        self._start()


def whole_records(data: bytearray, *, first: bool) -> int:
    """Give how many bytes of ``data`` are whole records; negative: it is not TLS.

    So a client that dribbles does not make work for a thread with every byte.
    """
    if first and data and data[0] != _HANDSHAKE_TYPE:
        return -1
    at, end = 0, len(data)
    while end - at >= _HEADER:
        size = (data[at + 3] << 8) + data[at + 4]
        if size > _LONGEST_RECORD or data[at + 1] != 3:
            return -1
        if at + _HEADER + size > end:
            break
        at += _HEADER + size
    return at
