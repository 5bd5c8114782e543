"""Decisions about deliveries: whether a message is sent, queued or dropped."""

import heapq
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from actors.session.decisions.acknowledgements import PACKET_IDS, in_parts, take_packet_ids
from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    LONGEST_DROPPED_TOPIC,
    MAX_DROPPED_TOPICS,
    Delivered,
    MessageDropped,
    Queued,
)
from eventstore.format.positions import Position, to_runs
from eventstore.format.stored_properties import expiry_runs
from projections.state.filter_links import linked
from projections.state.session import SessionState, SubscriptionState
from projections.state.waiting_queue import FLAG_BITS, QOS_MASK, RETAIN_FLAG
from protocol.mqtt.shared_filters import SHARE

T = TypeVar("T")


class DeliveryLimits(NamedTuple):
    """The limits on deliveries to a session."""

    window: int
    """Maximum outstanding deliveries of a subscription (``max_ack_pending``)."""
    queued_messages: int
    queued_bytes: int
    """Maximum payload bytes queued for a session; ``queued_messages`` is the maximum of
    messages."""
    batch_bytes: int
    """Maximum payload bytes sent in one step."""


def room(state: SessionState, subscription: SubscriptionState, window: int) -> int:
    """Return how many more deliveries a subscription may have outstanding."""
    free = min(PACKET_IDS, state.receive_maximum) - len(state.inflight) - len(state.releasing)
    return max(0, min(window - subscription.outstanding, free))


def within(payloads: Sequence[bytes], limit: int) -> int:
    """Return how many payloads, counted from the first, fit into ``limit`` bytes; at least one."""
    total = 0
    for count, payload in enumerate(payloads):
        total += len(payload)
        if total > limit and count:
            return count
    return len(payloads)


class DeliveryDecision(NamedTuple):
    """The outcome of messages that match a subscription."""

    packet_ids: list[int]
    """Packet identifiers of the messages sent now, which are the first ones."""
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
    rap: bool = False,
    expires: Sequence[int] = (),
) -> DeliveryDecision:
    """Decide on messages of QoS 1 or 2 that match a subscription.

    The messages within the window are sent now if the client accepts bytes (``ready``) and no older
    message is queued. The rest is queued up to the limits of the session, and what exceeds them is
    dropped: the newest messages, as the oldest were accepted first. ``size`` is the sum of all
    payload sizes. ``rap``: RETAIN is sent as published; ``expires`` is the expiry of each message
    in Unix seconds, or empty (MQTT 5).
    """
    behind = goes_behind(state, topic_filter) if state.waiting else None
    # Retained messages are sent for one subscription: they wait in its queue if possible.
    if behind is not None and not (retain and topic_filter not in state.waiting):
        topic_filter = behind
    count = len(refs)
    events: list[Event] = []
    packet_ids: list[int] = []
    sent = 0
    if ready and behind is None:
        subscription = state.subscriptions.get(topic_filter) or SubscriptionState(topic_filter, qos)
        sent = min(count, room(state, subscription, limits.window))
        if size > limits.batch_bytes:
            sent = min(sent, within(payloads, limits.batch_bytes))
    if sent:
        packet_ids = take_packet_ids(state, sent)
        chosen = refs if sent == count else refs[:sent]
        for pids, part in zip(in_parts(packet_ids), in_parts(chosen), strict=True):
            events.append(
                Delivered(
                    state.session,
                    topic_filter,
                    qos,
                    pids=to_runs(pids),
                    refs=to_runs(part),
                    retain=retain,
                    rap=rap,
                )
            )
    if sent < count:
        unsent = payloads[sent:] if sent else payloads
        unsent_size = size if not sent else sum(map(len, unsent))
        events += _enqueue(
            state,
            topic_filter,
            qos,
            refs[sent:],
            unsent,
            unsent_size,
            limits,
            retain=retain,
            expires=expires[sent:],
        )
    return DeliveryDecision(packet_ids, events)


def goes_behind(state: SessionState, topic_filter: str) -> str | None:
    """Return the filter whose queue messages must join; None if they need not wait.

    It is the last filter that may have messages on the same topics [MQTT-4.6.0-6].
    """
    if not state.waiting or topic_filter.startswith(SHARE):
        return None
    last_filter = next(reversed(state.waiting))
    if last_filter == topic_filter:
        return last_filter
    if topic_filter not in state.subscriptions:
        # Unsubscribed: its links are not known. A separate queue would be the last one.
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
    expires: Sequence[int],
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
        events += queued(
            state.session, topic_filter, qos, kept, those, retain=retain, expires=expires[:fitting]
        )
    if fitting < len(refs):
        events += dropped(state.session, reason, refs[fitting:], topic_filter)
    return events


