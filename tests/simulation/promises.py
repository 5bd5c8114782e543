"""The promises of MQTT, checked over a whole log, without Spark: who had to get what is found here
by looking at every message and every subscription."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import orjson

from eventstore.events import (
    CheckpointBegun,
    CheckpointCompleted,
    MessagePublished,
    MessagesCarried,
    Released,
    RetainedSnapshot,
)
from eventstore.positions import INDEX_BITS, from_runs, position
from eventstore.records import payload_bounds
from projections.digests import digest, session_digest
from projections.promises import SessionAudit, Violation
from projections.snapshot import encode
from projections.spans import TYPES, Span, SubscriptionSpans
from projections.turns import Turns
from protocol.topics import matches
from simulation.fold import fold

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eventstore.events import Event
    from eventstore.positions import Position
    from eventstore.records import Record


class _Told(NamedTuple):
    """An event, as the log has it."""

    at: Position
    time_ms: int
    event: Event
    payload: bytes
    """What it has of the payload area of its record."""
    part: int
    """Part of its record in its turn."""


def _events(records: Iterable[Record]) -> list[_Told]:
    turns = Turns()
    found = []
    for record in records:
        _, turn = turns.take(record)
        for part in turn:
            for index, event in part.events():
                payload = b""
                if isinstance(event, MessagePublished | RetainedSnapshot):
                    bounds = payload_bounds(event)
                    payload = bytes(part.payload[bounds[0] : bounds[-1]])
                at = position(part.sequence, index)
                found.append(_Told(at, part.time_ms, event, payload, part.part))
    return found


def _whole(events: list[_Told]) -> Position:
    """Return from where on the state is known."""
    if events and events[0][0] >> INDEX_BITS > 1:
        begun = {at for at, _, event, _, _ in events if isinstance(event, CheckpointBegun)}
        for at, _, event, _, _ in events:
            if isinstance(event, CheckpointCompleted) and event.begun in begun:
                return at
    return 0


def _topics(event: MessagePublished | MessagesCarried) -> list[str]:
    return [event.topics[which] for which in event.which or [0] * event.count]


def _effects(
    events: list[_Told],
) -> list[tuple[Position, Position, str, int]]:
    """Return (where it took effect, where it was published, topic, time) of all QoS 1 and 2."""
    found = []
    waiting: dict[Position, str] = {}
    for at, time_ms, event, _, _ in events:
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


def _digest(audit: SessionAudit) -> str | None:
    state, pending = audit.fold.state, audit.fold.pending.values()
    return None if state is None else digest(map(orjson.dumps, encode(state)), pending)


def violations(records: Sequence[Record]) -> dict[str, list[Violation]]:
    """Return what is wrong in a log, by client identifier.

    Each session, folded alone, must be what it is in the fold of the whole log.
    """
    events = _events(records)
    node = fold(list(records))
    whole = _whole(events)
    begin = events[0].at if whole else 0
    sessions: dict[str, list[_Told]] = defaultdict(list)
    for told in events:
        name = getattr(told.event, "session", None)
        if name is not None:
            sessions[name].append(told)
    effects = _effects(events)
    wrong: dict[str, list[Violation]] = {}
    for name, own in sessions.items():
        spans = SubscriptionSpans(name, whole)
        for at, time_ms, event, _, _ in own:
            if isinstance(event, TYPES):
                spans.take(event, at, time_ms)
        held = [span for span in spans.finish() if span.qos]
        owed = [one for one in effects if _covered(one, held)]
        audit = SessionAudit(name, whole, begin)
        for told in own:
            while owed and owed[0][0] <= told.at:
                audit.expect(*owed.pop(0))
            audit.take(told.event, told.at, told.time_ms, told.payload, told.part)
        for one in owed:
            audit.expect(*one)
        audit.finish()
        assert _digest(audit) == session_digest(node, name), name
        if audit.violations:
            wrong[name] = audit.violations
    return wrong


def _covered(effect: tuple[Position, Position, str, int], spans: list[Span]) -> bool:
    at, _, topic, _ = effect
    return any(
        span.since < at and (span.until is None or at < span.until) and matches(span.filter, topic)
        for span in spans
    )
