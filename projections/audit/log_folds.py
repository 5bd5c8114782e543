"""The folds of an audit besides that of retained messages.

A fold gets rows with some columns of facts, sorted by its key and then in the order of the log, and
yields rows of ``RESULT_COLUMNS`` or other columns that it names.
"""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final

import orjson

from eventstore.display import name as shown
from eventstore.format.events import NATS_SESSION, Assigned, Delivered, Queued
from eventstore.format.positions import INDEX_BITS, Position, format_position, from_runs
from projections.audit.audit_results import AuditPlan, AuditResults, Row
from projections.audit.event_codec import unpack_events
from projections.audit.expected_packs import ExpectedPacks, SpanRow
from projections.audit.facts import (
    CARRIED,
    DUE,
    EFFECT,
    EVENTS,
    RELEASED,
    RETAINED,
    SENT,
    SET,
    WILL,
)
from projections.audit.rule_table import Rule
from projections.audit.session_checker import SessionChecker, SessionMark, session_marks
from projections.audit.shared_subscription_audit import SharedAudit
from projections.audit.shared_subscription_steps import SharedStep
from projections.audit.subscription_spans import SubscriptionSpans

SKEW_MS: Final = 1000
"""Maximum difference between the clocks of two nodes in milliseconds."""
_PACKED: Final = 16_384
"""Number of expectations that are collected before they are packed."""
_AT_ONCE: Final = 1024
"""Number of messages that are compared with subscriptions at once."""


# ------------------------------------------------------------------------------- sessions

SESSION_COLUMNS: Final = (
    "node", "session", "kind", "at", "ref", "topic", "digest", "before", "data", "payload",
)  # fmt: skip


