"""Logs of the generator: no findings, however they are cut into tasks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from harness.logs import LogBuilder
from harness.nats import Nats, access

from bench.logs.log_generator import Plan, Written, records
from eventstore.format.event_parsing import entries
from eventstore.format.events import Acked, Completed, Delivered, MessageDropped, MessagePublished
from eventstore.format.records import decode_record
from projections.audit.audit_outcome import Outcome
from spark.jobs.pipeline import NOTHING, audit
from spark.tables.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLANS = (
    Plan(6000, "single", clients=60, node="single"),
    Plan(20_000, "bulk", clients=60, node="bulk"),
    Plan(12_000, "mixed", clients=60, node="mixed"),
    # Nearly all of it in one session.
    Plan(6000, "mixed", clients=2, node="skewed"),
)


class Generated:
    """The log of a plan, and the expected result."""

    def __init__(self, plan: Plan) -> None:
        self.written = Written()
        self.log = LogBuilder(plan.node)
        self.log.records = list(records(plan, self.written))
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        held: list[list[object]] = []
        for sequence, data in enumerate(self.log.records, 1):
            record = decode_record(sequence, data)
            if record.part == 0:
                held = []
            held.append([event for _, event in record.events()])
            if record.last:
                for event in (event for part in held for event in part):
                    self._count(event)
                held = []

    def _count(self, event: object) -> None:
        if isinstance(event, MessagePublished):
            self.counts["published"] += event.count
        elif isinstance(event, Delivered):
            self.counts["delivered"] += entries(event)
        elif isinstance(event, Acked | Completed):
            self.counts["completed"] += entries(event)
        elif isinstance(event, MessageDropped):
            self.counts["dropped"] += event.count
            self.reasons[event.reason] += event.count


@pytest.fixture(scope="module")
def logs(nats: Nats) -> list[Generated]:
    made = [Generated(plan) for plan in PLANS]
    for one in made:
        one.log.store(nats)
    return made


def audited(spark: SparkSession, nats: Nats, logs: list[Generated], **options: str) -> Outcome:
    streams = ",".join(one.log.stream for one in logs)
    log = Log(spark, {**access(nats), "stream": streams, **options})
    return audit(log, cluster=False, local=NOTHING)


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, nats: Nats, logs: list[Generated]) -> Outcome:
    """Messages are released, and parts of turns stand, in other tasks than what they belong to."""
    return audited(spark, nats, logs, partitions="12")


def test_no_guarantee_is_violated(outcome: Outcome) -> None:
    assert outcome.violations == ()
    assert outcome.kept
    assert outcome.notes == ()


def test_the_counts_are_correct(outcome: Outcome, logs: list[Generated]) -> None:
    nodes = {one.node: one for one in outcome.nodes}
    for one in logs:
        node = nodes[one.log.node]
        assert (node.first, node.last, node.records) == (1, one.log.last, one.log.last)
        assert (node.entries, node.events) == (one.written.entries, one.written.events)
        assert node.bytes == one.written.bytes
        points = [point for point in outcome.rates if point.node == one.log.node]
        for name in ("published", "delivered", "completed", "dropped"):
            assert sum(getattr(point, name) for point in points) == one.counts[name]
        drops = {drop.reason: drop.count for drop in outcome.drops if drop.node == one.log.node}
        assert drops == dict(one.reasons)
    assert any(one.reasons for one in logs)


def test_latencies_are_reported(outcome: Outcome) -> None:
    assert [latency.qos for latency in outcome.latencies] == [1, 2]
    for latency in outcome.latencies:
        assert 0 < latency.p50_ms <= latency.p99_ms <= latency.max_ms
        assert sum(latency.counts) > 50
        assert latency.max_ms < latency.bounds_ms[-1]
    slowest = [one.p99_ms for one in outcome.slowest]
    assert slowest == sorted(slowest, reverse=True)
    assert max(one.max_ms for one in outcome.slowest) == max(
        latency.max_ms for latency in outcome.latencies
    )


@pytest.mark.long
def test_the_number_of_tasks_does_not_matter(
    spark: SparkSession, nats: Nats, logs: list[Generated], outcome: Outcome
) -> None:
    together = audited(spark, nats, logs)
    assert together.rules == outcome.rules
    assert replace(together, seconds=0) == replace(outcome, seconds=0)
