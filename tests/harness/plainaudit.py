"""The audit of a whole log without Spark: its facts, joined one by one.

Every rule has two forms. Joins that Spark does natively compare each pair here; the rest is the
same code. Tests compare both, and use this form where many small logs have to be audited.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from eventstore.format.positions import INDEX_BITS, format_position, position
from eventstore.format.records import decode_record
from eventstore.format.turn_parts import TurnAssembler
from projections.audit.rule_table import UNEXPECTED, Rule
from projections.audit.shared_subscription_audit import SharedAudit
from projections.audit.shared_subscription_steps import SharedStep
from projections.audit.subscription_spans import SubscriptionSpans
from protocol.mqtt.topics import matches
from spark.jobs.chain_check import LogNote
from spark.jobs.duplicate_rule import classify_copy
from spark.jobs.event_codec import unpack_events
from spark.jobs.expected_packs import REQUIRED
from spark.jobs.fact_scan import FactScan
from spark.jobs.fact_schema import CLEARED, EXPIRED_SO, REPEATED_SO, SET
from spark.jobs.log_summary import BEYOND_ALL, LogSummary, summarize_logs
from spark.jobs.session_checker import SessionChecker, session_marks
from spark.jobs.session_result_rows import NEEDED, SHARED, VIOLATION, SessionResults
from spark.tables.record_checks import CheckedRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from eventstore.format.positions import Position
    from projections.log_proof import Doubt
    from spark.jobs.fact_schema import FactColumns

Found = tuple[str, "Position", str | None]
"""Rule, position, session."""


class Wrong(NamedTuple):
    """A violation."""

    rule: str
    at: Position
    session: str | None
    what: str


class _Held(NamedTuple):
    """What was retained on a topic from a position on."""

    at: Position
    ref: Position
    how: int
    qos: int
    old: Position | None
    digest: str
    before: str | None
    expires: int
    publisher: str
    until: Position = BEYOND_ALL


class _Facts:
    """The facts of a log, with rows instead of columns."""

    def __init__(self, node: str, records: Iterable[CheckedRecord]) -> None:
        scan = FactScan(node)
        for record in records:
            scan.take(record)
        scan._packs.give()
        scan._end_piece()
        facts = scan.facts
        notes = list(_rows(facts.notes))
        self.notes = [LogNote.read(node, one["at"], one["data"]) for one in notes]
        self.events = list(_rows(facts.events))
        self.spans = list(_rows(facts.spans))
        self.effects = list(_rows(facts.effects))
        self.sent = list(_rows(facts.sent))
        self.released = list(_rows(facts.released))
        self.retained = list(_rows(facts.retained))
        self.replays = list(_rows(facts.replays))
        self.carried = list(_rows(facts.carried))
        self.wills = list(_rows(facts.wills))
        self.grants = list(_rows(facts.grants))


def _rows(columns: FactColumns) -> Iterator[dict[str, Any]]:
    names = list(columns.columns)
    for _, _ in columns._pieces():
        pass  # as for a batch of Spark's
    for values in zip(*columns.columns.values(), strict=True):
        yield dict(zip(names, values, strict=True))


def audit_plainly(node: str, records: Iterable[CheckedRecord]) -> list[Wrong]:
    """Return all violations in a log, in no particular order."""
    facts = _Facts(node, records)
    found = summarize_logs(facts.notes)
    wrong = [Wrong(one.rule, one.at, None, one.what) for _, one in found.breaks]
    log = found.logs.get(node)
    return wrong if log is None else [*wrong, *_Plain(facts, log).violations()]


def audited_doubts(node: str, records: Iterable[CheckedRecord]) -> list[Doubt]:
    """Return the parts of a log about which an audit says nothing."""
    summaries = summarize_logs(_Facts(node, records).notes)
    return [doubt for log in summaries.nodes for doubt in log.doubts]


def checked_records(history: Mapping[int, bytes]) -> Iterator[CheckedRecord]:
    """Yield the records of a simulated log, by sequence; of turns without an end as void."""
    records = [decode_record(at, data) for at, data in sorted(history.items())]
    turns = TurnAssembler()
    whole = {part.sequence for record in records for part in turns.take(record)[1]}
    for one in records:
        yield CheckedRecord(one.sequence, b"", one, void=one.sequence not in whole)


class _Plain:
    """The audit of a log that is whole."""

    def __init__(self, facts: _Facts, log: LogSummary) -> None:
        self._facts = facts
        self._log = log
        self._effects, released = _took_effect(facts)
        self._held = _history(facts, released, log.complete)
        self._results = SessionResults()
        self._rows: list[tuple[Any, ...]] = []

    def violations(self) -> Iterator[Wrong]:
        """Yield them."""
        log = self._log
        for name in sorted({one["session"] for one in self._facts.events}):
            self._session(name)
        results, shared = self._results, defaultdict(list)
        for row in results._rows:
            if row[0] == SHARED:
                shared[row[2]].append(row)
        yield from self._shared(shared)
        for kind, _, session, at, rule, ref, what, *_ in results._rows:
            if kind == VIOLATION and at < log.trusted:
                name = self._classified(session, ref, at) if rule == UNEXPECTED else rule
                yield Wrong(name, at, session, what)
        yield from self._of_retained()
        yield from self._carried()
        yield from self._not_carried(row for row in results._rows if row[0] == NEEDED)

    # Sessions.

    def _session(self, name: str) -> None:
        log = self._log
        checker = SessionChecker(log, session_marks(log, ()), name, self._results)
        rows: list[tuple[Position, int, Any]] = [
            (one["at"], 2, one) for one in self._facts.events if one["session"] == name
        ]
        spans = SubscriptionSpans(name, log.whole)
        for one in self._facts.spans:
            if one["session"] == name and (one["number"] == 0 or one["at"] < log.whole):
                for at, time_ms, part, event in unpack_events(name, one["data"]):
                    spans.take(event, at, time_ms, part)
        held = [span for span in spans.finish() if span.qos]
        for effect in self._effects:
            for span in held:
                if span.begins <= effect["turn"] and (
                    span.ends is None or effect["turn"] <= span.ends
                ) and matches(span.filter, effect["topic"]):  # fmt: skip
                    if span.no_local and effect["session"] == name:
                        continue
                    rows.append((effect["at"], 1, (effect, span)))
        rows += [(at, 3, (ref, filter_)) for at, ref, filter_ in self._owed(name)]
        for at, rank, what in sorted(rows, key=lambda row: row[:2]):
            if rank == 2:
                checker.happened(what["data"], what["payload"])
            elif rank == 3:
                checker.required_replay(at, *what)
            else:
                effect, span = what
                owed = span.since < at and (span.ends is None or effect["turn"] < span.ends)
                number = effect["level"] | span.qos << 2 | (REQUIRED if owed else 0)
                told = (effect[key] for key in ("ref", "topic", "time_ms"))
                origin = hash(effect["session"])
                checker.expected(at, *told, number, origin, effect["size"], effect["expires"])
        checker.finish()

    def _owed(self, name: str) -> Iterator[tuple[Position, Position, str]]:
        """Yield retained messages to be sent for a filter where it was granted."""
        for grant in self._facts.grants:
            if grant["session"] != name or grant["at"] < self._log.whole:
                continue
            for topic, held in self._held.items():
                then = [one for one in held if one.at < grant["at"]]
                if not then or (grant["number"] & 4 and then[-1].publisher == name):
                    continue
                if 0 < then[-1].expires <= grant["time_ms"] // 1000 + 1:
                    continue
                if then[-1].digest and then[-1].qos and matches(grant["topic"], topic):
                    yield grant["at"], then[-1].ref, grant["topic"]

    def _shared(self, steps: dict[str, list[tuple[Any, ...]]]) -> Iterator[Wrong]:
        for group, rows in steps.items():
            log = self._log
            audit = SharedAudit(group, log.whole, log.unsure)
            for row in sorted(rows, key=lambda row: row[3]):
                *rest, streams = orjson.loads(row[-1])
                audit.take(SharedStep._make((group, *rest, [tuple(one) for one in streams])))
            audit.finish()
            for one in audit.violations:
                yield Wrong(one.rule, one.at, group, one.what)

    def _classified(self, session: str, ref: Position, at: Position) -> str:
        """Return the rule that an unexpected delivery breaks."""
        effects = [one["at"] for one in self._effects if one["ref"] == ref]
        rule, _ = classify_copy(ref, at, self._first(session, ref), min(effects, default=None))
        return rule

    def _first(self, session: str, ref: Position) -> Position:
        """Return where a session was delivered a message first."""
        for row in self._facts.events:
            if row["session"] != session:
                continue
            for place, _, _, event in unpack_events(session, row["data"]):
                if event.e in ("Assigned", "Delivered", "Queued") and ref in _refs(event):
                    return place + _refs(event).index(ref)
        raise AssertionError("a delivery that is not in the log")

    # What is retained and repeated.

    def _of_retained(self) -> Iterator[Wrong]:
        log, held = self._log, self._held
        for some in held.values():
            yield from _of_topic(some, log.whole)
            there = [one for one in some if one.digest]
            for one in there:
                behind = (mark for mark in log.checkpoints if mark.begun > one.at)
                mark = next(behind, None)
                if mark and mark.begun >= log.whole and one.until > mark.completed:
                    yield Wrong(Rule.CHECKPOINT, mark.completed, None, "retained, not repeated")
        known: dict[Position, list[tuple[str, _Held]]] = defaultdict(list)
        for topic, some in held.items():
            for one in some:
                if one.digest:
                    known[one.ref].append((topic, one))
        for replay in self._facts.replays:
            place, turn = replay["at"], replay["time_ms"]
            if place < log.whole:
                continue
            there = [
                (topic, one)
                for topic, one in known[replay["ref"]]
                if one.at < place and one.until > turn
            ]
            fitting = [topic for topic, _ in there]
            if any(0 < one.expires < replay["expires"] - 1 for _, one in there):
                yield Wrong(Rule.EXPIRY, place, replay["session"], "sent after it expired")
            if not fitting:
                yield Wrong(Rule.RETAINED, place, replay["session"], "sent as retained, is not")
            elif replay["number"] == 1 and not matches(replay["topic"], fitting[0]):
                yield Wrong(Rule.NO_SUBSCRIPTION, place, replay["session"], "other filter")

    def _carried(self) -> Iterator[Wrong]:
        facts = self._facts
        there = {one["ref"]: one for one in (*facts.wills, *facts.sent, *facts.effects)}
        for one in facts.carried:
            was = there.get(one["ref"])
            if was is None:
                log, ref = self._log, one["ref"]
                judged = ref >= log.complete and one["at"] < log.trusted
                if judged and ref not in {held["ref"] for held in facts.retained}:
                    yield Wrong(Rule.CHECKPOINT, one["at"], None, "repeated, but never there")
                continue
            keys = ("topic", "check", "expires", "session")
            told = {key: one[key] for key in keys if one[key] != ""}
            if any(was.get(key) not in (None, value) for key, value in told.items()):
                yield Wrong(Rule.CHECKPOINT, one["at"], None, "repeated with another content")

    def _not_carried(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[Wrong]:
        log = self._log
        cuts = {one.at: one.first for one in log.cuts if log.whole <= one.at < log.trusted}
        needed = {(row[3], ref, row[2]) for row in rows for ref in row[7]}
        for some in self._held.values():
            for one in some:
                if one.digest:
                    needed |= {
                        (at, one.ref, None)
                        for at, first in cuts.items()
                        if one.at < at < one.until and one.ref < first
                    }
        for at, first in cuts.items():
            kept = {one["ref"] for one in self._facts.carried if first <= one["at"] < at}
            for where, ref, session in needed:
                if where == at and ref not in kept:
                    what = f"cuts off message {format_position(ref)}"
                    yield Wrong(Rule.CHECKPOINT, at, session, what)


def _refs(event: Any) -> list[int]:
    found = []
    for run in event.refs:
        if isinstance(run, int):
            found.append(run)
        else:
            first, count, step = run[:3]
            found += [first + step * number for number in range(count)]
    return found


def _took_effect(facts: _Facts) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return messages where they took effect, and those that were released apart."""
    waiting: dict[Position, dict[str, Any]] = {}
    for one in (*facts.sent, *facts.carried):
        before = waiting.get(one["ref"])
        if before is None or (one["number"], one["digest"]) > (before["number"], before["digest"]):
            waiting[one["ref"]] = one
    found, apart = [_effect(one) for one in facts.effects], []
    for one in facts.released:
        told = waiting.get(one["ref"])
        if told is not None:
            more = {key: told[key] for key in ("topic", "size", "expires")}
            found.append({**_effect(one), **more})
            apart.append({**told, "at": one["at"], "session": one["session"]})
    found.sort(key=lambda one: one["at"])
    return found, apart


