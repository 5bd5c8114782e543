"""The audit of logs: a scan of each into facts, folds of the facts by key, and their outcome.

The facts are in this process or in Spark, which distributes the scan and the folds: the engine is
the same.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from operator import attrgetter
from typing import Any, Final, Protocol

import orjson

from eventstore.format.positions import Position
from projections.audit.acknowledgement_audit import BUCKETS
from projections.audit.audit_outcome import (
    ALL_CLAIM,
    MAX_VIOLATIONS,
    RETAINED_CLAIM,
    SESSION_CLAIM,
    ClaimsCompared,
    DropCount,
    LatencyHistogram,
    NodeRecovery,
    NodeSummary,
    Outcome,
    RuleResult,
    SlowSession,
    StateClaim,
)
from projections.audit.audit_results import (
    RESULT_COLUMNS,
    AuditPlan,
    AuditTotals,
    Row,
    bounded,
    quantile,
)
from projections.audit.broker_logs import BrokerLogs, ComparedLog, find_brokers
from projections.audit.chain_check import COUNTS, DROPS, RATES, REPLAYS_THERE, SHARED_THERE, LogNote
from projections.audit.drop_rules import UNKNOWN_LIMITS
from projections.audit.expected_packs import EFFECT_COLUMNS
from projections.audit.facts import (
    CARRIED,
    CLAIMED_SESSION,
    CLAIMED_TOPIC,
    CONNECTED,
    EFFECT,
    EVENTS,
    GRANT,
    NEEDED,
    OWED,
    READ,
    RELEASED,
    REPLAY,
    RETAINED,
    SENT,
    SHARED,
    SPANS,
    TOTALS,
    VIOLATION,
)
from projections.audit.histogram import merge_rates
from projections.audit.log_folds import (
    CUT_COLUMNS,
    DUE_COLUMNS,
    EVIDENCE_COLUMNS,
    EVIDENCE_KINDS,
    MESSAGE_COLUMNS,
    OWNER_COLUMNS,
    RELEASED_COLUMNS,
    REPEATED_KINDS,
    SESSION_COLUMNS,
    SHARE_COLUMNS,
    SPAN_COLUMNS,
    UNEXPECTED_COLUMNS,
    classify,
    due_messages,
    evidence_of,
    fold_cuts,
    fold_owners,
    fold_released,
    fold_repeated,
    fold_sessions,
    fold_shares,
    spans_of,
)
from projections.audit.log_summary import (
    LogSummaries,
    LogSummary,
    last_starts,
    summarize_logs,
)
from projections.audit.replay_fold import (
    FILTER_COLUMNS,
    READ_COLUMNS,
    filters_of,
    fold_replays,
    matching_messages,
)
from projections.audit.retained_audit import RETAINED_COLUMNS, fold_retained
from projections.audit.rule_table import RULES, UNEXPECTED, Rule, Violation


def rule_results(
    nodes: Sequence[NodeSummary],
    totals: AuditTotals,
    violations: Mapping[str, int],
    *,
    checkpoints: int,
    claims: bool,
    retained_claims: int,
    owed: int = 0,
    copies: int = 0,
) -> tuple[RuleResult, ...]:
    """Return the numbers of checked items and violations of each rule.

    ``checkpoints`` includes cuts, ``owed`` and ``copies`` are those between logs.
    """
    records = sum(node.records for node in nodes)
    counts = totals.counts
    figures = {rule: counts[f"cases {rule}"] for rule in RULES}
    figures |= {
        Rule.CHAIN: records,
        Rule.TURN: records,
        Rule.CHECKPOINT: checkpoints,
        Rule.SHARED: counts["assigned"],
        Rule.RETAINED: counts["retained"],
        Rule.OWNERSHIP: counts["opened"],
        Rule.EXCHANGE: owed,
        Rule.COPY: copies,
        Rule.EVENT: sum(node.events for node in nodes),
        Rule.STATE: counts["claims"] + retained_claims,
    }
    figures[Rule.UNDELIVERED] += counts["owed"]
    return tuple(
        RuleResult(rule, figures[rule], rule.checked, violations.get(rule, 0))
        for rule in RULES
        if claims or rule != Rule.STATE
    )


def latencies(totals: AuditTotals) -> tuple[LatencyHistogram, ...]:
    """Return the latencies of each QoS."""
    bounds = tuple(1 << number for number in range(BUCKETS))
    histograms = []
    for qos, buckets in sorted(totals.latencies.items()):
        longest = totals.longest_ms[qos]
        used = max((number for number, count in enumerate(buckets) if count), default=0) + 1
        p50, p99 = (bounded(quantile(buckets, share), longest) for share in (0.5, 0.99))
        histograms.append(
            LatencyHistogram(qos, bounds[:used], tuple(buckets[:used]), p50, p99, longest)
        )
    return tuple(histograms)


def slowest(totals: AuditTotals) -> tuple[SlowSession, ...]:
    """Return the slowest sessions, slowest first."""
    return tuple(
        SlowSession(node, session, completed, p50, p99, longest)
        for p99, longest, p50, completed, node, session in sorted(totals.slowest, reverse=True)
    )


def drops(counted: Iterable[tuple[str, Mapping[str, int]]]) -> tuple[DropCount, ...]:
    """Return the drops of (node, count by reason), most first."""
    sums: Counter[tuple[str, str]] = Counter()
    for node, counts in counted:
        for reason, count in counts.items():
            sums[node, reason] += count
    return tuple(DropCount(node, reason, count) for (node, reason), count in sums.most_common())


_CLAIM_COLUMNS: Final = ("kind", "node", "session", "topic", "at", "before", "digest")


class Facts(Protocol):
    """The facts of logs; tables of them are whatever its methods return as such."""

    def notes(self) -> list[LogNote]:
        """Return the facts about logs as a whole."""

    def trust(self, logs: Mapping[str, LogSummary]) -> None:
        """Forget the facts that are not audited: those behind a damaged record."""

    def of(self, *kinds: int) -> Any:
        """Return the facts of some kinds."""

    def made(self, columns: Sequence[str], rows: Sequence[Row]) -> Any:
        """Return rows as facts."""

    def chosen(self, facts: Any, *kinds: int) -> Any:
        """Return those of some kinds among facts."""

    def of_messages(self, facts: Any, others: Any) -> Any:
        """Return the facts about messages that others are about, too."""

    def parts(self, facts: Any, count: int, *columns: str) -> Iterator[Iterable[Row]]:
        """Yield rows of ``count`` facts about sessions in parts that fit into memory.

        Each part has all facts of its sessions.
        """

    def each(
        self,
        facts: Any,
        fold: Callable[[Iterable[Row]], Iterable[Row]],
        columns: Sequence[str],
        results: Sequence[str],
    ) -> Any:
        """Return the results of a fold of facts in any order."""

    def by_key(
        self,
        tables: Sequence[Any],
        key: Sequence[str],
        order: Sequence[str],
        fold: Callable[[Iterable[Row]], Iterable[Row]],
        columns: Sequence[str],
        results: Sequence[str] = RESULT_COLUMNS,
    ) -> Any:
        """Return the results of a fold of facts that are sorted by a key and an order."""

    def rows(self, tables: Sequence[Any], *columns: str) -> Iterable[Row]:
        """Return columns of facts."""

    def results(self, tables: Sequence[Any]) -> Iterable[Row]:
        """Return results that the audit as a whole needs, see ``RESULT_COLUMNS``."""


class AuditEngine:
    """One audit.

    ``claims`` are compared with the logs; None: nothing is claimed. ``cluster``: several nodes form
    one cluster, so that a session may belong to one of them at a time. ``compare`` compares the
    logs of brokers that have several; None: they are not compared. ``recovery``: the outcome says
    what brokers recovered at their last start, and of each log only what is wrong from there on.
    ``progress`` is called with the next step, in a few words.
    """

    def __init__(
        self,
        claims: Sequence[StateClaim] | None = None,
        *,
        cluster: bool = True,
        recovery: bool = False,
        compare: Callable[[Sequence[BrokerLogs]], Iterable[ComparedLog]] | None = None,
        progress: Callable[[str], object] = lambda _doing: None,
    ) -> None:
        self._claims = claims
        self._cluster = cluster
        self._recovery = recovery
        self._compare = compare
        self._progress = progress
        self._violations: list[Violation] = []
        self._counts: Counter[str] = Counter()
        """Number of violations of each rule."""
        self._totals = AuditTotals()
        self._compared: list[ComparedLog] = []

    def outcome(self, facts: Facts) -> Outcome:
        """Audit facts and return the outcome; its duration is not measured."""
        notes = facts.notes()
        summaries = summarize_logs(notes)
        since = last_starts(summaries.logs) if self._recovery else {}
        for node, (rule, at, what) in summaries.breaks:
            if at >= since.get(node, 0):
                self._add(Violation(rule, at, what, node=node), 1)
        if summaries.logs:
            brokers, remarks = find_brokers(summaries.logs)
            summaries.remarks += remarks
            facts.trust(summaries.logs)
            self._audit(facts, notes, summaries.logs, brokers, since)
            whole = [broker for broker in brokers if broker.whole]
            if whole and self._compare is not None:
                self._progress("comparing the logs with each other")
                self._compared += self._compare(whole)
            for comparison in self._compared:
                self._violations += comparison.violations
                self._counts.update(comparison.counts)
        return self._make_outcome(notes, summaries)

    def _audit(
        self,
        facts: Facts,
        notes: Sequence[LogNote],
        logs: Mapping[str, LogSummary],
        brokers: Sequence[BrokerLogs],
        since: Mapping[str, Position],
    ) -> None:
        counts: Counter[int] = Counter()
        for note in notes:
            if note.about == COUNTS:
                counts.update({int(kind): count for kind, count in note.values.items()})
        places = {name: at for broker in brokers for name, at in broker.places().items()}
        joins_nodes = self._cluster and len(logs) > 1
        complete = complete_claims(self._claims or ())
        plan = AuditPlan(logs, complete, joins_nodes, since, places)
        claims = [
            facts.made(_CLAIM_COLUMNS, rows) for rows in (claim_rows(self._claims or ()),) if rows
        ]
        changes = [facts.of(RETAINED, GRANT, REPLAY)]
        due = []
        released = None
        if counts[RELEASED]:
            apart = [facts.of(RELEASED, SENT, CARRIED)]
            released = facts.by_key(
                apart, ("node", "ref"), (), fold_released, MESSAGE_COLUMNS, RELEASED_COLUMNS
            )
            changes.append(facts.chosen(released, RETAINED))
        parts = facts.parts(facts.of(SPANS), counts[SPANS], *SPAN_COLUMNS)
        for part in parts if counts[SPANS] else ():
            fold = partial(due_messages, list(spans_of(plan, part)))
            due.append(facts.each(facts.of(EFFECT), fold, EFFECT_COLUMNS, DUE_COLUMNS))
            if released is not None:
                effects = [facts.chosen(released, EFFECT)]
                columns = EFFECT_COLUMNS, DUE_COLUMNS
                due.append(facts.by_key(effects, ("node",), ("at",), fold, *columns))
        of_sessions = [facts.chosen(claim, CLAIMED_SESSION) for claim in claims]
        events = [facts.of(EVENTS), *due, *of_sessions]
        results = []
        if claims or any(counts[kind] for kind in (RETAINED, RELEASED, REPLAY)):
            changes += [facts.chosen(claim, CLAIMED_TOPIC) for claim in claims]
            fold = partial(fold_retained, plan)
            retained = facts.by_key(changes, ("node",), ("at", "kind"), fold, RETAINED_COLUMNS)
            events.append(facts.chosen(retained, OWED))
            results.append(retained)
        self._progress("auditing sessions")
        by_session, in_order = ("node", "session"), ("at", "kind")
        fold = partial(fold_sessions, plan)
        sessions = facts.by_key(events, by_session, in_order, fold, SESSION_COLUMNS)
        results.append(sessions)
        if any(note.about == SHARED_THERE for note in notes):
            steps, fold = [facts.chosen(sessions, SHARED)], partial(fold_shares, plan)
            results.append(facts.by_key(steps, by_session, ("at",), fold, SHARE_COLUMNS))
        if any(note.about == REPLAYS_THERE for note in notes):
            results += self._replays(facts, plan, sessions, released)
        if any(log.cuts for log in logs.values()):
            needed = [facts.of(CARRIED), *(facts.chosen(result, NEEDED) for result in results)]
            fold = partial(fold_cuts, plan)
            results.append(facts.by_key(needed, ("node",), in_order, fold, CUT_COLUMNS))
        if counts[CARRIED]:
            carried = facts.of(CARRIED)
            messages = [carried, facts.of_messages(facts.of(*REPEATED_KINDS), carried)]
            fold = partial(fold_repeated, plan)
            results.append(facts.by_key(messages, ("node", "ref"), ("at",), fold, MESSAGE_COLUMNS))
        if joins_nodes:
            connections = [facts.chosen(sessions, CONNECTED)]
            by_time = ("time_ms", "node", "at")
            results.append(
                facts.by_key(connections, ("session",), by_time, fold_owners, OWNER_COLUMNS)
            )
        self._collect(facts, results)

    @staticmethod
    def _replays(facts: Facts, plan: AuditPlan, sessions: Any, released: Any) -> list[Any]:
        """Return the results for replays: their steps, and the messages that match."""
        steps = facts.chosen(sessions, READ)
        named = facts.each(steps, filters_of, FILTER_COLUMNS, FILTER_COLUMNS)
        filters = sorted(set(facts.rows([named], "node", "topic")))
        if not filters:
            return []
        columns = READ_COLUMNS, READ_COLUMNS
        effects = [facts.of(EFFECT)]
        if released is not None:
            effects.append(facts.chosen(released, EFFECT))
        fold = partial(matching_messages, filters)
        tables = [steps, *(facts.each(effect, fold, *columns) for effect in effects)]
        fold = partial(fold_replays, plan, filters)
        return [facts.by_key(tables, ("node",), ("at", "kind"), fold, READ_COLUMNS)]

    # Results.

    def _add(self, violation: Violation, count: int) -> None:
        self._violations.append(violation)
        self._counts[violation.rule] += count

    def _collect(self, facts: Facts, results: Sequence[Any]) -> None:
        """Add the totals and the violations of folds."""
        unexpected: list[Violation] = []
        for kind, node, session, at, rule, ref, what, _, _, data in facts.results(results):
            if kind == TOTALS:
                self._totals.merge(orjson.loads(bytes(data)))
            elif kind == VIOLATION:
                violation = Violation(rule, at, what, ref, session, node)
                (unexpected if rule == UNEXPECTED else self._violations).append(violation)
        for name, count in self._totals.counts.items():
            rule = name.removeprefix("wrong ")
            if rule != name and rule != UNEXPECTED:
                self._counts[rule] += count
        if unexpected:
            self._classify(facts, unexpected)

    def _classify(self, facts: Facts, unexpected: list[Violation]) -> None:
        """Assign unexpected deliveries to rules; further ones count for the most frequent rule."""
        unexpected.sort(key=lambda violation: (violation.node, violation.at))
        first = unexpected[:MAX_VIOLATIONS]
        deliveries = [
            (violation.node, violation.session or "", violation.ref or 0, violation.at)
            for violation in first
        ]
        fold = partial(evidence_of, {delivery[:3] for delivery in deliveries})
        kinds = facts.of(*EVIDENCE_KINDS)
        evidence = facts.each(kinds, fold, UNEXPECTED_COLUMNS, EVIDENCE_COLUMNS)
        rules: Counter[str] = Counter()
        classes = classify(deliveries, facts.rows([evidence], *EVIDENCE_COLUMNS))
        for violation, (rule, what) in zip(first, classes, strict=True):
            rules[rule] += 1
            self._add(violation._replace(rule=rule, what=what, ref=None), 1)
        usual = rules.most_common(1)[0][0]
        self._counts[usual] += self._totals.counts[f"wrong {UNEXPECTED}"] - len(first)

    def _first(self) -> tuple[Violation, ...]:
        """Return the first violations of each rule, in order."""
        order: dict[str, int] = {rule: number for number, rule in enumerate(RULES)}
        first: list[Violation] = []
        seen: Counter[str] = Counter()
        place = attrgetter("node", "at")
        by_place = sorted(self._violations, key=lambda entry: (entry.session or "", entry.what))
        by_place.sort(key=lambda entry: (order[entry.rule], *place(entry)))
        for violation in by_place:
            seen[violation.rule] += 1
            if seen[violation.rule] <= MAX_VIOLATIONS:
                first.append(violation._replace(ref=None))
        return tuple(first)

    def _make_outcome(self, notes: Sequence[LogNote], summaries: LogSummaries) -> Outcome:
        rates, interval_ms = merge_rates(
            (note.node, note.values) for note in notes if note.about == RATES
        )
        totals = self._totals
        compared = compared_claims(self._claims or ())
        return Outcome(
            nodes=tuple(summaries.nodes),
            rules=rule_results(
                summaries.nodes,
                totals,
                self._counts,
                checkpoints=summaries.checkpoints,
                claims=self._claims is not None,
                retained_claims=sum(comparison.retained for comparison in compared)
                - totals.counts["retained claims beyond"],
                owed=sum(comparison.due for comparison in self._compared),
                copies=sum(comparison.compared for comparison in self._compared),
            ),
            violations=self._first(),
            rates=rates,
            interval_ms=interval_ms,
            latencies=latencies(totals),
            slowest=slowest(totals),
            drops=drops((note.node, note.values) for note in notes if note.about == DROPS),
            compared=compared,
            seconds=0,
            notes=(*summaries.remarks, *self._remarks()),
            recoveries=tuple(self._recoveries(summaries)) if self._recovery else (),
        )

    def _recoveries(self, summaries: LogSummaries) -> Iterator[NodeRecovery]:
        """Yield what each broker recovered at its last start."""
        names = [number.name for number in fields(NodeRecovery)[2:]]
        for node in summaries.nodes:
            counts = {name: self._totals.counts[f"recovered {name} {node.node}"] for name in names}
            yield NodeRecovery(node, summaries.logs[node.node].start, **counts)

    def _remarks(self) -> list[str]:
        remarks = [remark for comparison in self._compared for remark in comparison.remarks()]
        for count, what in (
            ("claims beyond", "sessions"),
            ("retained claims beyond", "retained messages"),
        ):
            beyond = self._totals.counts[count]
            if beyond:
                remarks.append(
                    f"{beyond:,} claims about {what} are of a time for which the log is incomplete"
                )
        unknown = self._totals.counts[f"cases {UNKNOWN_LIMITS}"]
        if unknown:
            remarks.append(
                f"{unknown:,} drops are not compared with a limit: the log does not say which one "
                "applied"
            )
        return remarks


# ------------------------------------------------------------------------------------ claims


def claim_rows(claims: Iterable[StateClaim]) -> list[Row]:
    """Return claims about sessions and retained messages as facts."""
    rows: list[Row] = []
    for claim in claims:
        content = claim.bound, claim.where, claim.digest
        if claim.kind == SESSION_CLAIM:
            rows.append((CLAIMED_SESSION, claim.node, claim.name, None, *content))
        elif claim.kind == RETAINED_CLAIM:
            rows.append((CLAIMED_TOPIC, claim.node, None, claim.name, *content))
    return rows


def compared_claims(claims: Iterable[StateClaim]) -> tuple[ClaimsCompared, ...]:
    """Return the number of claims by source and node, and their last position."""
    sums: dict[tuple[str, str], list[int]] = {}
    for claim in claims:
        counts = sums.setdefault((claim.where, claim.node), [0, 0, 0])
        exists = claim.digest is not None
        counts[0] += exists and claim.kind == SESSION_CLAIM
        counts[1] += exists and claim.kind == RETAINED_CLAIM
        counts[2] = max(counts[2], claim.bound)
    return tuple(ClaimsCompared(*key, *counts) for key, counts in sorted(sums.items()))


def complete_claims(claims: Iterable[StateClaim]) -> dict[str, list[tuple[Position, str]]]:
    """Return the positions where the claims of each node are complete: (bound, source)."""
    complete: dict[str, list[tuple[Position, str]]] = {}
    for node, bound, where in sorted(
        {(claim.node, claim.bound, claim.where) for claim in claims if claim.kind == ALL_CLAIM}
    ):
        complete.setdefault(node, []).append((bound, where))
    return complete
