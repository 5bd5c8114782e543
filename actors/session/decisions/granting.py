"""Decisions about SUBSCRIBE and UNSUBSCRIBE."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from actors.session.decisions.queueing import dropped
from eventstore.format import (
    Event,
    Subscribed,
    Unsubscribed,
)
from projections.state import (
    FLAG_BITS,
    SessionState,
    linked,
)
from protocol.mqtt import SUBSCRIBE_FAILURE, is_reserved_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

T = TypeVar("T")

_EVENT_TEXT = 64 * 1024
"""Characters of topic filters that go into one Subscribed event at most."""


class Grant(NamedTuple):
    """What a SUBSCRIBE gets."""

    codes: list[int]
    """For each filter the granted QoS, or 0x80."""
    granted: list[tuple[str, int]]
    events: list[Event]
    over: int = 0
    """How many were refused because the session has as many as it may."""


def subscribe(
    state: SessionState,
    filters: Sequence[tuple[str, int]],
    *,
    max_qos: int,
    refuses: Callable[[str], bool] = is_reserved_filter,
    most: int = sys.maxsize,
) -> Grant:
    """Decide on a SUBSCRIBE: each filter is granted at its QoS (at most ``max_qos``), or refused.

    A filter that stands twice in a packet is handled as if it came in two [MQTT-3.8.4-4].
    ``refuses`` says which filters nobody, or not this client, may subscribe to; ``most`` is how
    many subscriptions a session may have.
    """
    codes: list[int] = []
    granted: list[tuple[str, int]] = []
    # Those that ended and still have something to deliver count as well.
    free = most - len(state.subscriptions)
    fresh: set[str] = set()
    over = 0
    for topic_filter, asked in filters:
        known = topic_filter in state.subscriptions or topic_filter in fresh
        full = not known and free <= len(fresh)
        if full or refuses(topic_filter):
            over += full
            codes.append(SUBSCRIBE_FAILURE)
            continue
        if not known:
            fresh.add(topic_filter)
        qos = min(asked, max_qos)
        codes.append(qos)
        granted.append((topic_filter, qos))
    parts = by_text(granted, lambda entry: entry[0])
    return Grant(codes, granted, [Subscribed(state.session, part) for part in parts], over)


def by_text(entries: Sequence[T], filter_of: Callable[[T], str]) -> list[list[T]]:
    """Return entries in parts whose filters fit into one event: a packet may hold megabytes."""
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
    """Decide on an UNSUBSCRIBE: what was sent is completed, what only waits is dropped.

    The standard leaves the latter open [MQTT-3.10.4-3]; a client that wants no more gets no more.
    But where another of its subscriptions may have matched what waits, all of it is delivered.
    """
    if not filters:
        return []
    events: list[Event] = []
    wanted = _linked_with_others(state, filters) if state.waiting else set()
    for topic_filter in filters:
        held = state.waiting.get(topic_filter)
        if held is not None and held.queue and topic_filter not in wanted:
            refs = [entry >> FLAG_BITS for entry in held.queue]
            size = held.queued_bytes
            events += dropped(state.session, "unsubscribed", refs, topic_filter, size)
    events += [Unsubscribed(state.session, part) for part in by_text(filters, str)]
    return events


def _linked_with_others(state: SessionState, leaving: Sequence[str]) -> AbstractSet[str]:
    """Return the filters that are linked with a subscription that stays.

    That one may have matched what waits for them, as a message goes behind what is linked.
    """
    gone = set(leaving)
    found: set[str] = set()
    for other in state.active():
        if other.filter not in gone and other.filter not in found:
            found |= linked(state, other.filter)
    return found
