"""Clients that do not acknowledge what they were sent, as ``doctor`` and previews name them."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from actors.connection.connection import Connection

if TYPE_CHECKING:
    from actors.session.node_context import NodeContext
    from actors.session.session import Session
    from projections.state.session import SessionState

_WITHOUT_REDELIVERY: Final = 30.0
"""Seconds after which a delivery is overdue if ``ack_wait`` is 0."""
_ANSWER_SECONDS: Final = 1.0
"""Seconds for the answer to a redelivery."""
_FILTERS: Final = 4
"""Maximum filters that are named."""


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


def unfinished(actor: Session | None, state: SessionState, node: NodeContext) -> Overdue:
    """Return the ages of the unfinished deliveries of a client; zeros if it is not connected.

    They are also 0 while the broker has not handled all that the client has sent, or has output for
    it that waits for the disk.
    """
    connection = actor.connection if actor is not None else None
    if actor is None or connection is None or not (state.inflight or state.releasing):
        return _NONE
    begun = 0
    if isinstance(connection, Connection):
        if connection.unhandled or connection.paused or _waits_for_log(connection, node):
            return _NONE
        begun = connection.connected_ms - node.clock.jumped_ms
    now_ms = node.clock.steady_ms()
    sent, released = (
        max(0, now_ms - max(begun, actor.delivery.redelivery.oldest_ms(released=released)))
        if table
        else 0
        for table, released in ((state.inflight, False), (state.releasing, True))
    )
    oldest = max(sent, released)
    quiet = min(float(oldest), 1000 * (node.clock.monotonic() - connection.last_ack))
    return Overdue(sent, released, round(quiet))


def _waits_for_log(connection: Connection, node: NodeContext) -> bool:
    """Return whether output for a client waits longer than usual for the disk."""
    oldest = node.journal.oldest
    late = oldest is not None and node.clock.monotonic() - oldest >= _ANSWER_SECONDS
    return late and connection.gated > 0


def overdue_after_ms(node: NodeContext) -> int:
    """Return the age from which an unfinished delivery is a problem.

    The client has had ``ack_wait``, and the time to answer one redelivery.
    """
    return round(1000 * ((node.options.ack_wait or _WITHOUT_REDELIVERY) + _ANSWER_SECONDS))


def stalled(node: NodeContext, name: str) -> dict[str, Any] | None:
    """Return the figures of a client with overdue deliveries; None if there are none.

    ``count`` deliveries are unfinished, the oldest for ``age_ms``; ``filters`` has their numbers by
    filter. The client has acknowledged nothing for ``quiet_ms``, and sent nothing for
    ``silent_ms``; ``slow``: it does acknowledge, but not the oldest.
    """
    state, actor = node.state.sessions.live.get(name), node.directory.find_session(name)
    if state is None or actor is None:
        return None
    ages = unfinished(actor, state, node)
    age, after = ages.oldest_ms, overdue_after_ms(node)
    if age < after:
        return None
    of = Counter(
        sent.subscription.filter
        for sent in chain(state.inflight.values(), state.releasing.values())
    )
    connection = actor.connection
    silent = float("inf")
    if isinstance(connection, Connection):
        silent = 1000 * (node.clock.monotonic() - connection.last_read)
    if silent == float("inf"):  # it has sent nothing since its CONNECT
        silent = age
    return {
        "count": len(state.inflight) + len(state.releasing),
        "filters": dict(of.most_common(_FILTERS)),
        "age_ms": age,
        "quiet_ms": ages.quiet_ms,
        "slow": ages.quiet_ms < after,
        "silent_ms": round(silent),
        "resumed": actor.delivery.resumed,
    }
