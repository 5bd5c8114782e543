"""Clients that do not acknowledge what they were sent, as ``doctor`` and previews name them."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from actors.connection import Connection

if TYPE_CHECKING:
    from actors.session import NodeContext, Session
    from projections.state import SessionState

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

    @property
    def oldest_ms(self) -> int:
        """Age of the oldest of them."""
        return max(self)


def unfinished(actor: Session | None, state: SessionState, now_ms: int) -> Overdue:
    """Return the ages of the unfinished deliveries of a client; zeros if it is not connected.

    They are also 0 while the broker has not handled all that the client has sent.
    """
    connection = actor.connection if actor is not None else None
    if actor is None or connection is None or not (state.inflight or state.releasing):
        return Overdue(0, 0)
    begun = 0
    if isinstance(connection, Connection):
        if connection.unhandled or connection.paused:
            return Overdue(0, 0)
        begun = connection.connected_ms
    ages = [
        max(0, now_ms - max(begun, actor.oldest_delivery_ms(released=released))) if table else 0
        for table, released in ((state.inflight, False), (state.releasing, True))
    ]
    return Overdue(*ages)


def overdue_after_ms(node: NodeContext) -> int:
    """Return the age from which an unfinished delivery is a problem.

    The client has had ``ack_wait``, and the time to answer one redelivery.
    """
    return round(1000 * ((node.options.ack_wait or _WITHOUT_REDELIVERY) + _ANSWER_SECONDS))


def stalled(node: NodeContext, name: str) -> dict[str, Any] | None:
    """Return the figures of a client that does not acknowledge; None if it does.

    ``count`` deliveries are unfinished, the oldest for ``age_ms``; ``filters`` has their numbers by
    filter; the client last sent something ``silent_ms`` ago.
    """
    state, actor = node.state.sessions.live.get(name), node.directory.find_session(name)
    if state is None or actor is None:
        return None
    age = unfinished(actor, state, node.clock.time_ms()).oldest_ms
    if age < overdue_after_ms(node):
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
        "silent_ms": round(silent),
        "resumed": actor.resumed,
    }
