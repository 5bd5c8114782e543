"""A broker that leads a cluster, as the cluster sees it: what it has stored, and its clients.

While it is not sure that it leads, what clients are sent without a record (QoS 0, PINGRESP) waits
for a record all the same: it is ordered behind a ``LeaderProved``. Messages at QoS 1 and 2 and
acknowledgements always wait for their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from eventstore.format import LeaderProved

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.session import ClientConnection, NodeContext
    from protocol.errors import FoldmqError

_log = structlog.get_logger("foldmq")


class ClusterHooks:
    """The part of a broker that the leader of a cluster deals with."""

    def __init__(self, node: NodeContext, connections: Iterable[ClientConnection]) -> None:
        """Take what a broker has; ``connections`` are those that are open at any time."""
        self._node = node
        self._connections = connections

    @property
    def stored(self) -> tuple[int, bytes]:
        """Sequence and link of the last record that is on disk."""
        journal = self._node.journal
        return journal.durable, journal.durable_link

    @property
    def clients(self) -> int:
        """The number of connected clients."""
        return self._node.directory.attached

    def prove(self, epoch: int) -> int:
        """Append a LeaderProved; return the sequence of its record.

        What clients are sent without a record waits until it is stored.
        """
        node = self._node
        node.emit(LeaderProved(epoch))
        sequence = node.journal.end
        for connection in self._connections:
            node.journal.order_behind(connection)
        node.kernel.wake()
        return sequence

    def let_go(self, reason: str) -> None:
        """Close all clients, and accept none until there is no reason; empty: there is none."""
        self._node.unsure = reason
        if not reason:
            _log.info("this node leads the cluster: clients may connect again")
            return
        connections = list(self._connections)
        _log.error(
            "clients are closed until this node knows again that it leads the cluster",
            connections=len(connections),
        )
        for connection in connections:
            connection.abort("log_unavailable")

    def fail(self, error: FoldmqError) -> None:
        """End the broker."""
        self._node.fail(error)
