"""Checks from the log that a restarted broker has the correct state.

Everything that was acknowledged or in flight is in the log before the last ``BrokerStarted``. The
log from there on must continue it: the chain is intact, connections end and their wills are
published once, sessions are resumed in their former state, packets are sent again under their old
identifiers. With claims of the running broker its memory is compared as well, both ways.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from eventstore.display import name as shown
from eventstore.format.positions import index_of, position, sequence_of
from projections.audit.audit_outcome import (
    BROKER,
    MAX_VIOLATIONS,
    ClaimsCompared,
)
from projections.audit.rule_table import Rule, Violation
from projections.log_proof import LogProof, proven_spans
from spark.jobs.arrow_batches import arrow_batches_of, ddl
from spark.jobs.folding import parse_event_json, report_contradictions, session_events
from spark.jobs.pipeline import audit
from spark.jobs.session_check import SessionRecovery
from spark.jobs.session_groups import group_by_session, sorted_by_session
from spark.jobs.state_start import state_starts
from spark.runtime.marked_errors import BadOption, marked_iterator
from spark.tables.node_names import check_claimed_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from eventstore.format.positions import Position
    from projections.audit.audit_outcome import StateClaim
    from projections.log_proof import Doubt
    from spark.jobs.session_groups import SessionGroup
    from spark.jobs.state_start import StateStarts
    from spark.tables.log import Log, LogBounds


RECOVERY: Final = "recovery"
"""The rule for all duties of a restarted broker."""
RULES: Final[Mapping[str, str]] = {
    Rule.CHAIN: "the log continues with a new turn, and an unfinished turn has no effect",
    RECOVERY: (
        "connections end, their wills are published once, sessions continue in their former state"
    ),
    Rule.STATE: Rule.STATE.promise,
}
"""Rule -> its guarantee, in the order of the report."""


@dataclass(frozen=True, slots=True)
class BrokerStart:
    """The last start of a node's broker."""

    at: Position
    """Position of its BrokerStarted."""
    time_ms: int
    crashed: bool
    """The previous broker ended without a clean shutdown, as far as the log proves it."""
    interrupted: bool
    """It ended while it wrote a turn: the written part is void."""


@dataclass(frozen=True, slots=True)
class NodeRecovery:
    """The state that a node's broker recovered at its start."""

    node: str
    start: BrokerStart | None
    """None: the log contains no start."""
    sessions: int = 0
    """Number of sessions; the numbers below refer to these."""
    connected: int = 0
    """Sessions whose connections ended with the previous broker."""
    clean: int = 0
    """Sessions that ended with their connections."""
    wills: int = 0
    """Wills published since their connections ended."""
    inflight: int = 0
    """Deliveries without PUBACK or PUBREC, kept with their packet identifiers."""
    releasing: int = 0
    """Deliveries without PUBCOMP."""
    inbound: int = 0
    """QoS 2 messages of clients without PUBREL."""
    queued: int = 0
    """Messages in queues."""
    resumed: int = 0
    """Sessions resumed by their clients since, in their former state."""
    begins_ms: int = 0
    """Time of the first record of the log; 0: it has none."""
    ends_ms: int = 0
    """Time of the last record."""
    doubts: tuple[Doubt, ...] = ()
    """The parts of the log about which nothing can be said."""

    @property
    def proven(self) -> list[tuple[int, int]]:
        """The other parts of the log, in Unix milliseconds."""
        spans = proven_spans(self.begins_ms, self.ends_ms, self.doubts)
        return spans if self.ends_ms else []


@dataclass(frozen=True, slots=True)
class RecoveryOutcome:
    """The result of a recovery check."""

    nodes: tuple[NodeRecovery, ...]
    violations: tuple[Violation, ...]
    """At most ``MAX_VIOLATIONS``, by node and position."""
    counts: Mapping[str, int]
    """Rule -> number of violations."""
    compared: tuple[ClaimsCompared, ...]
    """The compared claims of the broker; empty if it was not queried."""
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        """Whether there are no violations."""
        return not any(self.counts.values())


