"""Retained messages due to subscribers, and the violations sent to the driver: hand-made tables."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

from protocol.mqtt.topics import matches
from spark.jobs.audit_outcome import MAX_VIOLATIONS
from spark.jobs.fact_schema import DDL, GRANT, RETAINED, SET
from spark.jobs.fact_tables import FactTables
from spark.jobs.log_summary import BEYOND_ALL, LogSummary
from spark.jobs.pipeline import _rows_for_driver
from spark.jobs.retained_rules import _asked, _periods, expected_retained, retained_intervals
from spark.jobs.session_result_rows import NEEDED, OF_RESULTS, TOTALS, VIOLATION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMES = [name.split()[0] for name in DDL.split(", ")]
TOPICS = ("a", "a/b", "a/c", "b", "b/c/d", "$x")
FILTERS = ("a", "a/#", "#", "+/c", "b/+/d", "nothing", "+")
NODES = ("one", "two")
Row = dict[str, Any]


def facts_of(rows: list[Row], spark: SparkSession) -> FactTables:
    table = spark.createDataFrame([tuple(row.get(name) for name in NAMES) for row in rows], DDL)
    wild = {node: [one for one in FILTERS if "+" in one or "#" in one] for node in NODES}
    return FactTables(table, table, Counter(row["kind"] for row in rows), wild)


def history(chance: random.Random) -> list[Row]:
    """Things retained at any QoS, cleared, and granted, in any order."""
    rows: list[Row] = []
    for at in range(10, 600):
        node = chance.choice(NODES)
        if chance.random() < 0.6:
            qos, there = chance.choice([0, 1, 2]), chance.random() < 0.6
            rows.append(
                {
                    "kind": RETAINED, "node": node, "topic": chance.choice(TOPICS), "at": at,
                    "ref": at, "number": SET + 4 * qos, "digest": str(at) if there else "",
                }
            )  # fmt: skip
        else:
            rows.append(
                {
                    "kind": GRANT, "node": node, "topic": chance.choice(FILTERS), "at": at,
                    "session": f"s{at % 7}", "number": 1,
                }
            )  # fmt: skip
    return rows


def known(rows: list[Row], whole: int) -> list[tuple[Any, ...]]:
    """Node, session, position, message and filter of each message that must be sent."""
    found, last = [], {}
    for row in rows:
        if row["kind"] == RETAINED:
            last[row["node"], row["topic"]] = row
        elif row["at"] >= whole:
            found += [
                (row["node"], row["session"], row["at"], one["ref"], row["topic"])
                for (node, topic), one in last.items()
                if node == row["node"] and one["digest"] and one["number"] >> 2
                if matches(row["topic"], topic)
            ]
    return sorted(found)


def test_messages_retained_at_the_grant_must_be_sent(spark: SparkSession) -> None:
    rows = history(random.Random(3))
    facts = facts_of(rows, spark)
    logs = {node: LogSummary(node, 0, 600, 0, 100, BEYOND_ALL, BEYOND_ALL) for node in NODES}
    held = retained_intervals(facts, None, {}).persist()
    found = sorted(map(tuple, expected_retained(facts, held, logs).collect()))
    assert found == known(rows, 100)
    assert len(found) > 100
    # Grants are not compared with what was not there then: not one row more is made of them.
    grants = facts.of(GRANT).selectExpr("node", "session", "at", "topic as filter")
    assert _asked(grants, _periods(held), facts.wild).count() == len(known(rows, 0))
    held.unpersist()


def result(kind: str, rule: str | None, node: str, at: int) -> tuple[Any, ...]:
    return (kind, node, "s", at, rule, None, None, None, None)


def test_the_driver_gets_the_first_of_many_violations(spark: SparkSession) -> None:
    def many() -> DataFrame:
        places = [(node, at) for at in range(MAX_VIOLATIONS) for node in ("b", "a")]
        rows = [result(VIOLATION, "order", *place) for place in places]
        rows += [result(VIOLATION, "queue", "b", 7), result(NEEDED, None, "b", 8)]
        rows += [result(TOTALS, None, "", 0) for _ in range(MAX_VIOLATIONS + 5)]
        return spark.createDataFrame(rows, OF_RESULTS)

    told = _rows_for_driver(many(), 100).collect()
    counts = Counter((row["kind"], row["rule"]) for row in told)
    assert counts == {
        (VIOLATION, "order"): MAX_VIOLATIONS,
        (VIOLATION, "queue"): 1,
        (TOTALS, None): MAX_VIOLATIONS + 5,
    }
    first = {(row["node"], row["at"]) for row in told if row["rule"] == "order"}
    assert first == {("a", at) for at in range(MAX_VIOLATIONS)}


def test_the_driver_gets_all_violations_of_few_tasks(spark: SparkSession) -> None:
    rows = [result(VIOLATION, "order", "a", 1), result(NEEDED, None, "a", 2)]
    rows += [result(TOTALS, None, "", 0)]
    told = _rows_for_driver(spark.createDataFrame(rows, OF_RESULTS), 1).collect()
    assert Counter(row["kind"] for row in told) == {VIOLATION: 1, TOTALS: 1}
