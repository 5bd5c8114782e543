"""What a session decides: pure functions from its state and a request to events.

Nothing here changes a state or knows the time; who calls appends the events and applies them.
"""

from __future__ import annotations

import heapq
import sys
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from eventstore.format import (
    ENTRIES_AT_ONCE,
    Acked,
    Completed,
    Delivered,
    Event,
    MessageDropped,
    Position,
    Queued,
    Received,
    Released,
    Subscribed,
    Unsubscribed,
    to_runs,
)
from projections.state import (
    FLAG_BITS,
    QOS_MASK,
    RETAIN_FLAG,
    InFlight,
    SessionState,
    SubscriptionState,
    linked,
)
from protocol.mqtt import SUBSCRIBE_FAILURE, is_reserved_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

T = TypeVar("T")

PACKET_IDS = 65_535
"""Packet identifiers of a session, 1 to 65 535 [MQTT-2.3.1-1]."""
_EVENT_TEXT = 64 * 1024
"""Characters of topic filters that go into one Subscribed event at most."""


class DeliveryLimits(NamedTuple):
    """What bounds a delivery."""

    window: int
    """Deliveries outstanding for a subscription (``max_ack_pending``)."""
    queued_messages: int
    queued_bytes: int
    """Messages and payload bytes waiting for a session."""
    batch_bytes: int
    """Payload bytes sent at once."""


def take_packet_ids(state: SessionState, count: int) -> list[int]:
    """Return ``count`` packet identifiers that are not in use, in the order of their numbers.

    They go on behind the one given out last and begin again at 1 after 65 535
    [MQTT-2.3.1-2, MQTT-2.3.1-4]. The caller sees to it that so many are free.
    """
    first = state.last_pid + 1
    inflight, releasing = state.inflight, state.releasing
    if first + count - 1 <= PACKET_IDS:
        wanted = range(first, first + count)
        if inflight.keys().isdisjoint(wanted) and releasing.keys().isdisjoint(wanted):
            return list(wanted)
    taken: list[int] = []
    pid = state.last_pid
    while len(taken) < count:
        pid = pid % PACKET_IDS + 1
        if pid not in inflight and pid not in releasing:
            taken.append(pid)
    return taken


def room(state: SessionState, held: SubscriptionState, window: int) -> int:
    """Return how many more messages a subscription may have outstanding."""
    free = PACKET_IDS - len(state.inflight) - len(state.releasing)
    return max(0, min(window - held.outstanding, free))


def within(payloads: Sequence[bytes], limit: int) -> int:
    """Return how many payloads from the first one fit into ``limit`` bytes, at least one."""
    total = 0
    for count, payload in enumerate(payloads):
        total += len(payload)
        if total > limit and count:
            return count
    return len(payloads)


class Delivery(NamedTuple):
    """What becomes of messages that match a subscription."""

    packet_ids: list[int]
    """Of those that are sent now: the first ones."""
    events: list[Event]


def deliver(
    state: SessionState,
    topic_filter: str,
    qos: int,
    refs: Sequence[Position],
    payloads: Sequence[bytes],
    size: int,
    limits: DeliveryLimits,
    *,
    retain: bool,
    ready: bool,
) -> Delivery:
    """Decide on messages of QoS 1 or 2 that match a subscription.

    Sent now is what the window allows, if the client is there and takes bytes (``ready``) and
    nothing older waits; the rest is queued as far as the limits of the session allow, and what
    they do not allow is dropped: the newest, as the oldest was accepted first. ``size`` is that
    of all payloads.
    """
    behind = goes_behind(state, topic_filter) if state.waiting else None
    if behind is not None:
        topic_filter = behind
    count = len(refs)
    events: list[Event] = []
    packet_ids: list[int] = []
    sent = 0
    if ready and behind is None:
        held = state.subscriptions.get(topic_filter) or SubscriptionState(topic_filter, qos)
        sent = min(count, room(state, held, limits.window))
        if size > limits.batch_bytes:
            sent = min(sent, within(payloads, limits.batch_bytes))
    if sent:
        packet_ids = take_packet_ids(state, sent)
        chosen = refs if sent == count else refs[:sent]
        for pids, some in zip(in_parts(packet_ids), in_parts(chosen), strict=True):
            events.append(
                Delivered(
                    state.session,
                    topic_filter,
                    qos,
                    pids=to_runs(pids),
                    refs=to_runs(some),
                    retain=retain,
                )
            )
    if sent < count:
        rest = payloads[sent:] if sent else payloads
        rest_size = size if not sent else sum(map(len, rest))
        events += _enqueue(
            state, topic_filter, qos, refs[sent:], rest, rest_size, limits, retain=retain
        )
    return Delivery(packet_ids, events)