def recovery_check(
    log: Log,
    claims: Sequence[StateClaim] = (),
    *,
    tell: Callable[[str], object] = lambda _doing: None,
) -> RecoveryOutcome:
    """Check the last start in each log; return the recovered state, and the violations.

    ``claims`` are those of the running brokers (``where`` is ``broker``). ``tell`` is called with
    the next step, in a few words. The log is read up to its current end. Raises the errors of
    reading a log (``spark.runtime.marked_errors.find_error``), CutOff for a log whose state is not
    known yet, and BadOption for claims about nodes whose logs are not read.
    """
    if any(claim.where != BROKER for claim in claims):
        raise BadOption("a recovery is checked against brokers, not against projections")
    began = time.monotonic()
    pinned = log.pinned()
    pinned.fit_shuffles()
    begin = state_starts(pinned)
    bounds = pinned.bounds()
    check_claimed_nodes({claim.node for claim in claims}, bounds)
    tell("looking for the last start")
    starts, doubts = _starts(pinned)
    starts, wrong = _look_at_turns(pinned, bounds, starts)
    tell("folding the sessions")
    nodes, found, counts = _sessions(pinned, bounds, begin, starts)
    times = _times(pinned, bounds)
    nodes = [
        replace(
            node,
            begins_ms=times[node.node][0],
            ends_ms=times[node.node][1],
            doubts=tuple(doubts.get(node.node, ())),
        )
        for node in nodes
    ]
    compared: tuple[ClaimsCompared, ...] = ()
    notes: tuple[str, ...] = ()
    if claims:
        audited = audit(pinned, claims, cluster=False, progress=tell)
        found += [one for one in audited.violations if one.rule == Rule.STATE]
        compared = audited.compared
        notes = tuple(note for note in audited.notes if " claims about " in note)
        counts.update({one.rule: one.violations for one in audited.rules if one.rule == Rule.STATE})
    counts.update(one.rule for one in wrong)
    violations = sorted(wrong + found, key=lambda one: (one.node, one.at, one.session or ""))
    return RecoveryOutcome(
        tuple(nodes),
        tuple(violations[:MAX_VIOLATIONS]),
        counts,
        compared,
        time.monotonic() - began,
        notes,
    )


# ------------------------------------------------------------------------------- the start


def _starts(log: Log) -> tuple[dict[str, BrokerStart], dict[str, list[Doubt]]]:
    """Return the last start of each node that has one in its log, and what is not proven of it."""
    types = ["BrokerStarted", "BrokerStopped", "LogEndUnproven", "LogSalvaged"]
    rows = log.only(types=types).entries("node", "position", "time_ms", "type", "json").collect()
    starts: dict[str, BrokerStart] = {}
    stopped: dict[str, bool] = {}
    proofs: dict[str, LogProof] = defaultdict(LogProof)
    for row in sorted(rows, key=lambda row: row["position"]):
        node, at, time_ms = row["node"], row["position"], row["time_ms"]
        if row["type"] == "BrokerStarted":
            # In a cut log the earlier start may be gone, but not the shutdown behind it.
            crashed = not stopped.get(node, sequence_of(at) == 1)
            starts[node] = BrokerStart(at, time_ms, crashed, interrupted=False)
        if row["type"] in ("BrokerStarted", "BrokerStopped"):
            stopped[node] = row["type"] == "BrokerStopped"
        if row["type"] == "LogEndUnproven" and node in starts:  # nothing need have crashed
            starts[node] = replace(starts[node], crashed=False)
        event = parse_event_json(row["json"], node, at)
        proofs[node].take(event, sequence_of(at), time_ms)
    return starts, {node: proof.doubts for node, proof in proofs.items()}


def _times(log: Log, bounds: Mapping[str, LogBounds]) -> dict[str, tuple[int, int]]:
    """Return the times of the first and the last record of each log; 0 if it has none."""
    chosen = log.having(stream=",".join(one.stream for one in bounds.values()))
    first = {one.stream: str(one.first) for one in bounds.values()}
    last = {one.stream: str(one.last) for one in bounds.values()}
    ends = [chosen.until(json.dumps(first)), chosen.since(json.dumps(last))]
    begins, ended = (one.records("node", "time_ms") for one in ends)
    times = defaultdict(list)
    for row in begins.union(ended).collect():
        times[row["node"]].append(row["time_ms"])
    return {node: (min(times[node], default=0), max(times[node], default=0)) for node in bounds}


