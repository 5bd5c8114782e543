"""Folds the events of a log into spans of OpenTelemetry.

A message has a span ``publish``, and a span ``deliver`` for each receiver. They follow from the log
alone, identifiers included, so a log that is read again has the same spans.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import orjson

from eventstore.format.events import (
    LOG_SESSION,
    Acked,
    Assigned,
    Completed,
    Delivered,
    Expired,
    InboundReplaced,
    MessageDropped,
    MessagePublished,
    Queued,
    Received,
    Redelivered,
    Refused,
    Released,
    Returned,
    SessionExpired,
    SessionOpened,
)
from eventstore.format.positions import format_position, from_runs, position
from eventstore.reading.publications import awaits_release
from outbox.selection import TextCache
from outbox.sink import OutboxMessage
from outbox.sinks.span_json import (
    PRODUCER,
    SERVER,
    attribute_json,
    context_of,
    nanoseconds,
    span_event,
    span_json,
)
from protocol.mqtt.topics import matches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from eventstore.format.positions import Position
    from eventstore.format.records import Record

_MS: Final = 1_000_000
_OPEN_MS: Final = 600_000
"""Milliseconds after which what is not over is exported as unfinished."""
_MOST_OPEN: Final = 50_000
"""Number of open messages, open deliveries and kept spans from which on the oldest messages are
exported as unfinished."""
_MOST_EVENTS: Final = 32
_SHARE: Final = "$share/"
_PROTOCOL: Final = b"".join(
    attribute_json(key, "mqtt") + b"," for key in ("messaging.system", "network.protocol.name")
)
_REFUSED: Final = 0x80

_Key: TypeAlias = "int | tuple[Position, str]"
"""Where a session has a delivery: its packet identifier; before, the message and the group."""


@dataclass(frozen=True, slots=True)
class SpanOptions:
    """Which messages are traced, and how their spans are named."""

    ratio: float = 1.0
    """Share of the messages that are traced if their publisher has not decided it."""
    templates: Sequence[str] = ()
    """Topic filters that name spans: of a topic, the first that matches."""
    dropped: bool = False
    """Whether all messages are traced that were dropped or refused for a receiver."""
    redelivered: bool = False
    """Whether all messages are traced that were sent again to a receiver."""
    slow_ms: float | None = None
    """Milliseconds from which on a delivery is slow, and its message traced."""

    @property
    def by_outcome(self) -> bool:
        """Whether it may depend on the outcome whether a message is traced."""
        return self.dropped or self.redelivered or self.slow_ms is not None


@dataclass(eq=False, slots=True)
class _Trace:
    """A message that not all of its receivers have yet."""

    ref: Position
    ids: tuple[str, str, str]
    """Of the trace, of the span of publishing, and of its parent."""
    state: str
    sampled: bool
    since_ms: int
    client: str
    own: bool
    """Whether it was published in this log, not taken over from another."""
    qos: int
    retain: bool
    topic: str
    template: str
    about: bytes
    """Attributes that all its spans have, as JSON."""
    effective: bool = False
    open: dict[_Delivery, None] = field(default_factory=dict)
    events: list[bytes] = field(default_factory=list)
    kept: list[bytes] = field(default_factory=list)
    """Spans that are exported only if the outcome demands it."""


@dataclass(eq=False, slots=True)
class _Delivery:
    """What a session is to get."""

    trace: _Trace
    at: Position
    since_ms: int
    session: str = ""
    key: _Key = 0
    filter: str = ""
    group: str = ""
    qos: int = 0
    received: bool = False
    """Whether the session has the message at QoS 2: what is sent again then is its PUBREL."""
    events: list[bytes] = field(default_factory=list)

    def add(self, name: str, time_ms: int) -> None:
        """Note an event, within bounds."""
        if len(self.events) < _MOST_EVENTS:
            self.events.append(span_event(name, time_ms * _MS))


class SpanFold:
    """Folds complete turns, in order, into messages whose payloads are spans."""

    def __init__(
        self,
        log: str,
        options: SpanOptions,
        is_due: Callable[[str], bool],
        between: tuple[Position, Position],
    ) -> None:
        """``is_due`` selects topics; ``between`` are the cursor, and the last message."""
        self._log = log
        self._options = options
        self._is_due = is_due
        self._after, self._until = between
        self._floor = self._end = self._after
        """The cursor, and the end of the last turn."""
        self._traces: dict[Position, _Trace] = {}
        """By position; the first is the oldest."""
        self._count = 0
        """Number of open deliveries, and of spans that are kept."""
        self._sessions: dict[str, dict[_Key, _Delivery]] = {}
        self._assigned: list[tuple[_Delivery, int]] = []
        """Deliveries assigned in this turn, with the number of their events before."""
        self._touched: dict[_Trace, None] = {}
        self._templates = TextCache(self._template)
        self._out: list[OutboxMessage] = []
        self._time_ms = self._stored_ns = 0

    def take(self, parts: Sequence[Record]) -> list[OutboxMessage]:
        """Fold a turn; return the spans that end with it."""
        stored_ns = nanoseconds(parts[-1].stored_at)
        self._end_old(parts[0].time_ms)
        for record in parts:
            self._time_ms = record.time_ms
            self._stored_ns = max(stored_ns, record.time_ms * _MS)
            if any(raw["e"] in _NAMES for raw in record.raw_events):
                base = position(record.sequence, 0)
                for index, event in record.events():
                    fold = _FOLDS.get(type(event))
                    if fold is not None:
                        fold(self, event, base + index, record)
        self._end_turn()
        self._end = position(parts[-1].sequence + 1, 0) - 1
        return self._exported()

    def wait(self, time_ms: int) -> list[OutboxMessage]:
        """Return the spans that end because there was no turn until a time."""
        self._end_old(time_ms)
        return self._exported()

    def _exported(self) -> list[OutboxMessage]:
        oldest = next(iter(self._traces), None)
        self._floor = max(self._floor, self._end if oldest is None else oldest - 1)
        out, self._out = self._out, []
        return out

    @property
    def through(self) -> Position:
        """The cursor: the spans of all messages up to there are exported."""
        return self._floor

    def finish(self) -> list[OutboxMessage]:
        """End all that is open as unfinished; return its spans."""
        for trace in list(self._traces.values()):
            self._give_up(trace)
        out, self._out = self._out, []
        return out

    # Messages.

    def published(self, event: MessagePublished, at: Position, record: Record) -> None:
        """Begin the traces of messages."""
        if not event.qos:
            return
        log, origins = self._log, range(at, at + event.count)
        own = not event.session.startswith(LOG_SESSION)
        refs: Iterable[Position] = origins
        if not own:
            log, refs = event.session[len(LOG_SESSION) :], from_runs(event.origins)
        blocks = record.blocks(event)
        for number, (ref, origin) in enumerate(zip(origins, refs, strict=True)):
            topic = event.topics[event.which[number] if event.which else 0]
            if not self._after < ref <= self._until or not self._is_due(topic):
                continue
            identity = f"{log}/{format_position(origin)}"
            size = event.sizes if isinstance(event.sizes, int) else event.sizes[number]
            block = blocks[number] if blocks else b""
            trace = self._begin(event, ref, topic, identity, size, block)
            if trace is None:
                continue
            trace.own = own
            if awaits_release(event):
                trace.events.append(span_event("received", self._stored_ns))
            else:
                self._end_publish(trace)

    def _begin(
        self,
        event: MessagePublished,
        ref: Position,
        topic: str,
        identity: str,
        size: int,
        block: bytes,
    ) -> _Trace | None:
        """Return the trace of a message; None if it cannot be exported."""
        digest = hashlib.sha256(identity.encode()).digest()
        context = context_of(block)
        drawn = int.from_bytes(digest[16:24], "big") / 2**64 < self._options.ratio
        sampled = drawn if context is None else context.sampled
        if not sampled and not self._options.by_outcome:
            return None
        template = self._templates[topic]
        about = b'%b,%b{"key":"messaging.message.id","value":{"stringValue":%b}},%b' % (
            _PROTOCOL + attribute_json("messaging.destination.name", topic),
            attribute_json("messaging.destination.template", template) + b"," if template else b"",
            orjson.dumps(identity),
            attribute_json("messaging.message.body.size", size),
        )
        span_id = digest[24:].hex()
        trace = _Trace(
            ref,
            (digest[:16].hex(), span_id, "")
            if context is None
            else (context.trace_id, span_id, context.span_id),
            context.state if context is not None else "",
            *(sampled, self._time_ms, event.session, True, event.qos, event.retain),
            *(topic, template, about),
        )
        self._traces[ref] = trace
        return trace

    def _template(self, topic: str) -> str:
        return next((each for each in self._options.templates if matches(each, topic)), "")

    def settled(self, event: Released | InboundReplaced, _at: Position, _record: Record) -> None:
        """End the publishing of messages at QoS 2: they take effect, or never will."""
        for ref in from_runs(event.refs):
            trace = self._traces.get(ref)
            if trace is not None and not trace.effective:
                self._end_publish(trace, "" if isinstance(event, Released) else "replaced")

    def _end_publish(self, trace: _Trace, error: str = "", *, unfinished: bool = False) -> None:
        trace.effective = True
        self._touched[trace] = None
        if not trace.own:
            return
        if not (error or unfinished):
            trace.events.append(span_event("durable", self._stored_ns))
        about: dict[str, bool | int | str] = {
            "messaging.client.id": trace.client,
            "foldmq.qos": trace.qos,
            "foldmq.retain": trace.retain,
        }
        times = (trace.since_ms, self._stored_ns)
        self._emit(trace, "publish", trace.ids, times, about, trace.events, error, unfinished)

    # Deliveries.

    def delivered(self, event: Delivered, at: Position, _record: Record) -> None:
        """Note that messages were sent to a session."""
        refs, pids = from_runs(event.refs), from_runs(event.pids)
        for ref, pid in zip(refs, pids, strict=True):
            former = self._found(event.session, pid)
            if former is not None:
                self._end_delivery(former, unfinished=True)
            delivery = self._delivery(event, ref, at, pid)
            if delivery is not None:
                delivery.qos = event.qos
                delivery.add("sent", self._time_ms)

    def queued(self, event: Queued, at: Position, _record: Record) -> None:
        """Note that messages wait for a session."""
        for ref in from_runs(event.refs):
            delivery = self._delivery(event, ref, at)
            if delivery is not None:
                delivery.qos = event.qos
                delivery.add("queued", self._time_ms)

    def assigned(self, event: Assigned, at: Position, _record: Record) -> None:
        """Note the member of a shared subscription that gets messages."""
        for ref in from_runs(event.refs):
            delivery = self._delivery(event, ref, at)
            if delivery is not None:
                self._move(delivery, event.member, (ref, delivery.group))
                self._assigned.append((delivery, len(delivery.events)))

    def redelivered(self, event: Redelivered, _at: Position, _record: Record) -> None:
        """Note that packets were sent again."""
        for delivery in self._sent(event):
            delivery.add("pubrel_repeated" if delivery.received else "redelivered", self._time_ms)
            if self._options.redelivered and not delivery.received:
                self._demand(delivery.trace)

    def received(self, event: Received, _at: Position, _record: Record) -> None:
        """Note that a session has messages at QoS 2."""
        for delivery in self._sent(event):
            delivery.received = True
            delivery.add("received", self._time_ms)

    def answered(self, event: Acked | Refused | Completed, _at: Position, _record: Record) -> None:
        """End deliveries that were acknowledged or refused."""
        reasons = dict(zip(from_runs(event.pids), from_runs(event.reasons), strict=False))
        for delivery in self._sent(event):
            reason = reasons.get(delivery.key, 0)  # type: ignore[arg-type]  # a packet identifier
            refused = reason >= _REFUSED and not isinstance(event, Completed)
            self._end_delivery(delivery, f"0x{reason:02x}" if refused else "")

    def returned(self, event: Returned, _at: Position, _record: Record) -> None:
        """End deliveries of messages that go to another member of a shared subscription."""
        for delivery in self._sent(event):
            self._end_delivery(delivery, "returned")

    def dropped(self, event: Expired | MessageDropped, at: Position, _record: Record) -> None:
        """End deliveries that will not take place."""
        reason = event.reason if isinstance(event, MessageDropped) else "expired"
        for ref in from_runs(event.refs):
            delivery = self._delivery(event, ref, at)
            if delivery is not None:
                self._end_delivery(delivery, reason)

    def session_over(
        self, event: SessionOpened | SessionExpired, _at: Position, _record: Record
    ) -> None:
        """End the deliveries of a session that lost its state."""
        if isinstance(event, SessionExpired) or not event.resumed:
            for delivery in list(self._sessions.get(event.session, {}).values()):
                self._end_delivery(delivery, "session_ended")

    def _delivery(
        self,
        event: Delivered | Queued | Assigned | Expired | MessageDropped,
        ref: Position,
        at: Position,
        pid: int | None = None,
    ) -> _Delivery | None:
        """Return the delivery of a message to a session, at its place; None: it is not traced."""
        trace = self._traces.get(ref)
        if trace is None:
            return None
        subscription = event.session if event.session.startswith(_SHARE) else ""
        if not isinstance(event, Assigned):
            subscription = subscription or event.filter
        group = ""
        if subscription.startswith(_SHARE):
            group, _, subscription = subscription[len(_SHARE) :].partition("/")
        delivery = self._found(event.session, (ref, group))
        if delivery is None:
            delivery = _Delivery(trace, at, self._time_ms, group=group)
            trace.open[delivery] = None
            self._count += 1
        delivery.filter = subscription
        self._move(delivery, event.session, (ref, group) if pid is None else pid)
        return delivery

    def _found(self, session: str, key: _Key) -> _Delivery | None:
        places = self._sessions.get(session)
        return places.get(key) if places is not None else None

    def _sent(
        self, event: Redelivered | Received | Acked | Refused | Completed | Returned
    ) -> Iterator[_Delivery]:
        """Yield the deliveries with the packet identifiers of an event that are traced."""
        if event.session in self._sessions:
            for pid in from_runs(event.pids):
                delivery = self._found(event.session, pid)
                if delivery is not None:
                    yield delivery

    def _move(self, delivery: _Delivery, session: str, key: _Key) -> None:
        self._remove(delivery)
        delivery.session, delivery.key = session, key
        self._sessions.setdefault(session, {})[key] = delivery

    def _remove(self, delivery: _Delivery) -> None:
        places = self._sessions.get(delivery.session)
        if places is not None and places.get(delivery.key) is delivery:
            del places[delivery.key]
            if not places:
                del self._sessions[delivery.session]

    def _end_delivery(
        self, delivery: _Delivery, error: str = "", *, unfinished: bool = False
    ) -> None:
        """Export a delivery that is over."""
        trace, options = delivery.trace, self._options
        self._remove(delivery)
        del trace.open[delivery]
        self._touched[trace] = None
        self._count -= 1
        about: dict[str, bool | int | str] = {
            "messaging.client.id": delivery.session,
            "messaging.destination.subscription.name": delivery.filter,
            "foldmq.qos": delivery.qos,
        }
        if delivery.group:
            about["messaging.consumer.group.name"] = delivery.group
        place = f"{self._log}/{delivery.at}/{trace.ref}"
        span_id = hashlib.sha256(place.encode()).hexdigest()[:16]
        ids = (trace.ids[0], span_id, trace.ids[1])
        times = (delivery.since_ms, self._time_ms * _MS)
        self._emit(trace, "deliver", ids, times, about, delivery.events, error, unfinished)
        slow = options.slow_ms
        if slow is not None and self._time_ms - delivery.since_ms >= slow:
            self._demand(trace)

    # What is open.

    def _end_turn(self) -> None:
        for delivery, before in self._assigned:
            # A member with QoS 0: no event says that it was sent.
            if delivery in delivery.trace.open and len(delivery.events) == before:
                self._end_delivery(delivery)
        self._assigned.clear()
        for trace in self._touched:
            if trace.effective and not trace.open:
                self._forget(trace)
        self._touched.clear()
        while self._traces and len(self._traces) + self._count > _MOST_OPEN:
            self._give_up(next(iter(self._traces.values())))

    def _end_old(self, time_ms: int) -> None:
        """End the traces that are too old at a time of the log, whenever this is called."""
        while self._traces:
            oldest = next(iter(self._traces.values()))
            if time_ms - oldest.since_ms < _OPEN_MS:
                return
            self._time_ms = oldest.since_ms + _OPEN_MS
            self._stored_ns = self._time_ms * _MS
            self._give_up(oldest)

    def _give_up(self, trace: _Trace) -> None:
        """Export what is open of a message as unfinished."""
        if not trace.effective:
            self._end_publish(trace, unfinished=True)
        for delivery in list(trace.open):
            self._end_delivery(delivery, unfinished=True)
        self._forget(trace)
        self._touched.pop(trace, None)

    def _forget(self, trace: _Trace) -> None:
        self._count -= len(trace.kept)
        del self._traces[trace.ref]

    # Spans.

    def _emit(
        self,
        trace: _Trace,
        operation: str,
        ids: tuple[str, str, str],
        times: tuple[int, int],
        about: Mapping[str, bool | int | str],
        events: list[bytes],
        error: str,
        unfinished: bool,
    ) -> None:
        """Export a span, or keep it; ``times`` are milliseconds at first, then nanoseconds."""
        attributes = [attribute_json("messaging.operation.name", operation), trace.about]
        attributes += [attribute_json(key, value) for key, value in about.items()]
        if unfinished:
            attributes.append(attribute_json("foldmq.unfinished", True))
        name = f"{operation} {trace.template}" if trace.template else operation
        kind = SERVER if operation == "publish" else PRODUCER
        between, joined = (times[0] * _MS, times[1]), b",".join(attributes)
        data = span_json(name, kind, ids, between, joined, error, events)
        if trace.state:
            data += b',"traceState":' + orjson.dumps(trace.state)
        if trace.ids[2] and operation != "publish":
            # The context in which the message was created.
            data += b',"links":[{"traceId":"%b","spanId":"%b"}]' % (
                trace.ids[0].encode(),
                trace.ids[2].encode(),
            )
        data += b"}"
        if trace.sampled:
            self._export(trace, data)
        else:
            trace.kept.append(data)
            self._count += 1
            if error and self._options.dropped:
                self._demand(trace)

    def _demand(self, trace: _Trace) -> None:
        """Export a message of which something is wrong."""
        trace.sampled = True
        for data in trace.kept:
            self._export(trace, data)
        self._count -= len(trace.kept)
        trace.kept.clear()

    def _export(self, trace: _Trace, data: bytes) -> None:
        # The cursor before this turn: all its spans must be stored before it moves.
        self._out.append(
            OutboxMessage(
                *(self._floor, trace.ref, 0, self._time_ms, trace.topic, data),
                *(trace.qos, trace.retain, trace.client),
            )
        )


_FOLDS: Final[Mapping[type, Callable[[SpanFold, Any, Position, Record], None]]] = {
    MessagePublished: SpanFold.published,
    Released: SpanFold.settled,
    InboundReplaced: SpanFold.settled,
    Delivered: SpanFold.delivered,
    Queued: SpanFold.queued,
    Assigned: SpanFold.assigned,
    Redelivered: SpanFold.redelivered,
    Received: SpanFold.received,
    Acked: SpanFold.answered,
    Refused: SpanFold.answered,
    Completed: SpanFold.answered,
    Returned: SpanFold.returned,
    Expired: SpanFold.dropped,
    MessageDropped: SpanFold.dropped,
    SessionOpened: SpanFold.session_over,
    SessionExpired: SpanFold.session_over,
}
_NAMES: Final = frozenset(kind.__name__ for kind in _FOLDS)
