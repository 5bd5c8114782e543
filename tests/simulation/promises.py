"""The promises of MQTT, checked over a whole log, without Spark: who had to get what is found here
by looking at every message and every subscription."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from eventstore.events import (
    CheckpointBegun,
    CheckpointCompleted,
    MessagePublished,
    MessagesCarried,
    Released,
    RetainedSnapshot,
)
from eventstore.positions import INDEX_BITS, from_runs, position
from projections.promises import SessionAudit, Violation
from projections.spans import TYPES, SubscriptionSpans
from projections.turns import Turns
from protocol.topics import matches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eventstore.events import Event
    from eventstore.positions import Position
    from eventstore.records import Record


def _events(records: Iterable[Record], parts: dict[int, int]) -> list[tuple[Position, int, Event]]:
    turns = Turns()
    found = []
    for record in records:
        _, turn = turns.take(record)
        for part in turn:
            base = position(part.sequence, 0)
            found += [(base + index, part.time_ms, event) for index, event in part.events()]
            parts[part.sequence] = part.part
    return found


def _whole(events: list[tuple[Position, int, Event]]) -> Position:
    """Return from where on the state is known."""
    if events and events[0][0] >> INDEX_BITS > 1:
        begun = {at for at, _, event in events if isinstance(event, CheckpointBegun)}
        for at, _, event in events:
            if isinstance(event, CheckpointCompleted) and event.begun in begun:
                return at
    return 0


def _topics(event: MessagePublished | MessagesCarried) -> list[str]:
    return [event.topics[which] for which in event.which or [0] * event.count]


def _effects(
    events: list[tuple[Position, int, Event]],
) -> list[tuple[Position, Position, str, int]]:
    """Return (where it took effect, where it was published, topic, time) of all QoS 1 and 2."""
    found = []
    waiting: dict[Position, str] = {}
    for at, time_ms, event in events:
        if isinstance(event, MessagePublished) and event.qos:
            for ref, topic in enumerate(_topics(event), at):
                if event.qos == 2 and not event.will:
                    waiting[ref] = topic
                else:
                    found.append((ref, ref, topic, time_ms))
        elif isinstance(event, Released):
            for number, ref in enumerate(from_runs(event.refs)):
                if ref in waiting:
                    found.append((at + number, ref, waiting[ref], time_ms))
        elif isinstance(event, MessagesCarried):
            waiting.update(zip(from_runs(event.refs), _topics(event), strict=True))
        elif isinstance(event, RetainedSnapshot) and event.session is not None:
            waiting.update(zip(from_runs(event.refs), event.topics, strict=True))
    return found


def violations(records: Iterable[Record]) -> dict[str, list[Violation]]:
    """Return what is wrong in a log, by client identifier."""
    parts: dict[int, int] = {}
    events = _events(records, parts)
    whole = _whole(events)
    sessions: dict[str, list[tuple[Position, int, Event]]] = defaultdict(list)
    for at, time_ms, event in events:
        name = getattr(event, "session", None)
        if name is not None:
            sessions[name].append((at, time_ms, event))
    effects = _effects(events)
    wrong: dict[str, list[Violation]] = {}
    for name, own in sessions.items():
        spans = SubscriptionSpans(name, whole)
        for at, time_ms, event in own:
            if isinstance(event, TYPES):
                spans.take(event, at, time_ms)
        told = [span for span in spans.finish() if span.qos]
        steps: list[tuple[Position, int, int, object]] = [
            (at, 1, time_ms, event) for at, time_ms, event in own
        ]
        for at, ref, topic, time_ms in effects:
            if any(
                span.since < at
                and (span.until is None or at < span.until)
                and matches(span.filter, topic)
                for span in told
            ):
                steps.append((at, 0, time_ms, (ref, topic)))
        audit = SessionAudit(name, whole, events[0][0] if whole else 0)
        for at, kind, time_ms, what in sorted(steps, key=lambda step: step[:2]):
            if kind:
                audit.take(what, at, time_ms, None, parts[at >> INDEX_BITS])  # type: ignore[arg-type]
            else:
                audit.expect(at, *what, time_ms)  # type: ignore[misc]
        audit.finish()
        if audit.violations:
            wrong[name] = audit.violations
    return wrong
