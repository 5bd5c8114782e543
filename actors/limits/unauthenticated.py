"""Unauthenticated connections: their total number and memory are limited.

Each has its own limits (the time until its CONNECT is accepted, the bytes until then), which do not
help against many connections. If there are too many, the connections most likely to be an attack
are closed one by one: each time the oldest of the address that takes the most memory at that point.
An address with a few newly opened connections loses them last.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

from actors.limits.address_networks import network_of

ConnectionT = TypeVar("ConnectionT")

_OWN_COST = 8192
"""Bytes that an idle connection takes, without the memory of the operating system."""
_KEPT = 7 / 8
"""Fraction of a limit to which its use is reduced once it is reached, so that this is rare."""


class Unauthenticated(Generic[ConnectionT]):
    """The connections whose CONNECT is not accepted, and their memory."""

    __slots__ = ("_addresses", "_bytes", "_count", "max_bytes", "max_connections")

    def __init__(self, max_connections: int, max_bytes: int) -> None:
        self.max_connections = max_connections
        """Maximum number, 0: unlimited, as ``max_bytes``; both may be changed."""
        self.max_bytes = max_bytes
        self._addresses: dict[str, _Address[ConnectionT]] = {}
        self._bytes = 0
        self._count = 0

    def __len__(self) -> int:
        """Return the number of unauthenticated connections."""
        return self._count

    @property
    def bytes(self) -> int:
        """Approximate memory that they take."""
        return self._bytes

    def join(self, connection: ConnectionT, address: str) -> list[ConnectionT]:
        """Add a new connection; return the connections that must be closed because of it.

        They have already been removed. The new one may be among them.
        """
        name = network_of(address)
        at = self._addresses.get(name)
        if at is None:
            at = self._addresses[name] = _Address()
        at.held[connection] = _OWN_COST
        at.bytes += _OWN_COST
        self._bytes += _OWN_COST
        self._count += 1
        return self._make_room()

    def holds(self, connection: ConnectionT, address: str, size: int) -> list[ConnectionT]:
        """Record that a connection holds ``size`` bytes; return those that must be closed.

        They have already been removed. An unknown connection is ignored.
        """
        at = self._addresses.get(network_of(address))
        before = at.held.get(connection) if at is not None else None
        if at is None or before is None:
            return []
        more = _OWN_COST + size - before
        at.held[connection] = before + more
        at.bytes += more
        self._bytes += more
        return self._make_room() if more > 0 else []

    def leave(self, connection: ConnectionT, address: str) -> None:
        """Remove a connection that was accepted or has ended; it may already have been removed."""
        name = network_of(address)
        at = self._addresses.get(name)
        if at is not None:
            self._forget(name, at, connection)

    def _forget(self, name: str, at: _Address[ConnectionT], connection: ConnectionT) -> None:
        cost = at.held.pop(connection, None)
        if cost is None:
            return
        at.bytes -= cost
        self._bytes -= cost
        self._count -= 1
        if not at.held:
            del self._addresses[name]

    def _make_room(self) -> list[ConnectionT]:
        over = (self.max_connections and self._count > self.max_connections) or (
            self.max_bytes and self._bytes > self.max_bytes
        )
        if not over:
            return []
        most = int(self.max_connections * _KEPT) if self.max_connections else self._count
        most_bytes = int(self.max_bytes * _KEPT) if self.max_bytes else self._bytes
        heaviest = [(-at.bytes, name) for name, at in self._addresses.items()]
        heapq.heapify(heaviest)
        closed = []
        while heaviest and (self._count > most or self._bytes > most_bytes):
            _, name = heapq.heappop(heaviest)
            at = self._addresses[name]
            oldest = next(iter(at.held))
            self._forget(name, at, oldest)
            closed.append(oldest)
            if at.held:
                heapq.heappush(heaviest, (-at.bytes, name))
        return closed


class _Address(Generic[ConnectionT]):
    """The connections of one address with their cost, the oldest first."""

    __slots__ = ("bytes", "held")

    def __init__(self) -> None:
        self.held: dict[ConnectionT, int] = {}
        self.bytes = 0
