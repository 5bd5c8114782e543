"""Accepts connections: a few in each iteration of the loop, and none without file descriptors.

The servers of the event loops are not suitable. Without descriptors, asyncio's server fails once
for each entry of its backlog, with a traceback each time, and uvloop's closes waiting connections
silently. With descriptors, asyncio's server accepts all waiting connections in one iteration, which
delays connected clients; and neither server can be paused. Here connections that are not accepted
yet wait in the operating system, as long as its queue has room.
"""

import asyncio
import errno
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import structlog

from actors.transports.file_descriptors import EXHAUSTED, Descriptors

_log = structlog.get_logger("foldmq")

_AT_ONCE, _BUSY_AT_ONCE, _WORK = 2, 10, 0.0001
"""Minimum and maximum number of connections accepted in one turn while the broker is busy; seconds
after which no more than the minimum are accepted. Setting them up takes several times as long."""
_BREAK = 0.002
"""Seconds until the next ones while the broker is busy: one to four thousand per second."""
_MAX_AT_ONCE = 16
"""Number of connections accepted in one turn when the broker is not busy, or when the event loop
was late after such a break."""
_RETRY = 0.25
"""Seconds between checks whether there are descriptors again."""
_LOG_EVERY = 60.0
"""Minimum seconds between log lines about running out of descriptors."""


def _never_busy() -> bool:
    return False


class Acceptor:
    """Accepts the connections of one listening socket, which must not block.

    ``admit(address)`` returns whether a connection is admitted; others are closed immediately,
    before anything is allocated for them. ``address`` is the host; for a Unix socket it is empty.
    ``make()`` returns the protocol of an admitted one. ``busy_recently()`` returns whether other
    clients are waiting. ``clock`` returns seconds. Use: construct, :meth:`start`, :meth:`close`.
    """

    def __init__(
        self,
        listener: socket.socket,
        admit: Callable[[str], bool],
        make: Callable[[], asyncio.BaseProtocol],
        descriptors: Descriptors | None = None,
        busy_recently: Callable[[], bool] = _never_busy,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.listener = listener
        self._admit = admit
        self._make = make
        self._taking: set[asyncio.Task[Any]] = set()
        self._descriptors = descriptors or Descriptors()
        self._busy_recently = busy_recently
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._retry: asyncio.TimerHandle | None = None
        self._break: asyncio.TimerHandle | None = None
        self._due = 0.0
        """When the break should end, in seconds of the loop."""
        self._paused_at = 0.0
        self._logged_at: float | None = None
        self.pauses = 0
        """Number of times that descriptors ran out."""

    @property
    def paused(self) -> bool:
        """True while no connections are accepted for lack of descriptors."""
        return self._retry is not None

    def start(self) -> None:
        """Accept connections from now on."""
        self._loop.add_reader(self.listener.fileno(), self._accept_some)

    def release(self) -> socket.socket:
        """Stop accepting; return the listening socket, on which connections wait."""
        if not self._closed:
            self._closed = True
            for waiting in (self._retry, self._break):
                if waiting is not None:
                    waiting.cancel()
            self._retry = self._break = None
            self._loop.remove_reader(self.listener.fileno())
        return self.listener

    def close(self) -> None:
        """Stop accepting and close the listening socket."""
        self.release().close()

    def _accept_some(self) -> None:
        # On a busy host breaks last longer than planned: the rate per second stays the same.
        late = max(0.0, self._loop.time() - self._due) if self._due else 0.0
        self._due = 0.0
        busy = self._busy_recently()
        share = 1 + late / _BREAK
        least, until = round(_AT_ONCE * share), self._clock() + _WORK * share
        most = _MAX_AT_ONCE
        if busy:
            most = min(most, max(least, round(_BUSY_AT_ONCE * share)))
        for number in range(most):
            if busy and number >= least and self._clock() >= until:
                break
            try:
                client, address = self.listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if errno.errorcode.get(error.errno or 0) in EXHAUSTED:
                    self._pause(error.strerror or str(error))
                    return
                # The client has already left, or the network reported an error (accept(2)).
                continue
            self._settle(client, address)
            if self._descriptors.last(client.fileno()):
                self._pause("the rest is reserved for the broker")
                return
        if busy:
            self._loop.remove_reader(self.listener.fileno())
            self._due = self._loop.time() + _BREAK
            self._break = self._loop.call_later(_BREAK, self._end_break)

    def adopt(self, client: socket.socket) -> None:
        """Take a connection that this process accepted before it restarted."""
        try:
            address = client.getpeername()
        except OSError:  # the client has left
            client.close()
            return
        self._settle(client, address)

    def _settle(self, client: socket.socket, address: Any) -> None:
        # A Unix socket has no address.
        host = address[0] if isinstance(address, tuple) else ""
        if self._admit(host):
            client.setblocking(False)
            self._connect(client)
        else:
            client.close()

    def _end_break(self) -> None:
        self._break = None
        self.start()
        self._accept_some()

    def _pause(self, reason: str) -> None:
        self._loop.remove_reader(self.listener.fileno())
        self._retry = self._loop.call_later(_RETRY, self._resume_if_free)
        self._paused_at = self._loop.time()
        self.pauses += 1
        if self._logged_at is None or self._paused_at - self._logged_at >= _LOG_EVERY:
            self._logged_at = self._paused_at
            _log.warning(
                "out of file descriptors: new connections wait (ulimit -n)",
                reason=reason,
                pauses=self.pauses,
            )

    def _resume_if_free(self) -> None:
        if self._descriptors.free(self.listener.fileno()):
            self._retry = None
            self.start()
        else:
            self._retry = self._loop.call_later(_RETRY, self._resume_if_free)

    def _connect(self, client: socket.socket) -> None:
        work = self._loop.connect_accepted_socket(self._make, client)
        task = self._loop.create_task(work)
        self._taking.add(task)
        task.add_done_callback(self._taken)

    def _taken(self, task: asyncio.Task[Any]) -> None:
        self._taking.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("connection not accepted", exc_info=error)


def start_acceptors(
    acceptors: Iterable[Acceptor], clients: Sequence[socket.socket]
) -> list[Acceptor]:
    """Start the acceptors of a listener; the last one takes clients accepted before a restart."""
    started = list(acceptors)
    for acceptor in started:
        acceptor.start()
    for client in clients:
        started[-1].adopt(client)
    return started


def listening_socket(family: socket.AddressFamily, address: Any, backlog: int) -> socket.socket:
    """Listen on an address; raises OSError if that fails."""
    # asyncio disables Nagle's algorithm only for sockets with TCP as protocol.
    protocol = 0 if family == socket.AF_UNIX else socket.IPPROTO_TCP
    listener = socket.socket(family, socket.SOCK_STREAM, protocol)
    try:
        if family != socket.AF_UNIX:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