def queued(
    session: str,
    topic_filter: str,
    qos: int,
    refs: Sequence[Position],
    payloads: Sequence[bytes],
    *,
    retain: bool,
    expires: Sequence[int] = (),
) -> list[Event]:
    """Return events that queue messages; ``expires``: expiry of each in Unix seconds, or empty."""
    events: list[Event] = [
        Queued(session, topic_filter, qos, to_runs(part), sum(map(len, those)), retain)
        for part, those in zip(in_parts(refs), in_parts(payloads), strict=True)
    ]
    if expires:
        for event, part in zip(events, in_parts(expires), strict=True):
            event.expires = expiry_runs(part)  # type: ignore[union-attr]  # all are Queued
    return events


def dropped(
    session: str, reason: str, refs: Sequence[Position], topic_filter: str, queued: int = -1
) -> list[MessageDropped]:
    """Return events that drop messages; ``queued`` are their bytes if they leave a queue's head."""
    parts = in_parts(refs)
    # The bytes of each part are not known: the first event contains the sum.
    bytes_of = [queued, *[min(queued, 0)] * (len(parts) - 1)]
    return [
        MessageDropped(session, reason, len(part), to_runs(part), topic_filter, size)
        for part, size in zip(parts, bytes_of, strict=True)
    ]


def dropped_unrecorded(
    session: str, reason: str, topics: Sequence[bytes], topic_filter: str = ""
) -> MessageDropped:
    """Return an event that drops messages without a position: one for each of the topics."""
    shown = islice(dict.fromkeys(topics), MAX_DROPPED_TOPICS)
    named = [topic.decode()[:LONGEST_DROPPED_TOPIC] for topic in shown]
    return MessageDropped(session, reason, len(topics), filter=topic_filter, topics=named)


class WaitingRun(NamedTuple):
    """Messages at the head of a subscription's queue that can be sent together."""

    subscription: SubscriptionState
    qos: int
    retain: bool
    refs: list[Position]


def next_waiting(state: SessionState, window: int, most: int) -> list[WaitingRun]:
    """Return queued messages that may be sent now, at most ``most``, oldest first.

    Messages of one subscription keep their order in the queue, in which positions may decrease
    (retained messages, QoS 2 messages released late). Linked queues are sent one after the other.
    Other queues are merged by position, that is, in the order of publication.
    """
    free = min(PACKET_IDS, state.receive_maximum) - len(state.inflight) - len(state.releasing)
    most = min(most, free)
    if most <= 0:
        return []
    heads = list(state.waiting.values())
    if len(heads) == 1:
        merged = [(entry, 0) for entry in _head(heads[0], window, most)]
    else:
        merged = list(islice(heapq.merge(*_lines(state, window, most), key=_position_of), most))
    runs: list[WaitingRun] = []
    last_kind: tuple[int, int] | None = None
    for entry, number in merged:
        flags = entry & (QOS_MASK | RETAIN_FLAG)
        if last_kind != (number, flags):
            last_kind = (number, flags)
            retain = bool(flags & RETAIN_FLAG)
            runs.append(WaitingRun(heads[number], flags & QOS_MASK, retain, []))
        runs[-1].refs.append(entry >> FLAG_BITS)
    return runs


def _head(subscription: SubscriptionState, window: int, most: int) -> list[int]:
    """Return the messages of a queue that the window admits."""
    free = min(window - subscription.outstanding, most)
    return list(islice(subscription.queue or (), free)) if free > 0 else []


def _lines(state: SessionState, window: int, most: int) -> list[list[tuple[int, int]]]:
    """Return the messages that may be sent, each with its queue's number; a list for each line.

    A line is a sequence of linked queues. A queue that cannot be emptied blocks those behind it.
    """
    lines: dict[int, list[tuple[int, int]]] = {}
    blocked: set[int] = set()
    for number, subscription in enumerate(state.waiting.values()):
        line = id(linked(state, subscription.filter))
        if line in blocked:
            continue
        head = _head(subscription, window, most)
        lines.setdefault(line, []).extend((entry, number) for entry in head)
        if len(head) < len(subscription.queue or ()):
            blocked.add(line)
    return list(lines.values())


def _position_of(entry: tuple[int, int]) -> int:
    return entry[0] >> FLAG_BITS
