"""The listeners of an edge, and the clients that it passes on."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from actors.connection.listener import ListenerOptions
from actors.connection.pseudonyms import name_in_log
from actors.connection.socket_closer import SocketCloser
from actors.limits.client_limits import ClientLimits
from actors.limits.limit_options import LimitOptions
from actors.transports.acceptor import Acceptor, start_acceptors
from actors.transports.handshakes import HandshakeError
from actors.transports.stack import build_stack
from cluster.connect_peek import Peeked, client_id_in
from cluster.edge_client import MAX_PARKED, ClientStage, EdgeClient, Upstream
from cluster.leader_link import LeaderLink, LeaderPlace
from cluster.status import NodeStatus
from eventstore.partitions import partition_of

if TYPE_CHECKING:
    import ssl


_SWEEP: Final = 0.25
"""Seconds between checks for clients that waited too long."""
_LINGER: Final = 5.0
"""Seconds that a closing client gets to read its last bytes."""
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))
_USER_TIMEOUT_MS: Final = 10_000
"""Milliseconds after which a connection whose bytes are not acknowledged is lost."""


class Edges:
    """The clients that this node passes on to the leader of their log, or that wait for it.

    ``key`` is the key of the cluster, empty without; ``tls`` the context for connections to a
    leader, None without TLS; ``now`` returns monotonic seconds; ``logs`` is the number of logs:
    with several, a client's identifier says which one has its session, or its pseudonym if there is
    a ``pseudonym_key``.
    """

    def __init__(
        self,
        node: str,
        key: bytes,
        tls: ssl.SSLContext | None,
        limits: LimitOptions,
        max_connections: int,
        now: Callable[[], float],
        logs: int = 1,
        pseudonym_key: bytes = b"",
    ) -> None:
        self._pseudonym_key = pseudonym_key
        self.node = node
        self.key = key
        self._tls = tls
        self._bounds = limits
        self._max_connections = max_connections
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._limits: ClientLimits[EdgeClient] = ClientLimits(limits, {})
        self._options: dict[str, ListenerOptions] = {}
        self._acceptors: list[tuple[str, Acceptor]] = []
        self._clients: dict[EdgeClient, None] = {}
        self.links = [LeaderLink(number, self, now) for number in range(logs)]
        """The connections to the leader of each log."""
        self._turn = count()
        """Distributes clients that have no identifier yet."""
        self._closer = SocketCloser()
        self._closing: dict[EdgeClient, float] = {}
        """Clients that are being closed, with the time when that takes too long."""
        self._sweeping: asyncio.TimerHandle | None = None
        self._swept_at = now()
        self.on_lost: Callable[[int], object] = lambda _log: None
        """Called when the leader of a log has closed the connection for a client, or refuses one:
        perhaps its process is gone."""

    # Listeners.

    def listen(
        self,
        options: ListenerOptions,
        sockets: Sequence[socket.socket],
        clients: Sequence[socket.socket] = (),
    ) -> None:
        """Accept clients on bound, listening sockets, and those accepted before a restart."""
        self._options[options.name] = options
        self._limits.change(self._bounds, self._quotas())
        acceptors = (
            Acceptor(
                bound, partial(self._admits, options.name), partial(self._accept, options.name)
            )
            for bound in sockets
        )
        self._acceptors += [
            (options.name, acceptor) for acceptor in start_acceptors(acceptors, clients)
        ]
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(_SWEEP, self._sweep)

    def release(self, only: str | None = None) -> dict[str, list[socket.socket]]:
        """Stop accepting; return the sockets of each listener, on which clients may wait.

        Clients stay. ``only`` is the name of the only listener that stops; None: all stop.
        """
        released: dict[str, list[socket.socket]] = {}
        for name, acceptor in self._acceptors:
            if only in (None, name):
                released.setdefault(name, []).append(acceptor.release())
        self._acceptors = [entry for entry in self._acceptors if entry[0] not in released]
        return released

    def close(self) -> None:
        """Stop accepting, and close all clients."""
        for _, acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for link in self.links:
            link.close()
        for client in list(self._clients):
            client.abort()

    def reload(
        self, limits: LimitOptions, max_connections: int, listeners: Iterable[ListenerOptions]
    ) -> None:
        """Apply other limits and options of listeners; clients stay."""
        self._bounds, self._max_connections = limits, max_connections
        for options in listeners:
            if options.name in self._options:
                self._options[options.name] = options
        self._limits.change(limits, self._quotas())

    def _quotas(self) -> dict[str, Any]:
        return {name: options.quota for name, options in self._options.items()}

    def _admits(self, name: str, host: str) -> bool:
        proxied = self._options[name].stack.hides_clients(host)
        if self._full(host):
            return False
        return not self._limits.refuses(name, "" if proxied else host, self._now())

    def _full(self, address: str) -> bool:
        if len(self._clients) < self._max_connections:
            return False
        self._limits.refused.add("connections", self._now(), address=address)
        return True

    def _accept(self, name: str) -> asyncio.BaseProtocol:
        options = self._options[name]
        return build_stack(EdgeClient(self, options, self._now()), options.stack)

    # Calls by clients (cluster.edge_client).

    def admit(self, client: EdgeClient) -> bool:
        """Count a new client; return whether it is admitted."""
        if self._full(client.address):
            return False
        if self._limits.arrive(client.listener, client.host, self._now()) is not None:
            return False
        self._clients[client] = None
        self._make_room(self._limits.unauthenticated.join(client, client.host))
        return True

    def locate(self, client: EdgeClient) -> None:
        """Count a client for the address that a proxy reported."""
        host = client.host
        self._limits.unauthenticated.leave(client, "")
        if self._limits.locate(client.listener, host, self._now()) is not None:
            client.host = ""
            client.abort()
        else:
            self._make_room(self._limits.unauthenticated.join(client, host))

    def hold(self, client: EdgeClient) -> None:
        """Record how many bytes a client that is not accepted yet holds."""
        displaced = self._limits.unauthenticated.holds(client, client.host, client.held_bytes)
        self._make_room(displaced)

    def _make_room(self, displaced: Iterable[EdgeClient]) -> None:
        for client in displaced:
            self._limits.refused.add("unauthenticated", self._now(), address=client.address)
            client.abort()

    def waited(self, client: EdgeClient) -> float:
        """Return the seconds of its ``connect_timeout`` that a client has used."""
        return max(0.0, self._now() - client.began - client.kept_waiting)

    def accepted(self, client: EdgeClient) -> None:
        """Record that the leader has accepted the CONNECT of a client."""
        self._limits.unauthenticated.leave(client, client.host)

    def closing(self, client: EdgeClient, transport: asyncio.Transport) -> None:
        """Close the transport of a client, which is dropped if it does not read in time."""
        self._closing[client] = self._now() + _LINGER
        self._closer.part(transport)

    def ended(self, client: EdgeClient, error: Exception | None) -> None:
        """Forget a client whose connection is closed; ``error``: a stage below failed."""
        self.links[client.log].forget(client)
        self._closing.pop(client, None)
        if client not in self._clients:
            return
        del self._clients[client]
        self._limits.unauthenticated.leave(client, client.host)
        self._limits.leave(client.listener, client.host, None)
        if error is not None:
            self._count_failure(client, error)

    def _count_failure(self, client: EdgeClient, error: Exception) -> None:
        handshake = isinstance(error, HandshakeError)
        reason = "tls_handshake" if handshake else "framing"
        self._limits.refused.add(reason, self._now(), address=client.address, error=str(error))
        if not (isinstance(error, HandshakeError) and error.kind in {"busy", "closed"}):
            self._limits.count_fault(client.host, self._now())

    def place(self, client: EdgeClient, data: bytes) -> bool:
        """Find the log of a client from what it sent first; return False if more is needed."""
        logs = len(self.links)
        if logs == 1:
            return True
        identifier = client_id_in(data)
        if identifier is Peeked.INCOMPLETE:
            if len(data) >= MAX_PARKED:
                self._limits.refused.add("connect_too_long", self._now(), address=client.address)
                client.abort()
            return False
        if isinstance(identifier, str) and identifier:
            client.log = partition_of(name_in_log(identifier, self._pseudonym_key), logs)
        else:  # the broker assigns an identifier of its own, or answers the error
            client.log = next(self._turn) % logs
        return True

    def park(self, client: EdgeClient) -> None:
        """Open a connection to the leader of a client's log, as soon as there is one."""
        self.links[client.log].park(client)

    def park_again(self, client: EdgeClient) -> None:
        """Park a client whose leader has left it to the next one."""
        self.on_lost(client.log)
        self.links[client.log].forget(client)
        self.park(client)

    # The leaders.

    def heard(self, status: NodeStatus, log: int = 0) -> None:
        """Pass clients of a log on to the leader that a status names."""
        self.links[log].heard(status)

    def refused_by_leader(self, client: EdgeClient) -> None:
        """Count a client that the leader refuses."""
        self._limits.refused.add("refused_by_leader", self._now(), address=client.address)

    def give(self, client: EdgeClient) -> bool | None:
        """Return None: another node gets the bytes of a client, not its socket."""
        del client
        return None

    async def reach(self, client: EdgeClient, leader: LeaderPlace) -> Upstream:
        """Connect to the leader for a client; raises OSError."""
        transport, upstream = await self._loop.create_connection(
            partial(Upstream, client), leader.host, leader.port, ssl=self._tls
        )
        _watch_peer(transport)
        return upstream

    # Time.

    def _sweep(self) -> None:
        now = self._now()
        self._sweeping = self._loop.call_later(_SWEEP, self._sweep)
        if now >= self._swept_at + 1.0:
            self._swept_at = now
            passed_on = [client for link in self.links for client in link.open]
            for slow in self._limits.sweep(passed_on, now):
                self._limits.refused.add(slow.reason, now, address=slow.reader.address)
                slow.reader.abort()
        for client, late in list(self._closing.items()):
            if now >= late:
                client.abort()
        waiting = [
            each
            for each in self._clients
            if each.stage not in (ClientStage.OPEN, ClientStage.ENDED)
            and self.waited(each) >= each.connect_timeout
        ]
        for client in waiting:
            silent = client.stage is ClientStage.SILENT
            reason = "connect_timeout" if silent else self._why_late(client)
            self._limits.late.add(reason, now, address=client.address)
            client.abort()

    def _why_late(self, client: EdgeClient) -> str:
        """Return why a client that has sent its CONNECT waits."""
        return "no_leader" if self.links[client.log].leader is None else "leader_not_reached"

    # Numbers for operators.

    @property
    def clients(self) -> int:
        """The number of clients that are passed on."""
        return sum(len(link.open) for link in self.links)

    @property
    def parked(self) -> int:
        """The number of clients that wait for a leader."""
        return sum(link.parked for link in self.links)

    @property
    def connected(self) -> int:
        """The number of all clients, silent ones included."""
        return len(self._clients)

    @property
    def refused(self) -> dict[str, int]:
        """The number of clients that were refused or closed, by reason."""
        return dict(self._limits.refused.counts)


def _watch_peer(transport: asyncio.BaseTransport) -> None:
    """Notice within seconds when the leader's machine is gone."""
    peer_socket = transport.get_extra_info("socket")
    if peer_socket is None:
        return
    with contextlib.suppress(OSError):
        peer_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                peer_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            peer_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
