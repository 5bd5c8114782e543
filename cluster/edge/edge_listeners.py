"""The listeners of a node that does not lead, and the clients that it passes on."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from actors.limits import ClientLimits
from actors.transports import Acceptor, HandshakeError, build_stack
from cluster.edge.client_header import PeerAnswer
from cluster.edge.edge_client import ClientStage, EdgeClient, Upstream
from cluster.status import Role

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from actors.configuration import LimitOptions
    from actors.connection import ListenerOptions
    from cluster.status import NodeStatus

_log = structlog.get_logger("foldmq")

_SWEEP: Final = 0.25
"""Seconds between checks for clients that waited too long."""
_AGAIN: Final = 0.05
"""Seconds until the next attempt to reach a leader that could not be reached."""
_OPENING_AT_MOST: Final = 64
"""Connections to the leader that are being opened at a time."""
_OPEN_SECONDS: Final = 5.0
"""Seconds in which the leader has to accept a connection."""
_LINGER: Final = 5.0
"""Seconds that a closing client gets to read its last bytes."""
_SAID_EVERY: Final = 10.0
"""Seconds between log lines about a leader that cannot be reached."""
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))
_USER_TIMEOUT_MS: Final = 10_000
"""Milliseconds after which a connection whose bytes are not acknowledged is lost."""


class LeaderPlace(NamedTuple):
    """The leader, and where it accepts the connections of other nodes."""

    epoch: int
    node: str
    host: str
    port: int


class Edges:
    """The clients of this node while another one leads, and those that wait for a leader.

    ``key`` is the key of the cluster, empty without; ``tls`` the context for connections to the
    leader, None without TLS; ``now`` returns monotonic seconds.
    """

    def __init__(
        self,
        node: str,
        key: bytes,
        tls: ssl.SSLContext | None,
        limits: LimitOptions,
        max_connections: int,
        now: Callable[[], float],
    ) -> None:
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
        self._parked: dict[EdgeClient, None] = {}
        """Clients that wait for a connection, the one that waits longest first."""
        self._opening: dict[asyncio.Task[None], LeaderPlace] = {}
        self._open: dict[EdgeClient, tuple[LeaderPlace, Upstream]] = {}
        self._closing: dict[EdgeClient, float] = {}
        """Clients that are being closed, with the time when that takes too long."""
        self._leader: LeaderPlace | None = None
        self._epoch = 0
        """Epoch of the last known leader."""
        self.led_at: float | None = None
        """When a leader was heard last, in monotonic seconds; None: never."""
        self._not_before = 0.0
        """When to try again to reach the leader, in monotonic seconds."""
        self._again: asyncio.TimerHandle | None = None
        self._said_at = float("-inf")
        self._sweeping: asyncio.TimerHandle | None = None
        self._swept_at = now()
        self.on_lost: Callable[[], object] = lambda: None
        """Called when the leader has closed the connection for a client, or refuses one: perhaps
        its process is gone."""
        self.longest_parked = 0.0
        """The longest time in seconds that a client was parked before it was passed on."""

    # Listeners.

    def listen(self, options: ListenerOptions, sockets: Sequence[socket.socket]) -> None:
        """Accept clients on bound, listening sockets."""
        self._options[options.name] = options
        self._limits.change(self._bounds, self._quotas())
        for bound in sockets:
            acceptor = Acceptor(
                bound, partial(self._admits, options.name), partial(self._accept, options.name)
            )
            acceptor.start()
            self._acceptors.append((options.name, acceptor))
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(_SWEEP, self._sweep)

    def release(self) -> dict[str, list[socket.socket]]:
        """Stop accepting; return the sockets of each listener, on which clients may wait.

        Clients stay.
        """
        found: dict[str, list[socket.socket]] = {}
        for name, acceptor in self._acceptors:
            found.setdefault(name, []).append(acceptor.release())
        self._acceptors.clear()
        return found

    def close(self) -> None:
        """Stop accepting, and close all clients."""
        for _, acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()
        for timer in (self._sweeping, self._again):
            if timer is not None:
                timer.cancel()
        self._sweeping = self._again = None
        for task in list(self._opening):
            task.cancel()
        for client in list(self._clients):
            client.drop()

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
        proxied = self._options[name].stack.proxy is not None
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

    # Clients: the interface cluster.edge.edge_client.EdgeOwner.

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
            client.drop()
        else:
            self._make_room(self._limits.unauthenticated.join(client, host))

    def hold(self, client: EdgeClient) -> None:
        """Record how many bytes a client that is not accepted yet holds."""
        found = self._limits.unauthenticated.holds(client, client.host, client.held_bytes)
        self._make_room(found)

    def _make_room(self, gone: Iterable[EdgeClient]) -> None:
        for client in gone:
            self._limits.refused.add("unauthenticated", self._now(), address=client.address)
            client.drop()

    def accepted(self, client: EdgeClient) -> None:
        """Record that the leader has accepted the CONNECT of a client."""
        self._limits.unauthenticated.leave(client, client.host)

    def closing(self, client: EdgeClient) -> None:
        """Drop a client if it does not read its last bytes in time."""
        self._closing[client] = self._now() + _LINGER

    def upstream_lost(self) -> None:
        """Record that the leader closed the connection for a client."""
        self.on_lost()

    def ended(self, client: EdgeClient, error: Exception | None) -> None:
        """Forget a client whose connection is closed; ``error``: a stage below failed."""
        self._parked.pop(client, None)
        self._open.pop(client, None)
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

    def park(self, client: EdgeClient) -> None:
        """Open a connection to the leader, as soon as there is one."""
        client.stage = ClientStage.PARKED
        self._parked[client] = None
        self._open_some()

    # The leader.

    @property
    def leader(self) -> LeaderPlace | None:
        """The leader that clients are passed on to; None: they wait."""
        return self._leader

    def heard(self, status: NodeStatus) -> None:
        """Pass clients on to the leader that a status names, unless it is an earlier one."""
        known = self._leader
        if status.role is Role.STOPPED:
            if known is not None and known.node == status.node:
                self.follow(None)
        elif status.role is Role.LEADING and status.epoch >= self._epoch:
            host, _, port = status.peers.rpartition(":")
            if host and port.isdigit():
                self._epoch = status.epoch
                self.led_at = self._now()
                place = LeaderPlace(status.epoch, status.node, host.strip("[]"), int(port))
                self.follow(place)

    def follow(self, leader: LeaderPlace | None) -> None:
        """Pass clients on to another leader; those of an earlier leader are closed.

        With None they wait until there is one.
        """
        before, self._leader = self._leader, leader
        if leader is None or leader == before:
            return
        self._not_before = 0.0
        for client, (place, upstream) in list(self._open.items()):
            if place.epoch < leader.epoch:
                upstream.abort()
                client.close()
        for task, place in list(self._opening.items()):
            if place != leader:
                task.cancel()
        self._open_some()

    def _open_some(self) -> None:
        """Open connections for clients that wait."""
        leader = self._leader
        if leader is None or not self._parked:
            return
        wait = self._not_before - self._now()
        if wait > 0:
            if self._again is None:
                self._again = self._loop.call_later(wait, self._try_again)
            return
        while self._parked and len(self._opening) < _OPENING_AT_MOST:
            client = next(iter(self._parked))
            del self._parked[client]
            client.stage = ClientStage.OPENING
            task = self._loop.create_task(self._connect(client, leader), name="edge")
            self._opening[task] = leader
            task.add_done_callback(self._opened)

    def _try_again(self) -> None:
        self._again = None
        self._open_some()

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._opening.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a client was not passed on", exc_info=error)
        self._open_some()

    async def _connect(self, client: EdgeClient, leader: LeaderPlace) -> None:
        """Open the connection of one client; it waits again if that fails."""
        upstream: Upstream | None = None
        answer, problem = PeerAnswer.LATER, ""
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                upstream = await self.reach(client, leader)
                answer = await upstream.answered
        except (OSError, TimeoutError) as error:
            problem = str(error) or "no answer"
            if self._leader == leader:
                self.on_lost()
        finally:
            if client.stage is not ClientStage.OPEN:
                if upstream is not None:
                    upstream.abort()
                if client.stage is not ClientStage.ENDED and answer is not PeerAnswer.REFUSED:
                    client.stage = ClientStage.PARKED
                    self._parked[client] = None
        if answer is PeerAnswer.ACCEPTED and upstream is not None:
            if client.stage is ClientStage.OPEN:
                self._open[client] = leader, upstream
                self.longest_parked = max(self.longest_parked, self._now() - client.began)
            else:
                upstream.close()
            if self._leader is not None and self._leader.epoch > leader.epoch:
                client.close()
        elif answer is PeerAnswer.REFUSED:
            self._limits.refused.add("refused_by_leader", self._now(), address=client.address)
            client.drop()
        elif client.stage is ClientStage.PARKED:
            self._not_before = self._now() + _AGAIN
            self._say(leader, problem)

    async def reach(self, client: EdgeClient, leader: LeaderPlace) -> Upstream:
        """Connect to the leader for a client; raises OSError."""
        transport, upstream = await self._loop.create_connection(
            partial(Upstream, client), leader.host, leader.port, ssl=self._tls
        )
        _watch_peer(transport)
        return upstream

    def _say(self, leader: LeaderPlace, problem: str) -> None:
        now = self._now()
        if now - self._said_at >= _SAID_EVERY and self._leader == leader:
            self._said_at = now
            _log.warning(
                "clients wait: the leader does not accept their connections",
                leader=leader.node,
                address=f"{leader.host}:{leader.port}",
                reason=problem or "it closed the connection",
            )

    # Time.

    def _sweep(self) -> None:
        now = self._now()
        self._sweeping = self._loop.call_later(_SWEEP, self._sweep)
        if now >= self._swept_at + 1.0:
            self._swept_at = now
            for slow in self._limits.sweep(self._open, now):
                self._limits.refused.add(slow.reason, now, address=slow.reader.address)
                slow.reader.drop()
        for client, late in list(self._closing.items()):
            if now >= late:
                client.drop()
        waiting = [
            one
            for one in self._clients
            if one.stage not in (ClientStage.OPEN, ClientStage.ENDED)
            and now - one.began >= one.connect_timeout
        ]
        for client in waiting:
            reason = "connect_timeout" if client.stage is ClientStage.SILENT else "no_leader"
            self._limits.late.add(reason, now, address=client.address)
            client.drop()

    # Numbers for operators.

    @property
    def clients(self) -> int:
        """The number of clients that are passed on."""
        return len(self._open)

    @property
    def parked(self) -> int:
        """The number of clients that wait for a leader."""
        return len(self._parked) + len(self._opening)

    @property
    def refused(self) -> dict[str, int]:
        """The number of clients that were refused or closed, by reason."""
        return dict(self._limits.refused.counts)


def _watch_peer(transport: asyncio.BaseTransport) -> None:
    """Notice within seconds when the leader's machine is gone."""
    found = transport.get_extra_info("socket")
    if found is None:
        return
    with contextlib.suppress(OSError):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
