"""Adds events that are read back from the log to the histories of clients.

The counts are the same as those that the broker keeps when it decides these events. Facts that no
event records are missing, such as refused publications at QoS 0 that are not retained, and the user
of a denial; a will that was denied counts as a publication.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from eventstore.display import escaped
from eventstore.format.events import (
    LOG_SESSION,
    NATS_SESSION,
    Expired,
    MessageDropped,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    SubscriptionDenied,
)
from eventstore.format.positions import Position, count_runs, from_runs
from protocol.mqtt.shared_filters import SHARE

if TYPE_CHECKING:
    from eventstore.format.event_parsing import LogEvent
    from projections.state.client_history import ClientHistories

LONGEST_DENIED: Final[int] = 200
"""Characters of a denied topic or filter that a history, or a line about it, has."""
_NOT_AUTHORIZED: Final = 0x87
HISTORY_EVENTS: Final[frozenset[type]] = frozenset(
    {Expired, MessageDropped, SessionClosed, SessionExpired, SessionOpened, SubscriptionDenied}
)
"""The types of events that concern the history of a client."""


def add_to_history(histories: ClientHistories, event: LogEvent, at: Position, ms: int) -> None:
    """Add an event at a position, of ``ms`` (Unix time), unless the loaded history counts it."""
    client: str = event.session  # type: ignore[union-attr,assignment]  # these types have one
    if histories.counts(client, at):
        return
    if isinstance(event, SessionOpened):
        if not _is_internal(client):
            unix = event.address.startswith("unix:")
            host = "" if unix else event.address.rpartition(":")[0]
            histories.opened(client, ms, sys.intern(host))
    elif isinstance(event, SessionClosed):
        if not _is_internal(client):
            histories.closed(client, event.reason, ms)
    elif isinstance(event, SessionExpired):
        histories.session_ended(client)
    elif isinstance(event, MessageDropped):
        histories.dropped(client, event.reason, event.count, ms)
        if event.reason == "not_permitted" and event.topics and not event.filter:
            topic = escaped(event.topics[0], LONGEST_DENIED)
            histories.denied(client, "publish", topic, event.count, ms, None)
    elif isinstance(event, Expired):
        histories.dropped(client, "expired", count_runs(event.refs), ms)
    elif isinstance(event, SubscriptionDenied):
        for topic_filter, reason in zip(event.filters, from_runs(event.reasons), strict=False):
            if reason == _NOT_AUTHORIZED:
                asked = escaped(topic_filter, LONGEST_DENIED)
                histories.denied(client, "subscribe", asked, 1, ms, None)


def _is_internal(client: str) -> bool:
    """Return whether a session belongs to no client: the broker itself opens and closes it."""
    return client == NATS_SESSION or client.startswith((LOG_SESSION, SHARE))
