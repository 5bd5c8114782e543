"""Checks the promises of MQTT over a whole log, comparing messages with subscriptions."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, NamedTuple

import orjson

from eventstore.format.events import MessagePublished, Released, WillArmed
from eventstore.format.node_events import (
    CheckpointBegun,
    CheckpointCompleted,
    MessagesCarried,
    RetainedSnapshot,
)
from eventstore.format.positions import INDEX_BITS, from_runs, position
from eventstore.format.records import payload_bounds
from eventstore.format.turn_parts import TurnAssembler
from eventstore.log.message_store import properties_of
from projections.audit.expected_messages import packed_size
from projections.audit.log_outline import OutlineBuilder
from projections.audit.rule_table import Violation
from projections.audit.session_audit import SessionAudit
from projections.audit.shared_subscription_audit import SharedAudit
from projections.audit.shared_subscription_steps import SharedStep
from projections.audit.subscription_spans import (
    SUBSCRIPTION_EVENTS,
    SubscriptionSpan,
    SubscriptionSpans,
)
from projections.audit.will_rules import with_content
from projections.state.digests import digest, session_digest
from projections.state.snapshot import encode_session
from protocol.mqtt.topics import matches
from simulation.fold import fold

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eventstore.format.event_parsing import Event
    from eventstore.format.positions import Position
    from eventstore.format.records import Record


WITH_MESSAGES = (MessagePublished, MessagesCarried, RetainedSnapshot)


class _Told(NamedTuple):
    """An event, as the log has it."""

    at: Position
    time_ms: int
    event: Event
    payload: bytes
    """What it has of the payload area of its record."""
    part: int
    """Part of its record in its turn."""
    sizes: list[int]
    expires: list[int]
    """Of its messages."""


def _events(records: Iterable[Record]) -> list[_Told]:
    turns = TurnAssembler()
    found = []
    for record in records:
        _, turn = turns.take(record)
        for part in turn:
            for index, event in part.events():
                payload, sizes, expires = b"", [], []
                if isinstance(event, WITH_MESSAGES):
                    bounds = payload_bounds(event)
                    sizes = [end - begin for begin, end in pairwise(bounds)]
                    blocks, ends = properties_of(part, event)
                    origin = event.session if isinstance(event, MessagePublished) else ""
                    sizes = [
                        packed_size(size, len(block), origin)
                        for size, block in zip_longest(sizes, blocks, fillvalue=b"")
                    ]
                    expires = [*ends] or [0] * event.count
                    payload = bytes(part.payload[bounds[0] - sum(event.blocks) : bounds[-1]])
                if isinstance(event, WillArmed) or (
                    isinstance(event, MessagePublished) and event.will
                ):
                    event = with_content(event, part.payload)
                at = position(part.sequence, index)
                found.append(_Told(at, part.steady_ms, event, payload, part.part, sizes, expires))
    return found


def _whole(events: list[_Told]) -> Position:
    """Return from where on the state is known."""
    if events and events[0][0] >> INDEX_BITS > 1:
        begun = {one.at for one in events if isinstance(one.event, CheckpointBegun)}
        for at, _, event, *_ in events:
            if isinstance(event, CheckpointCompleted) and event.begun in begun:
                return at
    return 0


def _topics(event: MessagePublished | MessagesCarried) -> list[str]:
    return [event.topics[which] for which in event.which or [0] * event.count]


class _Effect(NamedTuple):
    """A message of QoS 1 or 2 that took effect."""

    at: Position
    turn: Position
    """Where the turn begins in which it did."""
    ref: Position
    topic: str
    time_ms: int
    origin: str
    """Its publisher."""
    qos: int
    size: int
    expires: int


def _turn(at: Position, part: int) -> Position:
    return position((at >> INDEX_BITS) - part, 0)


def _effects(events: list[_Told]) -> list[_Effect]:
    """Return all messages of QoS 1 and 2 where they took effect."""
    found = []
    waiting: dict[Position, tuple[str, int, int]] = {}
    for at, time_ms, event, _, part, sizes, expires in events:
        turn = _turn(at, part)
        if isinstance(event, MessagePublished) and event.qos:
            columns = zip(_topics(event), sizes, expires, strict=True)
            for ref, (topic, *more) in enumerate(columns, at):
                if event.qos == 2 and not event.will:
                    waiting[ref] = topic, *more
                else:
                    one = _Effect(ref, turn, ref, topic, time_ms, event.session, event.qos, *more)
                    found.append(one)
        elif isinstance(event, Released):
            for place, ref in enumerate(from_runs(event.refs), at):
                if ref in waiting:
                    topic, *more = waiting[ref]
                    one = _Effect(place, turn, ref, topic, time_ms, event.session, 2, *more)
                    found.append(one)
        elif isinstance(event, MessagesCarried):
            columns = zip(_topics(event), sizes, expires, strict=True)
            waiting.update(zip(from_runs(event.refs), columns, strict=True))
        elif isinstance(event, RetainedSnapshot) and event.session is not None:
            columns = zip(event.topics, sizes, expires, strict=True)
            waiting.update(zip(from_runs(event.refs), columns, strict=True))
    return found


def _digest(audit: SessionAudit) -> str | None:
    state, pending = audit.fold.state, audit.fold.pending.values()
    return None if state is None else digest(map(orjson.dumps, encode_session(state)), pending)


def violations(records: Sequence[Record]) -> dict[str, list[Violation]]:
    """Return what is wrong in a log, by client identifier.

    Each session, folded alone, must be what it is in the fold of the whole log.
    """
    events = _events(records)
    node = fold(list(records))
    whole = _whole(events)
    begin = events[0].at if whole else 0
    outlines, before_ms = OutlineBuilder(), 0
    for told in events:
        outlines.take(told.event, told.at, told.time_ms, before_ms)
        before_ms = told.time_ms
    outline = outlines.outline(before_ms)
    sessions: dict[str, list[_Told]] = defaultdict(list)
    for told in events:
        name = getattr(told.event, "session", None)
        if name is not None:
            sessions[name].append(told)
    effects = _effects(events)
    wrong: dict[str, list[Violation]] = {}
    shared: list[SharedStep] = []
    for name, own in sessions.items():
        spans = SubscriptionSpans(name, whole)
        for told in own:
            if isinstance(told.event, SUBSCRIPTION_EVENTS):
                spans.take(told.event, told.at, told.time_ms, told.part)
        held = [span for span in spans.finish() if span.qos]
        owed = [(one, some) for one in effects if (some := _covering(one, held))]
        owed.reverse()
        audit = SessionAudit(name, whole, begin, shared=shared.append, outline=outline)
        for told in own:
            while owed and owed[-1][0].at <= told.at:
                _expect(audit, *owed.pop())
            audit.take(told.event, told.at, told.time_ms, told.payload, told.part)
        while owed:
            _expect(audit, *owed.pop())
        audit.finish()
        assert _digest(audit) == session_digest(node, name), name
        if audit.violations:
            wrong[name] = audit.violations
    for name, found in shared_violations(shared, whole).items():
        wrong.setdefault(name, []).extend(found)
    return wrong


def shared_violations(
    shared: Iterable[SharedStep], whole: Position = 0
) -> dict[str, list[Violation]]:
    """Return what is wrong with shared subscriptions, by their identifiers."""
    audits: dict[str, SharedAudit] = {}
    for step in sorted(shared, key=lambda one: one.at):
        if step.group not in audits:
            audits[step.group] = SharedAudit(step.group, whole)
        audits[step.group].take(step)
    for audit in audits.values():
        audit.finish()
    return {name: audit.violations for name, audit in audits.items() if audit.violations}


def _covering(effect: _Effect, spans: list[SubscriptionSpan]) -> list[SubscriptionSpan]:
    """Return the subscriptions that match and that there were in some part of its turn."""
    return [
        span
        for span in spans
        if span.begins <= effect.turn
        and (span.ends is None or effect.turn <= span.ends)
        and matches(span.filter, effect.topic)
    ]


def _expect(audit: SessionAudit, effect: _Effect, spans: list[SubscriptionSpan]) -> None:
    for span in spans:
        audit.expect(
            effect.at,
            effect.ref,
            effect.topic,
            effect.time_ms,
            origin=effect.origin,
            qos=effect.qos,
            granted=span.qos,
            owed=span.since < effect.at and (span.ends is None or effect.turn < span.ends),
            size=effect.size,
            expires=effect.expires,
        )
