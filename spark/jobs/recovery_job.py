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
from eventstore.format.positions import format_position, index_of, position, sequence_of
from projections.audit.audit_outcome import (
    ALL_CLAIM,
    BROKER,
    MAX_VIOLATIONS,
    RETAINED_CLAIM,
    SESSION_CLAIM,
    ClaimsCompared,
)
from projections.audit.rule_table import Rule, Violation
from projections.log_proof import LogProof, proven_spans
from projections.state.digests import digest
from spark.jobs.arrow_batches import arrow_batches_of, ddl
from spark.jobs.folding import parse_event_json, report_contradictions, session_events
from spark.jobs.retained_messages import retained_digest_column as digest_column
from spark.jobs.retained_messages import retained_effects
from spark.jobs.session_check import SessionRecovery
from spark.jobs.session_groups import group_by_session, sorted_by_session
from spark.jobs.session_states import session_texts_of
from spark.jobs.state_start import state_starts
from spark.runtime.marked_errors import BadOption, marked_iterator
from spark.tables.node_names import check_claimed_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from eventstore.format.positions import Position
    from projections.audit.audit_outcome import StateClaim
    from projections.log_proof import Doubt
    from projections.state.single_session import SessionFold
    from spark.jobs.session_groups import SessionGroup
    from spark.jobs.state_start import StateStarts
    from spark.tables.log import Log, LogBounds


_BEYOND = 1 << 62
"""A position after the end of every log."""


def retained_otherwise(log: Log, claimed: DataFrame, complete: DataFrame) -> DataFrame:
    """Return the differences between retained messages and claims about them.

    ``claimed`` has node, topic, bound (all before this position had happened) and said (a digest,
    null: nothing is retained), ``complete`` node and bound: all messages retained there are
    claimed. Columns: node, topic, bound, said, known (digests).
    """
    digests = retained_effects(log).select(
        "node",
        "topic",
        "effect",
        F.when(F.length("payload") > 0, digest_column()).alias("digest"),
    )
    here = F.col("effect") < F.col("bound")
    known = F.max_by("digest", F.when(here, F.col("effect")))
    wrong = (
        claimed.join(digests, ["node", "topic"], "left")
        .groupBy("node", "topic", "bound", "said")
        .agg(known.alias("known"))
        .where(~F.col("said").eqNullSafe(F.col("known")))
    )
    unclaimed = (
        digests.join(F.broadcast(complete), "node")
        .where(here)
        .groupBy("node", "topic", "bound")
        .agg(F.max_by("digest", "effect").alias("known"))
        .where(F.col("known").isNotNull())
        .join(claimed.select("node", "topic"), ["node", "topic"], "left_anti")
        .select("node", "topic", "bound", F.lit(None).cast("string").alias("said"), "known")
    )
    return wrong.unionByName(unclaimed)


