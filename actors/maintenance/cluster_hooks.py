"""The cluster's interface to the broker that leads it: its stored records and its clients.

While leadership is uncertain, output without a record (QoS 0, PINGRESP) waits for a
``LeaderProved`` record. Messages at QoS 1 and 2 and acknowledgements always wait for their record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from eventstore.format.node_events import LeaderProved

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.session.node_context import NodeContext
    from actors.session.session_messages import ClientConnection
    from protocol.errors import FoldmqError

_log = structlog.get_logger("foldmq")


class ClusterHooks:
    """The part of a broker used by the leader of a cluster."""

    def __init__(self, node: NodeContext, connections: Iterable[ClientConnection]) -> None:
        """Use the parts of a broker; ``connections`` are its currently open connections."""
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

        Output without a record waits until that record is stored.
        """
        node = self._node
        node.emit(LeaderProved(epoch))
        sequence = node.journal.end
        for connection in self._connections:
            node.journal.order_behind(connection)
        if node.bridge is not None:
            node.bridge.await_proof()
        if node.exchange is not None:
            node.exchange.await_proof()
        node.kernel.wake()
        return sequence

    def write_format(self, record_format: int) -> None:
        """Write new records in this format, if the other processes of this node can read it."""
        self._node.journal.record_format = min(record_format, self._node.options.record_format)

    def refuse_clients(self, reason: str) -> None:
        """Disconnect all clients, and accept none until this is called with an empty reason."""
        self._node.unsure = reason
        self._node.admitted_from = float("inf") if reason else self._node.clock.monotonic()
        if not reason:
            _log.info("this node leads the cluster: clients may connect again")
            return
        connections = list(self._connections)
        _log.error(
            "clients are disconnected until this node knows again that it leads the cluster",
            connections=len(connections),
        )
        for connection in connections:
            connection.abort("log_unavailable")

    def fail(self, error: FoldmqError) -> None:
        """Stop the broker."""
        self._node.fail(error)
