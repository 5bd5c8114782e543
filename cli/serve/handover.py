"""Listeners without stages: the process of each client gets its socket."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from actors.connection.pseudonyms import name_in_log
from actors.transports.acceptor import SocketAcceptor
from cluster.connect_peek import Peeked, client_id_in
from eventstore.partitions import partition_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_AT_ONCE = 16
"""Connections accepted in one turn of the event loop."""
_MAX_PEEKED = 64 * 1024
"""Bytes of a CONNECT that are examined; a client whose identifier lies behind them is closed."""
_AGAIN = 0.01
"""Seconds after which an incomplete CONNECT is examined again."""
_RETRY = 0.05


class Handover:
    """Accepts connections and passes each to the process of its client.

    ``give(number, listener, socket, waited)`` passes a socket to a process, with the seconds since
    it was accepted; it returns False while the process cannot take it. ``wait`` is the maximum of
    seconds until a CONNECT has arrived and a process has taken the socket, ``most`` the maximum of
    connections for which that takes time, ``pseudonym_key`` the key of pseudonyms, empty without.
    """

    def __init__(
        self,
        processes: int,
        give: Callable[[int, int, socket.socket, float], bool],
        *,
        wait: float,
        most: int,
        pseudonym_key: bytes = b"",
    ) -> None:
        self._pseudonym_key = pseudonym_key
        self._processes = processes
        self._give = give
        self._wait = wait
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._acceptors: list[tuple[int, SocketAcceptor]] = []
        """The acceptors of the listening sockets, with the numbers of their listeners."""
        self._waiting: dict[socket.socket, float] = {}
        """Sockets without a process, and the times until which they may wait."""
        self._queues: list[deque[tuple[int, socket.socket]]] = [deque() for _ in range(processes)]
        """Sockets, with the numbers of their listeners, that wait for each process: a client's
        later connection must not precede an earlier one."""
        self._next = count()
        self.refused = 0
        """Connections closed because too many others waited, or they waited for too long."""

    def listen(self, number: int, sockets: Iterable[socket.socket]) -> None:
        """Accept connections on the sockets of a listener."""
        for listener in sockets:
            take = partial(self._take, number)
            acceptor = SocketAcceptor(listener, _admit_all, take, at_once=_AT_ONCE)
            self._acceptors.append((number, acceptor))
            acceptor.start()

    def release(self, number: int) -> list[socket.socket]:
        """Stop accepting at a listener; return its sockets, on which clients may wait."""
        found = [acceptor.release() for own, acceptor in self._acceptors if own == number]
        self._acceptors = [one for one in self._acceptors if one[0] != number]
        return found

    def close(self) -> None:
        """Accept nothing more, and close the connections that wait."""
        for _, acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()
        for waiting in [*self._waiting]:
            self._drop(waiting)

    def _take(self, number: int, client: socket.socket) -> None:
        if len(self._waiting) >= self._most:
            self.refused += 1
            client.close()
            return
        self._waiting[client] = self._loop.time() + self._wait
        self._loop.call_at(self._waiting[client], self._expire, client)
        self._look(number, client)

    def _look(self, number: int, client: socket.socket) -> None:
        """Pass a socket on as soon as its client identifier is known."""
        if client not in self._waiting:
            return
        try:
            data = client.recv(_MAX_PEEKED, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            self._loop.add_reader(client.fileno(), self._readable, number, client)
            return
        except OSError:
            self._drop(client)
            return
        found = client_id_in(data)
        if not data or (found is Peeked.INCOMPLETE and len(data) >= _MAX_PEEKED):
            self._drop(client)
        elif found is Peeked.INCOMPLETE:
            # The event loop would report the same bytes again and again.
            self._loop.call_later(_AGAIN, self._look, number, client)
        elif isinstance(found, str) and found:
            name = name_in_log(found, self._pseudonym_key)
            self._pass_on(number, client, partition_of(name, self._processes))
        else:
            # The broker assigns an identifier of its own, or answers the error.
            self._pass_on(number, client, next(self._next) % self._processes)

    def _readable(self, number: int, client: socket.socket) -> None:
        self._loop.remove_reader(client.fileno())
        self._look(number, client)

    def _pass_on(self, number: int, client: socket.socket, process: int) -> None:
        """Pass a socket to a process; the client waits until the process runs."""
        if client not in self._waiting:
            return
        queue = self._queues[process]
        queue.append((number, client))
        if len(queue) == 1:
            self._give_all(process)

    def _give_all(self, process: int) -> None:
        """Pass a process its waiting sockets, in the order of their CONNECT packets."""
        queue = self._queues[process]
        while queue:
            number, client = queue[0]
            if client in self._waiting:
                left = self._waiting[client] - self._loop.time()
                if not self._give(process, number, client, max(0.0, self._wait - left)):
                    self._loop.call_later(_RETRY, self._give_all, process)
                    return
                self._drop(client)
            queue.popleft()

    def _expire(self, client: socket.socket) -> None:
        if client in self._waiting:
            self.refused += 1
            self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        """Close this process's copy of a socket."""
        if self._waiting.pop(client, None) is not None:
            self._loop.remove_reader(client.fileno())
            client.close()


def _admit_all(_host: str) -> bool:
    return True
