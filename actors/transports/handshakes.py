"""TLS handshakes in threads: a few run, a limited number waits.

The cryptography of a handshake takes from a tenth of a millisecond to several milliseconds; OpenSSL
releases the interpreter's lock meanwhile, so that in threads it does not delay connected clients.
"""

import asyncio
import contextlib
import os
import ssl
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

from actors.kernel.os_priority import lower_thread_priority
from eventstore.metric_types import by_reason, counted

_HEADER: Final = 5
_LONGEST_RECORD: Final = 16 * 1024 + 2048
"""Maximum length of a record in its header (RFC 5246, 6.2.3)."""
_HANDSHAKE_TYPE: Final = 22
_MAX_THREADS: Final = 4
_LATE: Final = 0.002
"""Delay in seconds of the event loop for a finished step from which it counts as busy."""
_BREAK_SECONDS: Final = 0.005
"""Seconds for which no new handshake then starts; this still allows over a hundred per second."""

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
    """A failed TLS handshake.

    ``kind`` is a label of the metrics: ``plaintext`` (not TLS at all), ``version``, ``cipher``,
    ``no_certificate`` (of the client, which must have one), ``certificate`` (not accepted),
    ``client_refused`` (the client does not accept the server's), ``closed`` (by either side before
    the end), ``timeout``, ``busy`` (too many wait), ``other``.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(slots=True)
class TlsStats:
    """Counters of TLS listeners since the start."""

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
    """Whether the handshake is complete; if not, and without an error, the client must send
    more."""
    error: HandshakeError | None
    seconds: float
    """Processor time of the step."""


def classify(error: ssl.SSLError) -> HandshakeError:
    """Return why OpenSSL rejected a handshake, in words."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return HandshakeError("certificate", f"client certificate: {error.verify_message}")
    text = reason.lower().replace("_", " ") or "TLS handshake failed"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return HandshakeError("no_certificate", "the client sent no certificate")
    if reason in ("UNSUPPORTED_PROTOCOL", "WRONG_VERSION_NUMBER", "VERSION_TOO_LOW"):
        return HandshakeError("version", text)
    if reason.startswith("NO_SHARED_") or reason == "NO_SUITABLE_KEY_SHARE":
        return HandshakeError("cipher", text)
    if reason in ("HTTP_REQUEST", "HTTPS_PROXY_REQUEST"):
        return HandshakeError("plaintext", text)
    if "_ALERT_" in reason:
        return HandshakeError("client_refused", f"the client rejected the handshake: {text}")
    return HandshakeError("other", text)


def take_step(tls: ssl.SSLObject) -> Step:
    """Continue a handshake with the client's input; never raises."""
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

    There are ``threads`` threads, by default one less than processors. Handshakes in progress have
    priority over new ones, of which at most ``waiting`` wait. A new client also causes work for the
    event loop: while that is busy, new handshakes start a few at a time with breaks in between, so
    that many new clients do not delay connected ones. Methods and callbacks run in the event loop's
    thread.
    """

    def __init__(self, threads: int | None = None, waiting: int = 4096) -> None:
        threads = threads or max(1, min(_MAX_THREADS, (os.cpu_count() or 1) - 1))
        self.stats = TlsStats()
        self.busy_recently: Callable[[], bool] = lambda: False
        """Returns whether connected clients are active; may be replaced."""
        self._threads = threads
        self._most_waiting = waiting
        self._pool = ThreadPoolExecutor(threads, "tls", lower_thread_priority)
        self._working = 0
        self._begun: deque[_HandshakeJob] = deque()
        self._new: deque[_HandshakeJob] = deque()
        self._closed = False
        self._on_break = False

    @property
    def waiting(self) -> int:
        """Number of clients waiting for their first step."""
        return len(self._new)

    def step(
        self,
        tls: ssl.SSLObject,
        done: Callable[[Step], None],
        wanted: Callable[[], bool],
        *,
        new: bool,
    ) -> bool:
        """Run a step and call ``done``; return False if too many ``new`` handshakes wait.

        Until ``done`` is called nothing else may use ``tls`` and its buffers. If ``wanted`` returns
        False when the step would start, because the client has left, ``done`` is not called.
        """
        if self._closed or (new and len(self._new) >= self._most_waiting):
            return False
        (self._new if new else self._begun).append(_HandshakeJob(tls, done, wanted))
        self._start()
        return True

    def close(self) -> None:
        """End the threads after their current steps; waiting ones fail."""
        self._closed = True
        waiting = [*self._begun, *self._new]
        self._begun.clear()
        self._new.clear()
        self._pool.shutdown(wait=False)
        for job in waiting:
            job.done(Step(False, HandshakeError("closed", "the broker is shutting down"), 0.0))

    def _start(self) -> None:
        while self._working < self._threads:
            if self._begun:
                job = self._begun.popleft()
            elif self._new and not self._on_break:
                job = self._new.popleft()
            else:
                break
            if job.wanted():
                self._working += 1
                self._pool.submit(self._run, job, asyncio.get_running_loop())

    def _run(self, job: _HandshakeJob, loop: asyncio.AbstractEventLoop) -> None:
        """Run a step, in a thread."""
        step = take_step(job.tls)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._finished, job, step, time.monotonic())

    def _finished(self, job: _HandshakeJob, step: Step, when: float) -> None:
        self._working -= 1
        self.stats.cpu_seconds += step.seconds
        busy = self.busy_recently() or time.monotonic() - when > _LATE
        if self._new and busy and not self._on_break:
            self._on_break = True
            asyncio.get_running_loop().call_later(_BREAK_SECONDS, self._end_break)
        self._start()
        job.done(step)

    def _end_break(self) -> None:
        self._on_break = False
        self._start()


def whole_records(data: bytearray, *, first: bool) -> int:
    """Return how many bytes of ``data`` are whole records; negative: it is not TLS.

    A client that sends single bytes therefore does not cause work for a thread with each byte.
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
