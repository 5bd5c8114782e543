"""How long the deliveries to a client wait for their acknowledgements.

The times of deliveries begin anew with each connection. What the earlier connections of a client
left is kept in its history, so that a client that reconnects again and again is found, too.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from actors.session.session_messages import ClientConnection
from projections.state.client_history import Unacknowledged
from projections.state.session import SessionState

if TYPE_CHECKING:
    from actors.session.delivery import Delivery
    from actors.session.node_context import NodeContext

ANSWER_SECONDS: Final = 1.0
"""Seconds for the answer to a redelivery."""


class Overdue(NamedTuple):
    """The deliveries that a connected client has not completed; ages in milliseconds.

    They count from the first transmission on the current connection.
    """

    sent_ms: int
    """Age of the oldest message without PUBACK or PUBREC; 0: there is none."""
    released_ms: int
    """Age of the oldest PUBREL without PUBCOMP; 0: there is none."""

    quiet_ms: int
    """Time since the last acknowledgement of any delivery, at most the age of the oldest one."""

    @property
    def oldest_ms(self) -> int:
        """Age of the oldest of them."""
        return max(self.sent_ms, self.released_ms)


_NONE: Final = Overdue(0, 0, 0)


def unfinished(
    connection: ClientConnection | None, delivery: Delivery, state: SessionState, node: NodeContext
) -> Overdue:
    """Return the ages of the unfinished deliveries of a client; zeros if it is not connected.

    They are also 0 while the broker has not handled all that the client has sent, or has output for
    it that waits for the disk.
    """
    if connection is None or connection.unhandled:
        return _NONE
    return _ages(connection, delivery, state, node)


def _ages(
    connection: ClientConnection, delivery: Delivery, state: SessionState, node: NodeContext
) -> Overdue:
    if not (state.inflight or state.releasing):
        return _NONE
    if connection.paused or _waits_for_log(connection, node):
        return _NONE
    begun = connection.connected_ms - node.clock.jumped_ms
    now_ms = node.clock.steady_ms()
    sent, released = (
        max(0, now_ms - max(begun, delivery.redelivery.oldest_ms(released=released)))
        if table
        else 0
        for table, released in ((state.inflight, False), (state.releasing, True))
    )
    oldest = max(sent, released)
    quiet = min(float(oldest), 1000 * (node.clock.monotonic() - connection.last_ack))
    return Overdue(sent, released, round(quiet))


def _waits_for_log(connection: ClientConnection, node: NodeContext) -> bool:
    """Return whether output for a client waits longer than usual for the disk."""
    oldest = node.journal.oldest
    late = oldest is not None and node.clock.monotonic() - oldest >= ANSWER_SECONDS
    return late and connection.gated > 0


def earlier(
    connection: ClientConnection, state: SessionState, node: NodeContext
) -> Unacknowledged | None:
    """Return what the earlier connections of a client left and this one has not acknowledged.

    That is the same delivery; or any, if the client has acknowledged none on this connection.
    """
    unacknowledged = node.clients.find(state.session).unacknowledged
    if unacknowledged is None or connection.last_ack == -math.inf:
        return unacknowledged
    table = state.releasing if unacknowledged.released else state.inflight
    return (
        unacknowledged if any(sent.ref == unacknowledged.ref for sent in table.values()) else None
    )


def left_by(
    connection: ClientConnection, delivery: Delivery, state: SessionState, node: NodeContext
) -> Unacknowledged | None:
    """Return what a client leaves unacknowledged as its connection ends."""
    before = earlier(connection, state, node)
    age_ms = _ages(connection, delivery, state, node).oldest_ms  # no more input is handled
    if not age_ms:
        return before
    ref, released = min(
        chain(
            ((sent.ref, False) for sent in state.inflight.values()),
            ((sent.ref, True) for sent in state.releasing.values()),
        )
    )
    if before is None:
        return Unacknowledged(ref, released, age_ms, 1)
    return Unacknowledged(ref, released, before.connected_ms + age_ms, before.connections + 1)