def _look_at_turns(
    log: Log, bounds: Mapping[str, LogBounds], starts: Mapping[str, BrokerStart]
) -> tuple[dict[str, BrokerStart], list[Violation]]:
    """Check the records around each start: the last one before it, and that of the start.

    Every reader of a log checks that each record continues the one before.
    """
    if not starts:
        return {}, []
    first, last = {}, {}
    for node, start in starts.items():
        if node not in bounds:
            raise BadOption(f"records of node {shown(node)} are in the log of another node")
        stream, sequence = bounds[node].stream, sequence_of(start.at)
        first[stream] = str(max(bounds[node].first, sequence - 1))
        last[stream] = str(sequence)
    few = log.having(stream=",".join(last), until=json.dumps(last)).since(json.dumps(first))
    rows = few.records("node", "seq", "part", "last").collect()
    records = {(row["node"], row["seq"]): row for row in rows}
    looked: dict[str, BrokerStart] = {}
    wrong = []
    for node, start in starts.items():
        sequence = sequence_of(start.at)
        before, record = records.get((node, sequence - 1)), records[node, sequence]
        if record["part"] or index_of(start.at):
            what = "the broker was started in the middle of a turn"
            wrong.append(Violation(Rule.CHAIN, start.at, what, node=node))
        interrupted = not record["part"] and before is not None and not before["last"]
        looked[node] = replace(start, interrupted=interrupted)
    return looked, wrong


# ------------------------------------------------------------------------------- sessions

_FINDINGS: Final = pa.list_(pa.struct({"rule": pa.string(), "at": pa.int64(), "what": pa.string()}))
_NUMBERS: Final = (
    "sessions", "connected", "clean", "wills", "inflight", "releasing", "inbound", "queued",
    "resumed",
)  # fmt: skip
_RESULT: Final = pa.schema(
    [
        pa.field("node", pa.string()),
        pa.field("session", pa.string()),
        *(pa.field(name, pa.int64()) for name in _NUMBERS),
        pa.field("findings", _FINDINGS),
    ]
)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Common parameters of all tasks."""

    begin: StateStarts
    starts: Mapping[str, BrokerStart]
    torn: Mapping[str, Position]
    """By node, the start of a record whose rest is not checked."""


def _sessions(
    log: Log,
    bounds: Mapping[str, LogBounds],
    begin: StateStarts,
    starts: Mapping[str, BrokerStart],
) -> tuple[list[NodeRecovery], list[Violation], Counter[str]]:
    torn = {node: position(one.last, 0) for node, one in bounds.items() if not one.whole}
    plan = _Plan(begin, dict(starts), torn)
    rows = sorted_by_session(session_events(log, begin))
    results = rows.mapInArrow(partial(_check, plan), ddl(_RESULT))
    kept = results.persist(StorageLevel.DISK_ONLY)
    try:
        sums = (
            kept.na.fill(0, [*_NUMBERS])  # for sessions that did not exist before the start
            .groupBy("node")
            .agg(*(F.sum(name).alias(name) for name in _NUMBERS))
            .collect()
        )
        found = kept.select("node", "session", F.inline("findings"))
        counts = found.groupBy("rule").count().collect()
        first = found.orderBy("node", "at").limit(MAX_VIOLATIONS).collect()
    finally:
        kept.unpersist()
    numbers: dict[str, Any] = {row["node"]: row.asDict() for row in sums}
    zero: dict[str, Any] = dict.fromkeys(_NUMBERS, 0)
    nodes = [
        NodeRecovery(
            node,
            starts.get(node),
            **{name: numbers.get(node, zero)[name] for name in _NUMBERS},
        )
        for node in sorted(bounds)
    ]
    violations = [
        Violation(row["rule"], row["at"], row["what"], session=row["session"], node=row["node"])
        for row in first
    ]
    return nodes, violations, Counter({row["rule"]: row["count"] for row in counts})


def _check(plan: _Plan, found: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check the sessions in sorted batches."""
    rows = (_checked(plan, group) for group in group_by_session(found))
    yield from marked_iterator(arrow_batches_of(rows, _RESULT))


def _checked(plan: _Plan, group: SessionGroup) -> dict[str, Any]:
    start = plan.starts.get(group.node)
    at_start = start.at if start is not None else None
    recovery = SessionRecovery(group.session, at_start, plan.begin.of(group.node))
    for node, _, at, time_ms, _, text, payload in group.rows:
        with report_contradictions(node, at):
            recovery.take(parse_event_json(text, node, at), at, time_ms, payload)
    recovery.finish(plan.torn.get(group.node))
    before = recovery.before
    findings = [(RECOVERY, one.at, one.what) for one in recovery.findings]
    return {
        "node": group.node,
        "session": group.session,
        "sessions": int(before is not None),
        **({} if before is None else before._asdict()),
        "clean": int(before is not None and before.connected and before.clean),
        "connected": int(before is not None and before.connected),
        "wills": int(recovery.fired),
        "resumed": int(recovery.resumed),
        "findings": [dict(zip(("rule", "at", "what"), one, strict=True)) for one in findings],
    }
