"""The audit of one session, including the rules that need other data: claims, cuts, other nodes.

For each session the facts contain, in order, its packed events, its expected messages, and the
claims about it. Only one session and its state are in memory at a time.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import orjson

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Delivered,
    MessageDropped,
    Queued,
    ReplayOpened,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    SessionTakenOver,
    Subscribed,
    Unsubscribed,
    WillFired,
)
from eventstore.format.node_events import SessionSnapshot
from eventstore.format.positions import INDEX_BITS, Position, format_position, from_runs
from projections.audit.audit_outcome import BROKER, PROJECTIONS
from projections.audit.audit_results import AuditResults
from projections.audit.event_codec import Packed, unpack_events
from projections.audit.expected_packs import REQUIRED
from projections.audit.facts import CONNECTED, DUE, EVENTS, OWED, READ, SHARED
from projections.audit.log_summary import BEYOND_ALL, LogSummary
from projections.audit.replay_audit import ReplayStep
from projections.audit.rule_table import LogPlace, Rule, Violation, has_home, wrong_home
from projections.audit.session_audit import SessionAudit
from projections.audit.shared_subscription_steps import ASSIGNED, SharedStep
from projections.state.digests import digest
from projections.state.session import SessionState
from projections.state.snapshot import encode_session, expand_runs, reference_runs

BEGUN, COMPLETED, CUT, ALL, START = "begun", "completed", "cut", "all", "start"
"""Kinds of marks: a checkpoint begins or is complete, the log is cut, claims are complete, the
broker started for the last time."""

_CHANGES: Final = frozenset({SessionOpened, SessionClosed, SessionTakenOver})
_OF_HOMES: Final = frozenset({SessionOpened, SessionSnapshot, Subscribed})
"""Events that create a session, or a shared subscription."""
_OF_WHOLE_TURNS: Final = frozenset(
    {
        Rule.UNDELIVERED, Rule.DROP, Rule.WILL, Rule.SESSION, Rule.OWNERSHIP, Rule.CHECKPOINT,
        Rule.REPLAY,
    }
)  # fmt: skip
"""Rules that cannot be audited in a turn whose rest is missing."""

_PACKETS: Final = ("inflight", "releasing", "inbound")
_place: Final = attrgetter("at")


class SessionMark(NamedTuple):
    """A position at which every session is checked."""

    at: Position
    """The session is checked before the event at this position."""
    kind: str
    value: Any
    """CUT: the first remaining position. ALL: the source of the claims."""


def session_marks(
    log: LogSummary, complete: Sequence[tuple[Position, str]], *, recovery: bool = False
) -> list[SessionMark]:
    """Return the marks of a log; ``complete`` are claims (bound, where) of the kind ``all``.

    ``recovery``: what the broker recovered at its last start is counted.
    """
    marks = [SessionMark(checkpoint.begun, BEGUN, None) for checkpoint in log.checkpoints]
    marks += [SessionMark(checkpoint.completed, COMPLETED, None) for checkpoint in log.checkpoints]
    marks += [SessionMark(cut.at, CUT, cut.first) for cut in log.cuts]
    marks += [SessionMark(bound, ALL, where) for bound, where in complete if bound <= log.end]
    marks += [SessionMark(log.start.at, START, None)] if recovery and log.start else []
    return sorted(
        (mark for mark in marks if log.whole <= mark.at < log.trusted), key=lambda m: m.at
    )


class SessionChecker:
    """Checks the rows of one session, in order."""

    def __init__(
        self,
        log: LogSummary,
        marks: Sequence[SessionMark],
        session: str,
        results: AuditResults,
        place: LogPlace | None = None,
    ) -> None:
        self._log = log
        self._session = session
        self._results = results
        self._counts = results.totals.counts
        self._audit = SessionAudit(
            session,
            log.whole,
            log.begin,
            self._found,
            self._shared,
            log.outline,
            self._replayed,
        )
        self._place = place if place is not None and has_home(session) else None
        """The place of the log among those of its broker; None: it is not checked, or no more."""
        if self._place is not None:
            self._counts[f"cases {Rule.HOME}"] += 1
        self._events: Sequence[Packed] = ()
        self._next = 0
        self._payload: bytes | None = None
        self._marks = marks
        self._mark = 0
        self._mark_at = marks[0].at if marks else BEYOND_ALL
        self._coming: list[list[int]] = []
        """Packed expectations, the next one last, see ``expected_packs.PackRow``."""
        self._coming_names: list[str] = []
        self._coming_at: Position = BEYOND_ALL
        """The position of the next one."""
        self._repeating = False
        """A checkpoint is in progress, and has not repeated the session yet."""
        self._existed: list[tuple[Position, str]] = []
        """Positions of complete claims at which the session existed, with their source."""
        self._claimed: set[str] = set()
        self._connection: tuple[Position, int] | None = None
        self._returning = self._fired = False
        """Whether it existed at the last start of the broker and its client did not come back yet;
        whether its will was published since."""
        self._owed: dict[Position, list[tuple[Position, str | None]]] = {}
        """Retained messages to be sent in this turn -> positions where their filters were granted,
        and the filters."""

    # Input.

    def take(
        self,
        kind: int,
        at: Position,
        ref: Position | None,
        topic: str | None,
        digest: str | None,
        before: str | None,
        data: bytes | None,
        payload: bytes | None,
    ) -> None:
        """Take the next fact of the session."""
        if kind == EVENTS:
            self.happened(data or b"", payload)
        elif kind == DUE:
            self.expected_several(at, data or b"")
        elif kind == OWED:
            self.required_replay(at, ref or 0, topic)
        else:
            self.claimed(at, before or "", digest)

    def happened(self, data: bytes, payload: bytes | None) -> None:
        """Take the next packed events of the session."""
        events = unpack_events(self._session, data)
        self._advance(events[0][0])
        self._events = events
        self._next = 0
        self._payload = payload

    def expected_several(self, at: Position, data: bytes) -> None:
        """Take packed expectations, the first of them at a position."""
        self._advance(at)
        names, rows = orjson.loads(data)
        if self._coming:
            for row in rows:
                row[2] += len(self._coming_names)
                row[5] += len(self._coming_names)
            names = self._coming_names + names
        self._coming_names = names
        self._coming = sorted([*rows, *self._coming], reverse=True)
        self._coming_at = self._coming[-1][0]

    def _expect(self, before: Position) -> None:
        """Pass the packed expectations before a position to the audit."""
        coming, names, audit = self._coming, self._coming_names, self._audit
        while coming and coming[-1][0] < before:
            at, ref, topic, time_ms, number, publisher, size, expires = coming.pop()
            audit.expect(
                at,
                ref,
                names[topic],
                time_ms,
                origin=names[publisher],
                qos=number & 3,
                granted=number >> 2 & 3,
                owed=bool(number & REQUIRED),
                size=size,
                expires=expires,
            )
        self._coming_at = coming[-1][0] if coming else BEYOND_ALL

    def required_replay(self, at: Position, ref: Position, topic_filter: str | None) -> None:
        """Take a retained message that must be sent for a granted filter."""
        self._advance(at + 1)
        withheld = topic_filter is not None and self._audit.withholds(topic_filter)
        if self._audit.fold.state is not None and not withheld:
            self._owed.setdefault(ref, []).append((at, topic_filter))
            self._counts["owed"] += 1

    def claimed(self, bound: Position, where: str, claim: str | None) -> None:
        """Compare the session before ``bound`` with a claim about it."""
        self._claimed.add(where)
        log = self._log
        if not log.whole <= bound <= min(log.end, log.trusted):
            self._counts["claims beyond"] += 1
            return
        self._advance(bound)
        self._audit.pass_holes(bound)
        self._counts["claims"] += 1
        own = self._digest(pending=where == BROKER)
        if own == claim:
            return
        if claim is None:
            what = f"the {where} does not have the session that is in the log"
        elif own is None:
            what = f"the {where} has a session that is not in the log"
        else:
            what = f"the {where} has another state of the session than the log has"
        self._report(Rule.STATE, bound, f"{what}, as of {format_position(bound)}")

    def finish(self) -> None:
        """Do the remaining checks at the end of the log."""
        self._advance(BEYOND_ALL)
        self._pass_marks(BEYOND_ALL)
        audit, log = self._audit, self._log
        if audit.fold.state is not None:
            self._overdue(BEYOND_ALL)
        audit.finish(log.unsure)
        state = audit.fold.state
        if self._returning and state is not None and state.connected and log.start:
            what = "its connection was not ended after the broker was started"
            self._found(Violation(Rule.OWNERSHIP, log.start.at, what))
        for bound, where in self._existed:
            # A session that ended later may have ended before the projections were read.
            if where not in self._claimed and not (where == PROJECTIONS and state is None):
                what = f"the {where} does not have the session that is in the log"
                self._report(Rule.STATE, bound, f"{what}, as of {format_position(bound)}")
        if self._connection is not None:
            self._disconnected(BEYOND_ALL, self._log.ends_ms)
        if audit.latencies:
            totals = self._results.totals
            totals.add_session(self._log.node, self._session, audit.latencies, audit.slowest_ms)
        self._counts["sessions"] += 1
        for rule, count in audit.cases.items():
            self._counts[f"cases {rule}"] += count

    # Events.

    def _advance(self, before: Position) -> None:
        """Audit the events and the packed expectations before a position."""
        events, audit, log = self._events, self._audit, self._log
        count = len(events)
        before = min(before, log.trusted)
        while self._next < count:
            at, time_ms, part, event = events[self._next]
            if at >= before:
                break
            self._next += 1
            if at >= self._coming_at:
                self._expect(at + 1)
            if at >= self._mark_at:
                self._pass_marks(at)
            if self._owed:
                self._settle_replays(event, at, part)
            kind = type(event)
            if kind in _CHANGES:
                audit.pass_holes(at)
                self._change(audit.fold.state, event, at, time_ms)
            elif kind is SessionSnapshot:
                self._repeating = False
                self._counts["snapshots"] += at >= log.whole
            elif kind is WillFired and self._returning and not self._fired:
                self._fired = True
                self._recovered({"wills": 1})
            audit.take(event, at, time_ms, self._payload, part)
            if self._place is not None and kind in _OF_HOMES:
                self._check_home(at)
        if self._coming_at < before:
            self._expect(before)

    def _check_home(self, at: Position) -> None:
        """Report a session that belongs to another log, once."""
        state, place = self._audit.fold.state, self._place
        what = wrong_home(self._session, state, place) if state is not None and place else None
        if what is not None:
            self._report(Rule.HOME, at, what)
            self._place = None

    def _settle_replays(self, event: Event, at: Position, part: int) -> None:
        """Settle owed retained messages with an event; report late ones."""
        self._overdue((at >> INDEX_BITS) - part << INDEX_BITS)
        if isinstance(event, (Delivered, Queued)):
            paid = event.refs if event.retain and getattr(event, "queued", -1) < 0 else []
        elif isinstance(event, MessageDropped):
            paid = event.refs if event.queued < 0 else []
        else:
            if isinstance(event, (SessionClosed, SessionExpired, SessionOpened)):
                self._owed.clear()  # the session may have ended before they were sent
            elif isinstance(event, Subscribed):
                filters: Sequence[Any] = event.filters  # unpacked: lists in place of tuples
                self._cancel({topic_filter for topic_filter, _ in filters})
            elif isinstance(event, Unsubscribed):
                self._cancel(set(event.filters))
            elif isinstance(event, ReplayOpened):
                self._cancel({event.filter})
            return
        for ref in from_runs(paid):
            places = self._owed.get(ref)
            if places is not None:
                places.pop()
                if not places:
                    del self._owed[ref]

    def _cancel(self, filters: set[str]) -> None:
        """Drop messages owed to filters that were subscribed to again or unsubscribed."""
        for ref, places in list(self._owed.items()):
            places[:] = [place for place in places if place[1] not in filters]
            if not places:
                del self._owed[ref]

    def _overdue(self, turn: Position) -> None:
        """Report retained messages that were not sent before a turn began."""
        for ref, places in list(self._owed.items()):
            late = [at for at, _ in places if at < turn]
            if late:
                del self._owed[ref]
            if late and late[0] < self._log.unsure:
                what = f"retained message {format_position(ref)} was not sent for a filter"
                self._report(Rule.UNDELIVERED, late[0], what)

    def _found(self, violation: Violation) -> None:
        rule, at, what, ref, *_ = violation
        if rule not in _OF_WHOLE_TURNS or at < self._log.unsure:
            self._report(rule, at, what, ref)

    def _shared(self, step: SharedStep) -> None:
        if step.what == ASSIGNED:
            self._counts["assigned"] += len(step.refs)
        if step.at < self._log.complete:
            return  # of a state that is not known any more behind lost records
        data = orjson.dumps(step[1:])
        self._results.add(SHARED, self._log.node, step.group, step.at, data=data)

    def _replayed(self, step: ReplayStep, at: Position) -> None:
        data = orjson.dumps(list(step))
        self._results.add(READ, self._log.node, self._session, at, step.topic_filter, data=data)

    def _report(self, rule: str, at: Position, what: str, ref: Position | None = None) -> None:
        self._results.violation(rule, self._log.node, self._session, at, what, ref)

    def _digest(self, *, pending: bool) -> str | None:
        fold = self._audit.fold
        if fold.state is None:
            return None
        texts = map(orjson.dumps, encode_session(fold.state))
        return digest(texts, fold.pending.values() if pending else ())

    # Connections.

    def _change(self, state: SessionState | None, event: Any, at: Position, time_ms: int) -> None:
        """Record the beginning or end of a connection."""
        if type(event) is SessionOpened:
            self._counts["opened"] += 1
            if self._returning:
                self._recovered({"resumed": event.resumed})
                self._returning = False
            if state is not None and not event.resumed:
                self._repeating = False
            self._disconnected(at, time_ms)
            self._connection = at, time_ms
        elif type(event) is SessionClosed:
            self._disconnected(at, time_ms)

    def _disconnected(self, until: Position, ended_ms: int) -> None:
        """Record a connection, unless it may have ended in records that were given up."""
        connection, self._connection = self._connection, None
        if connection is None or not self._results.connections:
            return
        at, began_ms = connection
        if not self._log.outline.interrupted(at, until):
            where = CONNECTED, self._log.node, self._session, at
            self._results.add(*where, begins_ms=began_ms, ends_ms=ended_ms)

    # Marks.

    def _pass_marks(self, here: Position) -> None:
        """Apply the marks up to a position."""
        marks = self._marks
        self._audit.pass_holes(here)
        if self._audit.fold.state is None:
            # Marks do not concern a session that does not exist, and there may be many of both.
            self._mark = bisect_right(marks, here, self._mark, key=_place)
            self._repeating = False
        while self._mark < len(marks) and marks[self._mark].at <= here:
            self._pass(marks[self._mark], self._audit.fold.state)
            self._mark += 1
        self._mark_at = marks[self._mark].at if self._mark < len(marks) else BEYOND_ALL

    def _pass(self, mark: SessionMark, state: SessionState | None) -> None:
        if mark.kind == BEGUN:
            self._repeating = state is not None
        elif mark.kind == COMPLETED:
            if self._repeating and state is not None:
                self._report(Rule.CHECKPOINT, mark.at, "the checkpoint does not repeat the session")
            self._repeating = False
        elif mark.kind == CUT:
            if state is not None:
                refs = expand_runs(reference_runs(state), mark.value)
                self._results.needed(self._log.node, self._session, mark.at, refs)
        elif state is not None and mark.kind == START:
            self._returning = True
            counted = {
                "sessions": 1,
                "connected": state.connected,
                "clean": state.connected and state.clean,
                "queued": state.queued,
            }
            packets = {name: len(getattr(state, name)) for name in _PACKETS}
            self._recovered({**counted, **packets})
        elif state is not None:
            self._existed.append((mark.at, mark.value))

    def _recovered(self, counted: Mapping[str, int]) -> None:
        """Count what the broker recovered at its last start, and what became of it."""
        for name, count in counted.items():
            self._counts[f"recovered {name} {self._log.node}"] += count