class SessionClaims:
    """Compares the folded state of a session with the claims of its broker."""

    def __init__(self, fold: SessionFold, complete: Sequence[Position]) -> None:
        self.findings: list[tuple[Position, str]] = []
        self._fold = fold
        self._complete = sorted(complete, reverse=True)
        self._existed: Position | None = None
        self._compared = False

    def reach(self, at: Position) -> None:
        """Record whether the session existed where claims are complete, up to ``at``."""
        while self._complete and self._complete[-1] <= at:
            bound = self._complete.pop()
            if self._fold.state is not None and self._existed is None:
                self._existed = bound

    def compare(self, bound: Position, said: str | None) -> None:
        """Compare the current state with a digest; None: the session does not exist."""
        self._compared = True
        texts = session_texts_of(self._fold)
        known = None if texts is None else digest(texts, self._fold.pending.values())
        if known == said:
            return
        if said is None:
            what = "the broker does not have the session that is in the log"
        elif known is None:
            what = "the broker has a session that is not in the log"
        else:
            what = "the broker has another state of the session than the log has"
        self.findings.append((bound, f"{what}, as of {format_position(bound)}"))

    def finish(self) -> None:
        """Do the remaining checks at the end of the log."""
        self.reach(_BEYOND)
        if self._existed is not None and not self._compared:
            what = "the broker does not report the session that is in the log"
            self.findings.append((self._existed, f"{what}, as of {format_position(self._existed)}"))


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
    """The previous broker ended without a clean shutdown."""
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
    nodes, found, counts = _sessions(pinned, bounds, begin, starts, claims)
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
    if claims:
        tell("comparing what is retained")
        wrong += _retained(pinned, claims)
    counts.update(one.rule for one in wrong)
    violations = sorted(wrong + found, key=lambda one: (one.node, one.at, one.session or ""))
    return RecoveryOutcome(
        tuple(nodes),
        tuple(violations[:MAX_VIOLATIONS]),
        counts,
        tuple(_compared(claims)),
        time.monotonic() - began,
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
    complete: Mapping[str, Sequence[Position]]
    """By node, the positions at which claims are complete."""
    torn: Mapping[str, Position]
    """By node, the start of a record whose rest is not checked."""


def _sessions(
    log: Log,
    bounds: Mapping[str, LogBounds],
    begin: StateStarts,
    starts: Mapping[str, BrokerStart],
    claims: Sequence[StateClaim],
) -> tuple[list[NodeRecovery], list[Violation], Counter[str]]:
    complete = defaultdict(list)
    for claim in claims:
        if claim.kind == ALL_CLAIM:
            complete[claim.node].append(claim.bound)
    happened = session_events(log, begin).withColumns(
        {"rank": F.lit(1), "said": F.lit(None).cast("string")}
    )
    said = _claimed(log, claims, SESSION_CLAIM).select(
        "node",
        F.col("name").alias("session"),
        F.col("bound").alias("position"),
        F.lit(0).alias("rank"),  # a claim precedes events at the same position
        "said",
    )
    rows = happened.unionByName(said, allowMissingColumns=True)
    torn = {node: position(one.last, 0) for node, one in bounds.items() if not one.whole}
    plan = _Plan(begin, dict(starts), dict(complete), torn)
    results = sorted_by_session(rows, "rank").mapInArrow(partial(_check, plan), ddl(_RESULT))
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
    claims = SessionClaims(recovery.fold, plan.complete.get(group.node, ()))
    for node, _, at, time_ms, _, text, payload, rank, said in group.rows:
        claims.reach(at)
        if not rank:
            claims.compare(at, said)
            continue
        with report_contradictions(node, at):
            recovery.take(parse_event_json(text, node, at), at, time_ms, payload)
    recovery.finish(plan.torn.get(group.node))
    claims.finish()
    before = recovery.before
    findings = [(RECOVERY, one.at, one.what) for one in recovery.findings]
    findings += [(Rule.STATE, at, what) for at, what in claims.findings]
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


# ------------------------------------------------------------------------------- claims


def _claimed(log: Log, claims: Sequence[StateClaim], kind: str) -> DataFrame:
    """Return the claims of a kind as a table."""
    rows = [(one.node, one.name, one.bound, one.digest) for one in claims if one.kind == kind]
    return log.spark.createDataFrame(rows, "node string, name string, bound bigint, said string")


def _retained(log: Log, claims: Sequence[StateClaim]) -> list[Violation]:
    claimed = _claimed(log, claims, RETAINED_CLAIM).withColumnRenamed("name", "topic")
    complete = _claimed(log, claims, ALL_CLAIM).select("node", "bound")
    return [_otherwise(row) for row in retained_otherwise(log, claimed, complete).collect()]


def _otherwise(row: Any) -> Violation:
    if row["said"] is None:
        what = "the broker does not have the retained message that is in the log"
    elif row["known"] is None:
        what = "the broker has a retained message that is not in the log"
    else:
        what = "the broker has another retained message than the log has"
    bound = row["bound"]
    what += f", as of {format_position(bound)}: topic {shown(row['topic'])}"
    return Violation(Rule.STATE, bound, what, node=row["node"])


def _compared(claims: Sequence[StateClaim]) -> Iterator[ClaimsCompared]:
    """Yield the number of claims of each broker."""
    for node in sorted({claim.node for claim in claims}):
        own = [claim for claim in claims if claim.node == node]
        counts = Counter(claim.kind for claim in own if claim.digest is not None)
        as_of = max(claim.bound for claim in own)
        yield ClaimsCompared(BROKER, node, counts[SESSION_CLAIM], counts[RETAINED_CLAIM], as_of)