def goes_behind(state: SessionState, topic_filter: str) -> str | None:
    """Return the filter in whose queue messages must wait, None when they need not.

    It is the last one that may have messages of the same topics [MQTT-4.6.0-6].
    """
    if not state.waiting:
        return None
    last = next(reversed(state.waiting))
    if last == topic_filter:
        return last
    if topic_filter not in state.subscriptions:
        # Unsubscribed, and nobody knows with what it was linked. A queue of its own is the last.
        return topic_filter
    among = linked(state, topic_filter)
    return next((other for other in reversed(state.waiting) if other in among), None)


def _enqueue(
    state: SessionState,
    topic_filter: str,
    qos: int,
    refs: Sequence[Position],
    payloads: Sequence[bytes],
    size: int,
    limits: DeliveryLimits,
    *,
    retain: bool,
) -> list[Event]:
    fitting = len(refs)
    reason = ""
    if state.queued + fitting > limits.queued_messages:
        fitting = max(0, limits.queued_messages - state.queued)
        reason = "queue_messages"
    if state.queued_bytes + size > limits.queued_bytes:
        space = limits.queued_bytes - state.queued_bytes
        total = 0
        for count, payload in enumerate(payloads[:fitting]):
            total += len(payload)
            if total > space:
                fitting = count
                reason = "queue_bytes"
                break
    events: list[Event] = []
    if fitting:
        kept, those = (
            (refs, payloads) if fitting == len(refs) else (refs[:fitting], payloads[:fitting])
        )
        events += queued(state.session, topic_filter, qos, kept, those, retain=retain)
    if fitting < len(refs):
        events += dropped(state.session, reason, refs[fitting:], topic_filter)
    return events


def in_parts(values: Sequence[T]) -> list[Sequence[T]]:
    """Return values in parts of which each fits into one event."""
    if len(values) <= ENTRIES_AT_ONCE:
        return [values]
    starts = range(0, len(values), ENTRIES_AT_ONCE)
    return [values[at : at + ENTRIES_AT_ONCE] for at in starts]


def queued(
    session: str,
    topic_filter: str,
    qos: int,
    refs: Sequence[Position],
    payloads: Sequence[bytes],
    *,
    retain: bool,
) -> list[Event]:
    """Say that messages wait."""
    return [
        Queued(session, topic_filter, qos, to_runs(some), sum(map(len, those)), retain)
        for some, those in zip(in_parts(refs), in_parts(payloads), strict=True)
    ]


def dropped(
    session: str, reason: str, refs: Sequence[Position], topic_filter: str, queued: int = -1
) -> list[MessageDropped]:
    """Say that messages are dropped; ``queued`` are their bytes if they leave a queue's head."""
    parts = in_parts(refs)
    # Of a part alone it is not known how many bytes they are: the first one has them all.
    bytes_of = [queued, *[min(queued, 0)] * (len(parts) - 1)]
    return [
        MessageDropped(session, reason, len(some), to_runs(some), topic_filter, size)
        for some, size in zip(parts, bytes_of, strict=True)
    ]


class WaitingRun(NamedTuple):
    """Messages at the head of a subscription's queue that can go out together."""

    held: SubscriptionState
    qos: int
    retain: bool
    refs: list[Position]