def _effect(one: dict[str, Any]) -> dict[str, Any]:
    sequence = (one["at"] >> INDEX_BITS) - (one["number"] >> 2)
    return {**one, "level": one["number"] & 3, "turn": position(sequence, 0)}


def _history(
    facts: _Facts, released: list[dict[str, Any]], complete: Position
) -> dict[str, list[_Held]]:
    """Return what was retained on each topic from a position on, in order."""
    found: dict[str, list[_Held]] = defaultdict(list)
    for one in facts.retained:
        how, qos = one["number"] & 3, one["number"] >> 2
        found[one["topic"]].append(
            _Held(
                *(one["at"], one["ref"], how, qos, one["check"], one["digest"]),
                *(one["before"], one["expires"], one["session"]),
            )
        )
    for one in released:
        if one["number"] == 1:
            held = _Held(
                *(one["at"], one["ref"], SET, 2, None, one["digest"]),
                *(None, one["expires"], one["session"]),
            )
            found[one["topic"]].append(held)
    for topic, some in found.items():
        known = sorted((one for one in some if one.at >= complete), key=lambda held: held.at)
        ends = [*(one.at for one in known[1:]), BEYOND_ALL][: len(known)]
        found[topic] = [one._replace(until=end) for one, end in zip(known, ends, strict=True)]
    return found


def _of_topic(some: list[_Held], whole: Position) -> Iterator[Wrong]:
    """Yield repetitions and expiries that do not fit what was retained before."""
    for before, one in pairwise([None, *some]):
        if one is None or one.at < whole:
            continue
        ref, digest = (before.ref, before.digest) if before is not None else (None, None)
        if one.how == REPEATED_SO and (ref, digest) != (one.old, one.before):
            yield Wrong(Rule.RETAINED, one.at, None, "repeats another message")
        elif one.how in (CLEARED, EXPIRED_SO) and (before is None or not before.digest):
            yield Wrong(Rule.EXPIRY, one.at, None, "a retained message ended, but there was none")
        elif one.how == EXPIRED_SO and before and not 0 < before.expires <= one.expires:
            yield Wrong(Rule.EXPIRY, one.at, None, "a retained message expired too early")
