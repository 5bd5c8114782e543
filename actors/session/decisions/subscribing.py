"""Decisions about SUBSCRIBE and UNSUBSCRIBE."""

import sys
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from itertools import repeat
from typing import NamedTuple, TypeVar

from actors.session.decisions.queueing import dropped
from eventstore.format.event_parsing import Event
from eventstore.format.events import Subscribed, SubscriptionDenied, Unsubscribed
from eventstore.format.positions import to_runs
from projections.state.filter_links import linked
from projections.state.session import SessionState
from projections.state.waiting_queue import FLAG_BITS
from protocol.mqtt.reason_codes import ReasonCode
from protocol.mqtt.topics import is_reserved_filter

T = TypeVar("T")

_EVENT_TEXT = 64 * 1024
"""Maximum characters of topic filters in one Subscribed event."""


class GrantedFilter(NamedTuple):
    """The outcome of one granted filter."""

    qos: int
    options: int
    """Subscription options of MQTT 5, without the QoS."""
    is_new: bool
    """Whether the session had no subscription with this filter before."""


class Grant(NamedTuple):
    """The outcome of a SUBSCRIBE."""

    codes: list[int]
    """For each filter the granted QoS, or the MQTT 5 reason code of its refusal."""
    granted: dict[str, GrantedFilter]
    events: list[Event]
    over: int = 0
    """Number of filters refused because the session has reached its limit of subscriptions."""


def _refuses_reserved(topic_filter: str) -> int:
    return ReasonCode.TOPIC_FILTER_INVALID if is_reserved_filter(topic_filter) else 0


def subscribe(
    state: SessionState,
    filters: Sequence[tuple[str, int]],
    *,
    max_qos: int,
    refuses: Callable[[str], int] = _refuses_reserved,
    most: int = sys.maxsize,
    options: Sequence[int] = (),
    identifier: int = 0,
) -> Grant:
    """Decide on a SUBSCRIBE: each filter is granted at its QoS (at most ``max_qos``), or refused.

    A filter that occurs twice in a packet is handled as if it came in two packets [MQTT-3.8.4-4].
    ``refuses`` returns the reason code of a refusal, 0 for a permitted filter; ``most`` is the
    maximum number of subscriptions of a session. In MQTT 5, ``options`` are those of each filter,
    and ``identifier`` applies to all of them.
    """
    codes: list[int] = []
    granted: list[tuple[str, int, int]] = []
    denied: list[tuple[str, int]] = []
    made: dict[str, GrantedFilter] = {}
    # Subscriptions that ended with deliveries outstanding count as well.
    free = most - len(state.subscriptions)
    fresh: set[str] = set()
    over = 0
    columns = zip(filters, options or repeat(0), strict=False)
    for (topic_filter, asked), more in columns:
        subscription = state.subscriptions.get(topic_filter)
        is_known = subscription is not None or topic_filter in fresh
        full = not is_known and free <= len(fresh)
        code = ReasonCode.QUOTA_EXCEEDED if full else refuses(topic_filter)
        if code:
            over += full
            codes.append(code)
            denied.append((topic_filter, int(code)))
            continue
        if not is_known:
            fresh.add(topic_filter)
        qos = min(asked, max_qos)
        codes.append(qos)
        granted.append((topic_filter, qos, more))
        is_new = not (subscription is not None and subscription.active) and topic_filter not in made
        made[topic_filter] = GrantedFilter(qos, more, is_new)
    events: list[Event] = []
    for part in by_text(granted, lambda entry: entry[0]):
        event = Subscribed(state.session, [(text, qos) for text, qos, _ in part])
        if any(more for _, _, more in part):
            event.options = [more for _, _, more in part]
        event.identifier = identifier
        events.append(event)
    events += [
        SubscriptionDenied(
            state.session, [text for text, _ in part], to_runs([code for _, code in part])
        )
        for part in by_text(denied, lambda entry: entry[0])
    ]
    return Grant(codes, made, events, over)


def by_text(entries: Sequence[T], filter_of: Callable[[T], str]) -> list[list[T]]:
    """Return entries in parts whose filters fit into one event: a packet may contain megabytes."""
    parts: list[list[T]] = []
    space = 0
    for entry in entries:
        size = len(filter_of(entry)) + 8
        if size > space or not parts:
            parts.append([])
            space = _EVENT_TEXT
        parts[-1].append(entry)
        space -= size
    return parts


def unsubscribe(state: SessionState, filters: Sequence[str]) -> list[Event]:
    """Decide on an UNSUBSCRIBE: sent messages are completed, messages only queued are dropped.

    The standard permits both for the latter [MQTT-3.10.4-3]. Queued messages that may also match
    another subscription of the client are all delivered.
    """
    if not filters:
        return []
    events: list[Event] = []
    kept_filters = _linked_with_others(state, filters) if state.waiting else set()
    for topic_filter in filters:
        subscription = state.waiting.get(topic_filter)
        if subscription is not None and subscription.queue and topic_filter not in kept_filters:
            refs = [entry >> FLAG_BITS for entry in subscription.queue]
            size = subscription.queued_bytes
            events += dropped(state.session, "unsubscribed", refs, topic_filter, size)
    events += [Unsubscribed(state.session, part) for part in by_text(filters, str)]
    return events


def _linked_with_others(state: SessionState, leaving: Sequence[str]) -> AbstractSet[str]:
    """Return the filters that are linked with a remaining subscription.

    That subscription may match their queued messages, too, as a message is queued behind linked
    ones.
    """
    leaving_filters = set(leaving)
    filters: set[str] = set()
    for other in state.active():
        if other.filter not in leaving_filters and other.filter not in filters:
            filters |= linked(state, other.filter)
    return filters
