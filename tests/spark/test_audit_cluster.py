"""Several nodes as one cluster: a session belongs to one of them at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from brokenlogs import at, closed, opened
from harness.logs import LogBuilder
from harness.nats import Nats, access
from holedlogs import lacking

from eventstore.format.node_events import BrokerStarted
from projections.audit.rule_table import Rule
from spark.jobs.pipeline import NOTHING, SMALL, LocalLimits, audit
from spark.tables.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGAN = 1_750_000_000_000


def node(name: str, *times: tuple[str, int, int | None]) -> LogBuilder:
    """A log in which sessions connect and disconnect; times are seconds, None: to the end."""
    log = LogBuilder(name, begin_ms=BEGAN)
    log.record(BrokerStarted("0.1"))
    steps = []
    seen: dict[str, int] = {}
    for session, begin, end in times:
        generation = seen[session] = seen.get(session, 0) + 1
        steps.append((begin, opened(session, resumed=generation > 1, generation=generation)))
        if end is not None:
            steps.append((end, closed(session, generation)))
    for second, event in sorted(steps, key=lambda step: step[0]):
        log.record(event, time_ms=BEGAN + 1000 * second)
    log.record(BrokerStarted("0.1"), time_ms=BEGAN + 1000 * 100)
    return log


@pytest.fixture(scope="module")
def log(spark: SparkSession, nats: Nats) -> Log:
    logs = [
        # One after the other, within what clocks may differ, and in both at once.
        node("west", ("moves", 10, 20), ("near", 10, 30), ("both", 10, 40), ("back", 10, 20),
             ("stays", 5, None), ("back", 40, 50), ("own", 1, 2)),
        node("east", ("moves", 20, 30), ("near", 29, 35), ("both", 30, 50), ("back", 25, 35),
             ("stays", 90, 95)),
    ]  # fmt: skip
    for one in logs:
        one.store(nats)
    return Log(spark, {**access(nats), "stream": ",".join(one.stream for one in logs)})


@pytest.mark.parametrize("limits", [NOTHING, SMALL], ids=["in Spark", "without Spark"])
def test_two_nodes_at_once(log: Log, limits: LocalLimits) -> None:
    found = audit(log, local=limits).violations
    assert {(one.rule, one.node, one.session) for one in found} == {
        (Rule.OWNERSHIP, "east", "both"),
        (Rule.OWNERSHIP, "east", "stays"),
    }
    assert len(found) == 2
    both = next(one for one in found if one.session == "both")
    assert both.at == at(6)
    assert both.what == "connected while it had a connection to node west, since 7.0"


@pytest.mark.parametrize("limits", [NOTHING, SMALL], ids=["in Spark", "without Spark"])
def test_a_connection_may_have_ended_in_lost_records(
    spark: SparkSession, nats: Nats, limits: LocalLimits
) -> None:
    name = f"lacks{limits.log_bytes}"
    west = lacking(node(name, ("moved", 10, 20), ("both", 30, 70), ("late", 35, 60)), 3)
    east = node(f"{name}e", ("moved", 25, 80), ("both", 40, 50))
    logs = [log.store(nats) for log in (west, east)]
    log = Log(spark, {**access(nats), "stream": ",".join(one.stream for one in logs)})
    found = audit(log, local=limits).violations
    assert [(one.rule, one.node, one.session) for one in found] == [
        (Rule.OWNERSHIP, east.node, "both")
    ]


def test_nodes_that_are_no_cluster(log: Log) -> None:
    assert audit(log, cluster=False).kept