def next_waiting(state: SessionState, window: int, most: int) -> list[WaitingRun]:
    """Return what waits and may be sent now, at most ``most`` messages, oldest first.

    Messages of a subscription keep the order in which they wait: their positions may go back
    (retained messages, QoS 2 messages released late). Linked queues go out one after the other.
    Others are merged by position, which is the order in which their messages were published.
    """
    most = min(most, PACKET_IDS - len(state.inflight) - len(state.releasing))
    if most <= 0:
        return []
    heads = list(state.waiting.values())
    if len(heads) == 1:
        merged = [(entry, 0) for entry in _head(heads[0], window, most)]
    else:
        merged = list(islice(heapq.merge(*_lines(state, window, most), key=_position_of), most))
    runs: list[WaitingRun] = []
    last: tuple[int, int] | None = None
    for entry, number in merged:
        flags = entry & (QOS_MASK | RETAIN_FLAG)
        if last != (number, flags):
            last = (number, flags)
            retain = bool(flags & RETAIN_FLAG)
            runs.append(WaitingRun(heads[number], flags & QOS_MASK, retain, []))
        runs[-1].refs.append(entry >> FLAG_BITS)
    return runs


def _head(held: SubscriptionState, window: int, most: int) -> list[int]:
    """Return what the window lets out of a queue."""
    free = min(window - held.outstanding, most)
    return list(islice(held.queue or (), free)) if free > 0 else []


def _lines(state: SessionState, window: int, most: int) -> list[list[tuple[int, int]]]:
    """Return what may go out, each message with the number of its queue; a list for each line.

    A line are queues that are linked. One that cannot be emptied holds up those behind it.
    """
    lines: dict[int, list[tuple[int, int]]] = {}
    blocked: set[int] = set()
    for number, held in enumerate(state.waiting.values()):
        line = id(linked(state, held.filter))
        if line in blocked:
            continue
        found = _head(held, window, most)
        lines.setdefault(line, []).extend((entry, number) for entry in found)
        if len(found) < len(held.queue or ()):
            blocked.add(line)
    return list(lines.values())


def _position_of(entry: tuple[int, int]) -> int:
    return entry[0] >> FLAG_BITS


def acked(state: SessionState, packet_ids: Sequence[int]) -> Acked | None:
    """Decide on PUBACKs: those that belong to a QoS 1 delivery complete it, others are ignored."""
    known = _known(state.inflight, packet_ids, 1)
    return Acked(state.session, to_runs(known)) if known else None


def received(state: SessionState, packet_ids: Sequence[int]) -> Received | None:
    """Decide on PUBRECs: those that belong to a QoS 2 delivery move it on."""
    known = _known(state.inflight, packet_ids, 2)
    return Received(state.session, to_runs(known)) if known else None


def completed(state: SessionState, packet_ids: Sequence[int]) -> Completed | None:
    """Decide on PUBCOMPs: those that answer a PUBREL complete the delivery."""
    known = _known(state.releasing, packet_ids, 2)
    return Completed(state.session, to_runs(known)) if known else None


def _known(table: dict[int, InFlight], packet_ids: Sequence[int], qos: int) -> list[int]:
    known: list[int] = []
    for pid in dict.fromkeys(packet_ids):
        sent = table.get(pid)
        if sent is not None and sent[1] & QOS_MASK == qos:
            known.append(pid)
    return known


def released(state: SessionState, packet_ids: Sequence[int]) -> list[Released]:
    """Decide on PUBRELs: the messages that wait for them take effect, in this order.

    A packet identifier that is not known is answered all the same, but releases nothing: the
    message was released before [MQTT-4.3.3-2].
    """
    inbound = state.inbound
    known = [pid for pid in dict.fromkeys(packet_ids) if pid in inbound]
    return [
        Released(state.session, to_runs(some), refs=to_runs([inbound[pid] for pid in some]))
        for some in in_parts(known)
        if some
    ]


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
