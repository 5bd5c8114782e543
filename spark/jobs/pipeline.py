"""Audits logs: checks that a broker kept the guarantees of MQTT, and has the state of its log."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import orjson
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from eventstore.display import name as shown
from projections.audit.drop_rules import UNKNOWN_LIMITS
from projections.audit.rule_table import RULES, UNEXPECTED, Violation
from spark.jobs import retained_rules, state_claims, statistics
from spark.jobs.audit_outcome import MAX_VIOLATIONS, SESSION_CLAIM, Outcome, StateClaim
from spark.jobs.broker_logs import find_brokers
from spark.jobs.chain_check import COUNTS, DROPS, FILTERS, RATES, SHARED_THERE, LogNote
from spark.jobs.checkpoint_rules import (
    find_changed_repetitions,
    find_missing_repetitions,
    find_unknown_repetitions,
)
from spark.jobs.duplicate_rule import classify_unexpected
from spark.jobs.expected_deliveries import (
    expected_deliveries_of,
    expected_of_few,
    few_subscription_spans,
    position_of,
    published_messages,
    subscription_spans,
)
from spark.jobs.fact_schema import (
    CARRIED,
    EFFECT,
    EVENTS,
    FEW,
    GRANT,
    NODE,
    RELEASED,
    REPLAY,
    RETAINED,
    SPANS,
)
from spark.jobs.fact_source import facts_of, read_facts
from spark.jobs.fact_tables import FactTables
from spark.jobs.histogram import merge_rates
from spark.jobs.local_facts import LOCAL_BYTES, NOTHING, SMALL, LocalFacts, LocalLimits
from spark.jobs.local_repetitions import (
    changed_repetitions,
    classify_local_copies,
    double_owners,
    missing_repetitions,
)
from spark.jobs.local_retained import (
    claim_violations,
    history_violations,
    replay_violations,
    required_replays,
    retained_history,
)
from spark.jobs.local_sessions import TooManyDeliveries, audit_local_sessions
from spark.jobs.log_comparison import Compared, compare_in_spark, compare_logs, readable
from spark.jobs.log_summary import BEYOND_ALL, LogSummaries, summarize_logs
from spark.jobs.ownership_rule import find_double_owners
from spark.jobs.session_audit_task import COLUMNS, SessionPlan, audit_sessions
from spark.jobs.session_checker import CLAIMED, EXPECTED, HAPPENED, OWED, session_marks
from spark.jobs.session_result_rows import OF_RESULTS, TOTALS, VIOLATION, AuditTotals
from spark.jobs.shared_rules import audit_shared
from spark.tables.node_names import check_claimed_nodes
from spark.tables.planning import bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from eventstore.format.positions import Position
    from spark.jobs.audit_outcome import ClaimsCompared
    from spark.jobs.broker_logs import BrokerLogs
    from spark.jobs.expected_deliveries import PublishedMessages
    from spark.jobs.log_summary import LogSummary
    from spark.tables.log import Log

_Classify: TypeAlias = "Callable[[Sequence[Any]], list[tuple[str, str]]]"
"""Returns (rule, what) for rows of unexpected deliveries."""

_FEW_TASKS: Final = 4
"""Maximum tasks of which the driver takes all violations that they keep."""


def audit(
    log: Log,
    claims: Iterable[StateClaim] | DataFrame | None = None,
    *,
    cluster: bool = True,
    progress: Callable[[str], object] | None = None,
    local: LocalLimits = SMALL,
) -> Outcome:
    """Check all guarantees over whole logs, and claims about their state; return the outcome.

    ``cluster``: several nodes form one cluster, so that a session may belong to one of them at a
    time. ``progress`` is called with the next step, in a few words. Logs within ``local`` are read
    and audited in the memory of this process, without Spark.

    The log is read once, up to its current end; derived data is kept on the disks of Spark until
    this returns. Raises the errors of reading a log (see
    ``spark.runtime.marked_errors.find_error``), and BadOption for claims about nodes whose logs are
    not read.
    """
    if claims is not None and not isinstance(claims, DataFrame):
        claims = list(claims)
    with ExitStack() as kept:
        tell = progress or _silent
        try:
            return _Audit(log, claims, kept, tell, local, cluster=cluster).outcome()
        except TooManyDeliveries:
            return _Audit(log, claims, kept, tell, NOTHING, cluster=cluster).outcome()


def _silent(_doing: str) -> None:
    """Show nothing."""


@dataclass(slots=True)
class _Violations:
    """Violations; those beyond a limit are only counted."""

    kept: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, violation: Violation, count: int = 1) -> None:
        self.kept.append(violation)
        self.counts[violation.rule] += count

    def take(self, violations: Iterable[Violation], counts: Mapping[str, int]) -> None:
        """Add some violations, and the number of all."""
        self.kept += violations
        self.counts.update(counts)

    def first(self) -> tuple[Violation, ...]:
        """Return the first violations of each rule, in order."""
        order: dict[str, int] = {rule: number for number, rule in enumerate(RULES)}
        found: list[Violation] = []
        seen: Counter[str] = Counter()
        for one in sorted(self.kept, key=lambda one: (order[one.rule], one.node, one.at)):
            seen[one.rule] += 1
            if seen[one.rule] <= MAX_VIOLATIONS:
                found.append(one)
        return tuple(found)


class _Audit:
    """One audit, step by step."""

    def __init__(
        self,
        log: Log,
        claims: Iterable[StateClaim] | DataFrame | None,
        kept: ExitStack,
        progress: Callable[[str], object],
        local: LocalLimits,
        *,
        cluster: bool,
    ) -> None:
        self._started = time.monotonic()
        self._log = log
        self._keeping = kept
        self._report = progress
        self._local = local
        self._cluster = cluster
        self._claimed = state_claims.claims_in_memory(claims)
        """Claims that are in the memory of the driver; None: there are none, or they are a
        table."""
        self._claims = state_claims.claims_in_table(claims)
        self._compared: tuple[ClaimsCompared, ...] = ()
        self._complete: dict[str, list[tuple[Position, str]]] = {}
        self._wrong = _Violations()
        self._totals = AuditTotals()
        self._tasks = 1
        """Number of partitions of shuffles."""
        self._shared = False
        """Whether there are shared subscriptions."""
        self._retained = 0
        """Number of changes and repetitions of retained messages."""
        self._allowed: int | None = None
        """Bytes of memory that an audit in this process may take; None: any number."""
        self._trusted = True
        """Whether all facts are audited."""
        self._brokers: list[BrokerLogs] = []
        """Brokers that have several logs."""
        self._compared_logs: list[Compared] = []
        """What was found between their logs."""

    def outcome(self) -> Outcome:
        """Run the audit and return its outcome."""
        if self._claimed is not None or self._claims is not None:
            self._report("looking at what is claimed")
            self._look_at_claims()
            check_claimed_nodes({one.node for one in self._compared}, self._log.bounds())
        self._report("reading the log")
        ranges = self._log.ranges()
        local = self._read_here(sum(map(bytes_of, ranges)))
        facts = few = None
        if local is not None:
            notes = local.notes()
        else:
            self._tasks = self._log.fit_shuffles(ranges)
            facts = self._keep(facts_of(self._log))
            few = self._keep(facts.where(F.col("kind").isin(*FEW)))
            # Both are made as soon as rows of the smaller one are requested.
            rows = few.where(F.col("kind") == NODE).select("node", "at", "data").collect()
            notes = [LogNote.read(row["node"], row["at"], bytes(row["data"])) for row in rows]
        counts: Counter[int] = Counter()
        for note in notes:
            if note.about == COUNTS:
                counts.update({int(kind): count for kind, count in note.values.items()})
        found = summarize_logs(notes)
        for node, (rule, at, what) in found.breaks:
            self._wrong.add(Violation(rule, at, what, node=node))
        if found.logs:
            self._shared = any(note.about == SHARED_THERE for note in notes)
            self._brokers, remarks = find_brokers(found.logs)
            found.remarks += remarks
            wild = _filters_of(notes)
            if local is not None:
                self._audit_small(local.trusted(found.logs), found)
            elif facts is not None and few is not None:
                self._trusted = all(log.trusted == BEYOND_ALL for log in found.logs.values())
                if not self._trusted:
                    trusted = F.col("at") < position_of("trusted", found.logs)
                    facts, few = facts.where(trusted), few.where(trusted)
                self._audit(FactTables(facts, few, counts, wild), found)
            self._compare_logs(here=local is not None)
        return self._make_outcome(notes, found, counts)

    def _read_here(self, size: int) -> LocalFacts | None:
        """Return the facts of a log of a size if it is audited in this process."""
        if size > self._local.log_bytes:
            return None
        self._allowed = None if size <= LOCAL_BYTES else self._local.memory
        found = read_facts(self._log, self._allowed)
        return None if found is None else LocalFacts(found)

    def _look_at_claims(self) -> None:
        if self._claimed is not None:
            self._compared = state_claims.compared_claims(self._claimed)
            self._complete = state_claims.complete_claims(self._claimed)
        elif self._claims is not None:
            self._compared = state_claims.compared_in_table(self._claims)
            self._complete = state_claims.complete_in_table(self._claims)

    def _compare_logs(self, *, here: bool) -> None:
        """Compare the logs of brokers that have several; ``here``: in this process."""
        brokers = [one.names for one in self._brokers if one.whole]
        if not brokers:
            return
        self._report("comparing the logs with each other")
        logs = readable(self._log)
        sets = [{name: logs[name] for name in names} for names in brokers]
        if here:
            self._compared_logs += [compare_logs(name, some) for some in sets for name in some]
        else:
            self._compared_logs += compare_in_spark(self._log.spark, sets)
        for one in self._compared_logs:
            self._wrong.take(one.violations, one.counts)

    def _keep(self, table: DataFrame) -> DataFrame:
        """Persist a table that is read more than once."""
        table.persist(StorageLevel.DISK_ONLY)
        self._keeping.callback(table.unpersist)
        return table

    def _audit_small(self, facts: LocalFacts, found: LogSummaries) -> None:
        """Audit logs whose facts are in the memory of this process."""
        logs = found.logs
        if self._claims is not None:
            self._claimed = [StateClaim(*row) for row in self._claims.collect()]
        history = retained_history(facts, logs)
        self._retained = sum(map(len, history.values()))
        self._report("auditing sessions")
        owed = required_replays(facts, history, logs)
        results = audit_local_sessions(
            self._plan(logs), facts, owed, self._claimed or (), self._allowed
        )
        self._take_results(results.to_pylist(), partial(classify_local_copies, facts))
        self._report("auditing what is retained and repeated")
        for one in chain(
            missing_repetitions(facts, results, history, logs),
            changed_repetitions(facts, logs),
            double_owners(results) if self._joins_nodes(logs) else (),
            history_violations(history, logs),
            replay_violations(facts, history, logs),
            claim_violations(self._claimed or (), history, logs, self._complete),
        ):
            self._wrong.add(one)

    def _audit(self, facts: FactTables, found: LogSummaries) -> None:
        logs = found.logs
        if self._claimed is not None:
            self._claims = state_claims.claim_table_of(self._log.spark, self._claimed)
        messages = published_messages(facts)
        held = None
        if facts.has(RETAINED) or messages.released is not None or self._claims is not None:
            held = self._keep(retained_rules.retained_intervals(facts, messages.released, logs))
        self._report("auditing sessions")
        results = self._sessions(facts, messages, held, found)
        self._report("auditing what is retained and repeated")
        self._natively(facts, held, results, logs)
        whole = not any(log.outline.holes for log in logs.values())
        if messages.released is None and self._trusted and whole:
            self._retained = facts.counts.get(RETAINED, 0)
        elif held is not None:
            self._retained = held.count()

    # Sessions.

    def _sessions(
        self,
        facts: FactTables,
        messages: PublishedMessages,
        held: DataFrame | None,
        found: LogSummaries,
    ) -> DataFrame:
        logs = found.logs
        tasks = self._tasks
        rows = [_row(facts.of(EVENTS), HAPPENED)]
        if facts.has(SPANS) and (facts.has(EFFECT) or facts.has(RELEASED)):
            rows.append(_row(self._expected(facts, messages, logs), EXPECTED))
        if held is not None and facts.has(GRANT):
            rows.append(_row(retained_rules.expected_retained(facts, held, logs), OWED))
        if self._claims is not None:
            rows.append(_row(self._claims_of_sessions(self._claims, logs), CLAIMED))
        results = (
            reduce(lambda one, other: one.unionByName(other), rows)
            .repartition(tasks, "node", "session")
            .sortWithinPartitions("node", "session", "at", "rank")
            .mapInArrow(partial(audit_sessions, self._plan(logs)), OF_RESULTS)
        )
        if self._shared or self._joins_nodes(logs) or any(log.cuts for log in logs.values()):
            results = self._keep(results)
        told = results
        if self._shared:
            told = results.unionByName(audit_shared(results, logs, tasks))
        self._take_results(
            _rows_for_driver(told, tasks).collect(), partial(classify_unexpected, facts)
        )
        return results

    def _joins_nodes(self, logs: Mapping[str, LogSummary]) -> bool:
        """Return whether the connections to several nodes are compared."""
        return self._cluster and len(logs) > 1

    def _plan(self, logs: Mapping[str, LogSummary]) -> SessionPlan:
        marks = {
            node: session_marks(log, self._complete.get(node, ())) for node, log in logs.items()
        }
        places = {name: at for one in self._brokers for name, at in one.places().items()}
        return SessionPlan(logs, marks, self._joins_nodes(logs), places)

    def _take_results(self, rows: Iterable[Any], classify: _Classify) -> None:
        """Take the totals and the violations of the sessions."""
        unexpected = []
        for row in rows:
            if row["kind"] == TOTALS:
                self._totals.merge(orjson.loads(bytes(row["data"])))
            elif row["kind"] != VIOLATION:
                continue
            elif row["rule"] == UNEXPECTED:
                unexpected.append(row)
            else:
                one = Violation(
                    row["rule"], row["at"], row["what"], session=row["session"], node=row["node"]
                )
                self._wrong.add(one, 0)
        self._count_wrong()
        if unexpected:
            self._take_unexpected(unexpected, classify)

    def _expected(
        self, facts: FactTables, messages: PublishedMessages, logs: Mapping[str, LogSummary]
    ) -> DataFrame:
        """Return the messages that sessions must or may get."""
        few = few_subscription_spans(facts, logs)
        if few is not None:
            return expected_of_few(messages.effects, few)
        subscribed = self._keep(subscription_spans(facts, logs, self._tasks))
        return expected_deliveries_of(messages.effects, subscribed, facts.wild)

    def _claims_of_sessions(self, claims: DataFrame, logs: Mapping[str, LogSummary]) -> DataFrame:
        return claims.where(
            (F.col("kind") == SESSION_CLAIM) & F.col("node").isin(list(logs))
        ).select(
            "node",
            F.col("name").alias("session"),
            F.col("bound").alias("at"),
            F.col("where").alias("topic"),
            F.col("digest").cast("binary").alias("data"),
        )

    def _count_wrong(self) -> None:
        for what, count in self._totals.counts.items():
            rule = what.removeprefix("wrong ")
            if rule != what and rule != UNEXPECTED:
                self._wrong.counts[rule] += count

    def _take_unexpected(self, unexpected: list[Any], classify: _Classify) -> None:
        """Assign unexpected deliveries to rules; further ones count for the most frequent rule."""
        unexpected.sort(key=lambda row: (row["node"], row["at"]))
        some = unexpected[:MAX_VIOLATIONS]
        rules: Counter[str] = Counter()
        for row, (rule, what) in zip(some, classify(some), strict=True):
            rules[rule] += 1
            self._wrong.add(
                Violation(rule, row["at"], what, session=row["session"], node=row["node"])
            )
        usual = rules.most_common(1)[0][0]
        self._wrong.counts[usual] += self._totals.counts[f"wrong {UNEXPECTED}"] - len(some)

    # Other rules.

    def _natively(
        self,
        facts: FactTables,
        held: DataFrame | None,
        results: DataFrame,
        logs: Mapping[str, LogSummary],
    ) -> None:
        tables = [find_missing_repetitions(facts, results, held, logs)]
        if facts.has(CARRIED):
            tables.append(find_changed_repetitions(facts))
            tables.append(find_unknown_repetitions(facts, logs))
        if self._joins_nodes(logs):
            tables.append(find_double_owners(results))
        if held is not None:
            tables += [retained_rules.repeated(held, logs), retained_rules.not_repeated(held, logs)]
            tables.append(retained_rules.expired_early(held, logs))
            if facts.has(REPLAY):
                tables.append(retained_rules.replays(facts, held, logs))
            if self._claims is not None:
                tables.append(retained_rules.claims(self._claims, held, logs, self._complete))
        self._find_in(tables)

    def _find_in(self, tables: Iterable[DataFrame | None]) -> None:
        """Add the first violations in tables, and the number of all."""
        there = [table for table in tables if table is not None]
        if not there:
            return
        ordered = Window.partitionBy("rule").orderBy("node", "at")
        of_rule = Window.partitionBy("rule")
        rows = (
            reduce(lambda one, other: one.unionByName(other), there)
            .withColumn("number", F.row_number().over(ordered))
            .withColumn("count", F.count("*").over(of_rule))
            .where(F.col("number") <= MAX_VIOLATIONS)
            .collect()
        )
        for row in rows:
            what = row["what"]
            if row["topic"] is not None:
                what += f": topic {shown(row['topic'])}"
            one = Violation(row["rule"], row["at"], what, session=row["session"], node=row["node"])
            self._wrong.add(one, row["count"] if row["number"] == 1 else 0)

    # Outcome.

    def _make_outcome(
        self, notes: list[LogNote], found: LogSummaries, counts: Mapping[int, int]
    ) -> Outcome:
        rates, interval_ms = merge_rates(
            (note.node, note.values) for note in notes if note.about == RATES
        )
        totals = self._totals
        return Outcome(
            nodes=tuple(found.nodes),
            rules=statistics.rule_results(
                found.nodes,
                counts,
                totals,
                self._wrong.counts,
                checkpoints=found.checkpoints,
                retained=self._retained,
                claims=self._claimed is not None or self._claims is not None,
                retained_claims=sum(one.retained for one in self._compared),
                owed=sum(one.due for one in self._compared_logs),
                copies=sum(one.compared for one in self._compared_logs),
            ),
            violations=self._wrong.first(),
            rates=rates,
            interval_ms=interval_ms,
            latencies=statistics.latencies(totals),
            slowest=statistics.slowest(totals),
            drops=statistics.drops(
                (note.node, note.values) for note in notes if note.about == DROPS
            ),
            compared=self._compared,
            seconds=time.monotonic() - self._started,
            notes=(*found.remarks, *self._remarks()),
        )

    def _remarks(self) -> list[str]:
        beyond = self._totals.counts["claims beyond"]
        remarks = [remark for one in self._compared_logs for remark in one.remarks()]
        if beyond:
            remarks.append(
                f"{beyond:,} claims about sessions are of a time for which the log is incomplete"
            )
        unknown = self._totals.counts[f"cases {UNKNOWN_LIMITS}"]
        if unknown:
            remarks.append(
                f"{unknown:,} drops are not compared with a limit: the log does not say which one "
                "applied"
            )
        return remarks


def _filters_of(notes: Iterable[LogNote]) -> dict[str, set[str]]:
    """Return the filters with wildcards of each node."""
    found: dict[str, set[str]] = {}
    for note in notes:
        if note.about == FILTERS:
            found.setdefault(note.node, set()).update(note.values["filters"])
    return found


def _rows_for_driver(results: DataFrame, tasks: int) -> DataFrame:
    """Return the rows for the driver: totals, and the first violations of each rule.

    Each task keeps that many; those of many tasks are too many for one machine.
    """
    told = results.where(F.col("kind").isin(VIOLATION, TOTALS))
    if tasks <= _FEW_TASKS:
        return told
    ordered = Window.partitionBy("kind", "rule").orderBy("node", "at")
    return told.withColumn("number", F.row_number().over(ordered)).where(
        (F.col("kind") == TOTALS) | (F.col("number") <= MAX_VIOLATIONS)
    )


def _row(table: DataFrame, rank: int) -> DataFrame:
    """Return a table with the transferred columns; missing ones are null."""
    there = {*table.columns} - {"rank"}
    columns = [
        F.lit(rank).alias(name)
        if name == "rank"
        else F.col(name)
        if name in there
        else F.lit(None).cast(kind).alias(name)
        for name, kind in COLUMNS.items()
    ]
    return table.select(*columns)