def fold_sessions(plan: AuditPlan, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the results; ``rows`` are sorted by node, session, position and kind."""
    results = AuditResults(plan.since, connections=plan.connections)
    marks: dict[str, list[SessionMark]] = {}
    for (node, session), group in groupby(rows, key=itemgetter(0, 1)):
        log = plan.logs.get(node)
        if log is None:
            continue  # a claim about another node
        if node not in marks:
            complete = plan.complete.get(node, ())
            marks[node] = session_marks(log, complete, recovery=bool(plan.since))
        checker = SessionChecker(log, marks[node], session, results, plan.places.get(node))
        for row in group:
            checker.take(*row[2:])
            yield from results.full()
        checker.finish()
    yield from results.rest()


# ------------------------------------------------------------------------------- messages

MESSAGE_COLUMNS: Final = (
    "node", "ref", "at", "kind", "session", "time_ms", "number", "check", "topic", "digest",
    "size", "expires",
)  # fmt: skip
RELEASED_COLUMNS: Final = (
    "kind", "node", "session", "at", "ref", "time_ms", "number", "topic", "digest", "size",
    "expires",
)  # fmt: skip


def fold_released(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the effects of messages whose release the scan did not see with their publication.

    ``rows`` are facts of the kinds RELEASED, SENT and CARRIED by node and message. The results have
    ``RELEASED_COLUMNS``.
    """
    for (node, ref), group in groupby(rows, key=itemgetter(0, 1)):
        released: list[tuple[Position, str, int, int]] = []
        contents: list[tuple[Any, ...]] = []
        for _, _, at, kind, session, time_ms, number, _, topic, digest, size, expires in group:
            if kind == RELEASED:
                released.append((at, session, time_ms, number))
            else:
                contents.append((number, digest, topic, size, expires))
        if not (released and contents):
            continue
        # A repetition after a cut may contain less.
        retained, digest, topic, size, expires = max(contents)
        for at, session, time_ms, number in released:
            yield EFFECT, node, session, at, ref, time_ms, number, topic, None, size, expires
            if retained == 1:
                turn = ((at >> INDEX_BITS) - (number >> 2)) << INDEX_BITS
                kind = SET | 2 << 2
                yield RETAINED, node, session, at, ref, turn, kind, topic, digest, None, expires


def fold_repeated(plan: AuditPlan, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield repeated messages that differ from their publication or did not exist.

    ``rows`` are facts of the kinds EFFECT, SENT, WILL, RETAINED and CARRIED by node and message.
    """
    results = AuditResults(plan.since)
    for (node, ref), group in groupby(rows, key=itemgetter(0, 1)):
        repeated: list[tuple[Position, tuple[Any, ...]]] = []
        published: list[tuple[Any, ...]] = []
        retained = False
        for _, _, at, kind, session, _, _, check, topic, _, _, expires in group:
            if kind == CARRIED:  # a checkpoint may omit the publisher
                repeated.append((at, (topic, check, expires, session or None)))
            elif kind == RETAINED:
                retained = True
            else:
                published.append((topic, check, expires, session))
        for at, content in repeated:
            what = f"repeats message {format_position(ref)}"
            if any(_differs(content, other) for other in published):
                what += " with different content"
            elif not published and not retained and ref >= plan.logs[node].complete:
                what += ", which did not exist"
            else:
                continue
            what += f": topic {shown(content[0])}"
            results.violation(Rule.CHECKPOINT, node, None, at, what)
        yield from results.full()
    yield from results.rest()


REPEATED_KINDS: Final = (EFFECT, SENT, WILL, RETAINED)
"""The kinds of facts with which repeated messages are compared."""


def _differs(content: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Return whether values that are known of both differ."""
    return any(
        mine is not None and its is not None and mine != its
        for mine, its in zip(content, other, strict=True)
    )


# ------------------------------------------------------------------------------------ cuts

CUT_COLUMNS: Final = ("node", "at", "kind", "session", "ref", "data")


def fold_cuts(plan: AuditPlan, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield messages that are needed behind a cut and were not repeated.

    ``rows`` are facts of the kinds CARRIED and NEEDED by node and position.
    """
    results = AuditResults(plan.since)
    for node, group in groupby(rows, key=itemgetter(0)):
        firsts = {cut.at: cut.first for cut in plan.logs[node].cuts}
        carried: list[tuple[Position, Position]] = []
        kept: set[Position] = set()
        passed: Position = -1
        for _, at, kind, session, ref, data in group:
            if kind == CARRIED:
                carried.append((at, ref))
                continue
            if at != passed:
                passed = at
                kept = {ref for place, ref in carried if firsts[at] <= place < at}
                first_kept = min((first for cut, first in firsts.items() if cut > at), default=at)
                carried = [place for place in carried if place[0] >= first_kept]
            for ref in orjson.loads(data):
                if ref not in kept:
                    what = f"cuts off message {format_position(ref)}, which is still needed"
                    results.violation(Rule.CHECKPOINT, node, session, at, what)
            yield from results.full()
    yield from results.rest()


# ---------------------------------------------------------------------------------- owners

OWNER_COLUMNS: Final = ("session", "time_ms", "node", "at", "expires")


def fold_owners(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield connections of a session to a node while it was connected to another one.

    ``rows`` are facts of the kind CONNECTED by session and time.
    """
    results = AuditResults()
    for session, group in groupby(rows, key=itemgetter(0)):
        if session == NATS_SESSION:
            continue  # every node has a session for messages published by NATS clients
        # Connections to one node do not overlap: only the earlier one that ends last counts.
        newest: tuple[int, str, Position] | None = None
        for _, begins_ms, node, at, ends_ms in group:
            if newest is not None and newest[1] != node and newest[0] > begins_ms + SKEW_MS:
                since = format_position(newest[2])
                what = f"connected while it had a connection to node {newest[1]}, since {since}"
                results.violation(Rule.OWNERSHIP, node, session, at, what)
            mine = (ends_ms, node, at)
            newest = mine if newest is None else max(newest, mine)
        yield from results.full()
    yield from results.rest()


# ------------------------------------------------------------------- shared subscriptions

SHARE_COLUMNS: Final = ("node", "session", "at", "data")


def fold_shares(plan: AuditPlan, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the results of facts of the kind SHARED by node, shared subscription and position."""
    results = AuditResults(plan.since)
    for (node, share), group in groupby(rows, key=itemgetter(0, 1)):
        log = plan.logs[node]
        audit = SharedAudit(share, log.whole, log.unsure)
        for _, _, _, data in group:
            *fields, streams = orjson.loads(data)
            audit.take(SharedStep._make((share, *fields, [tuple(stream) for stream in streams])))
        audit.finish()
        for violation in audit.violations:
            results.report(violation._replace(ref=None, session=share, node=node))
        yield from results.full()
    yield from results.rest()


# -------------------------------------------------------------------- messages due to sessions

SPAN_COLUMNS: Final = ("node", "session", "at", "data", "number")
DUE_COLUMNS: Final = ("kind", "node", "session", "at", "data")


def spans_of(plan: AuditPlan, rows: Iterable[Row]) -> Iterator[SpanRow]:
    """Yield the subscriptions at QoS 1 or 2; ``rows`` are facts of the kind SPANS.

    Open subscriptions extend to the end of the log.
    """
    events = sorted(
        (node, session, at, data)
        for node, session, at, data, snapshot in rows
        if not snapshot or at < plan.logs[node].whole
    )
    for (node, session), group in groupby(events, key=itemgetter(0, 1)):
        log = plan.logs[node]
        held = SubscriptionSpans(session, log.whole)
        for _, _, _, data in group:
            for at, time_ms, part, event in unpack_events(session, data):
                held.take(event, at, time_ms, part)
        for topic_filter, qos, since, until, begins, ends, no_local in held.finish():
            if not qos:
                continue
            if until is None or ends is None:
                until = ends = log.end
            yield node, session, topic_filter, qos, since, until, begins, ends, no_local


def due_messages(spans: Sequence[SpanRow], rows: Iterable[Row]) -> Iterator[Row]:
    """Yield what sessions must or may get; ``rows`` have ``EFFECT_COLUMNS``, in any order.

    The results have ``DUE_COLUMNS``.
    """
    packs = ExpectedPacks(spans)
    effects = iter(rows)
    while chunk := list(islice(effects, _AT_ONCE)):
        packs.add(chunk)
        if packs.count >= _PACKED:
            yield from ((DUE, *pack) for pack in packs.take())
    yield from ((DUE, *pack) for pack in packs.take())


# ------------------------------------------------------------------- unexpected deliveries

UNEXPECTED_COLUMNS: Final = ("kind", "node", "session", "at", "ref", "data")
EVIDENCE_COLUMNS: Final = ("kind", "node", "session", "at", "ref")
EVIDENCE_KINDS: Final = (EVENTS, EFFECT, RELEASED)


def evidence_of(
    deliveries: AbstractSet[tuple[str, str, Position]], rows: Iterable[Row]
) -> Iterator[Row]:
    """Yield where messages took effect and where sessions got them.

    ``deliveries`` are nodes, sessions and messages; ``rows`` are facts of ``EVIDENCE_KINDS``. The
    results have ``EVIDENCE_COLUMNS``.
    """
    messages = {(node, ref) for node, _, ref in deliveries}
    sessions = {(node, session) for node, session, _ in deliveries}
    for kind, node, session, at, ref, data in rows:
        if kind != EVENTS:
            if (node, ref) in messages:
                yield kind, node, session, at, ref
        elif (node, session) in sessions:
            for first, _, _, event in unpack_events(session, data):
                if isinstance(event, (Assigned, Delivered, Queued)):
                    for place, message in enumerate(from_runs(event.refs), first):
                        if (node, session, message) in deliveries:
                            yield kind, node, session, place, message


def classify(
    deliveries: Sequence[tuple[str, str, Position, Position]], evidence: Iterable[Row]
) -> list[tuple[str, str]]:
    """Return (rule, what) for unexpected deliveries: node, session, message, position."""
    effects: dict[tuple[str, Position], Position] = {}
    firsts: dict[tuple[str, str, Position], Position] = {}
    for kind, node, session, at, ref in evidence:
        places: dict[Any, Position] = firsts if kind == EVENTS else effects
        key = (node, session, ref) if kind == EVENTS else (node, ref)
        places[key] = min(at, places.get(key, at))
    return [
        classify_copy(ref, at, firsts[node, session, ref], effects.get((node, ref)))
        for node, session, ref, at in deliveries
    ]


def classify_copy(
    ref: Position, at: Position, first: Position, effect: Position | None
) -> tuple[str, str]:
    """Return (rule, what) for an unexpected delivery.

    ``first`` is the position of the message's first delivery to the session, ``effect`` that where
    it took effect; None: there is none.
    """
    message = f"message {format_position(ref)}"
    if effect is None:
        what = f"{message} was delivered, but no message of QoS 1 or 2 took effect under that"
        return Rule.NO_SUBSCRIPTION, f"{what} position"
    if at < effect:
        what = f"{message} was delivered before it took effect, at {format_position(effect)}"
        return Rule.ORDER, what
    if first < at:
        before = format_position(first)
        return Rule.DELIVERED_TWICE, f"{message} was delivered again, after it was at {before}"
    return (
        Rule.NO_SUBSCRIPTION,
        f"{message} was delivered, but matches no subscription of QoS 1 or 2",
    )
