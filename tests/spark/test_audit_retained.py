"""Retained messages due to subscribers, and the violations that reach the driver: made by hand."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from projections.audit.audit_outcome import MAX_VIOLATIONS
from projections.audit.audit_results import RESULT_COLUMNS, AuditPlan
from projections.audit.facts import GRANT, NEEDED, OWED, RETAINED, SET, TOTALS, VIOLATION
from projections.audit.log_summary import BEYOND_ALL, Checkpoint, LogSummary, RecordedCut
from projections.audit.retained_audit import RETAINED_COLUMNS, fold_retained
from protocol.mqtt.topics import matches
from spark.jobs.fact_schema import DDL
from spark.jobs.fact_tables import FactTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS = ("a", "a/b", "a/c", "b", "b/c/d", "$x")
FILTERS = ("a", "a/#", "#", "+/c", "b/+/d", "nothing", "+")
NODES = ("one", "two")
Row = dict[str, Any]


def history(chance: random.Random) -> list[Row]:
    """Things retained at any QoS, cleared, and granted, in any order."""
    rows: list[Row] = []
    for at in range(10, 600):
        node = chance.choice(NODES)
        row: Row = {"node": node, "at": at, "time_ms": 0, "expires": 0, "ref": at}
        if chance.random() < 0.6:
            qos, there = chance.choice([0, 1, 2]), chance.random() < 0.6
            row |= {"kind": RETAINED, "topic": chance.choice(TOPICS), "number": SET + 4 * qos}
            row["digest"] = str(at) if there else ""
        else:
            row |= {"kind": GRANT, "topic": chance.choice(FILTERS), "number": 1}
            row["session"] = f"s{at % 7}"
        rows.append(row)
    return rows


def folded(rows: Iterable[Row], **given: Any) -> list[Row]:
    """The results of the fold."""
    logs = {
        node: LogSummary(node, 0, 600, 0, 100, BEYOND_ALL, BEYOND_ALL, **given) for node in NODES
    }
    in_order = sorted(rows, key=lambda row: (row["node"], row["at"]))
    told = fold_retained(
        AuditPlan(logs), (tuple(map(row.get, RETAINED_COLUMNS)) for row in in_order)
    )
    return [dict(zip(RESULT_COLUMNS, row, strict=True)) for row in told]


def due(rows: list[Row], whole: int) -> list[tuple[Any, ...]]:
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


def test_messages_retained_at_the_grant_must_be_sent() -> None:
    rows = history(random.Random(3))
    found = [row for row in folded(rows) if row["kind"] == OWED]
    keys = ("node", "session", "at", "ref", "topic")
    assert sorted(tuple(row[key] for key in keys) for row in found) == due(rows, 100)
    assert len(found) > 100


def retained(rows: list[Row], node: str) -> list[tuple[int, int, int]]:
    """Position, end and message of all that was retained in a log."""
    told: list[tuple[int, int, int]] = []
    for topic in TOPICS:
        some = [
            row
            for row in rows
            if (row["kind"], row["node"], row["topic"]) == (RETAINED, node, topic)
        ]
        ends = [row["at"] for row in some[1:]] + [BEYOND_ALL]
        told += [
            (row["at"], end, row["ref"])
            for row, end in zip(some, ends, strict=True)
            if row["digest"]
        ]
    return told


@pytest.mark.parametrize("seed", range(10))
def test_marks_concern_what_is_retained_there(seed: int) -> None:
    """The first checkpoint behind a message must repeat it, and cuts need what they cut off."""
    chance = random.Random(seed)
    rows = [row for row in history(chance) if row["at"] % 5]  # the rest is for the marks
    places = sorted(chance.sample(range(100, 600, 5), 12))
    checkpoints = tuple(Checkpoint(*places[at : at + 2]) for at in range(0, 12, 2))
    cuts = tuple(
        RecordedCut(at, at - chance.randrange(40)) for at in chance.sample(range(100, 600, 5), 5)
    )
    found = folded(rows, checkpoints=checkpoints, cuts=cuts)
    lost, needed = Counter[Any](), Counter[Any]()
    for node in NODES:
        for at, until, ref in retained(rows, node):
            mark = next((one for one in checkpoints if one.begun > at), None)
            if mark is not None and until > mark.completed:
                lost[node, mark.completed] += 1
            needed.update((node, cut.at) for cut in cuts if at < cut.at < until and ref < cut.first)
    assert lost == Counter((row["node"], row["at"]) for row in found if row["kind"] == VIOLATION)
    assert needed == Counter(
        (row["node"], row["at"])
        for row in found
        if row["kind"] == NEEDED
        for _ in row["data"].split(b",")
    )
    assert lost
    assert needed


def result(kind: int, rule: str | None, node: str, at: int) -> tuple[Any, ...]:
    return (kind, node, "s", at, rule, None, None, None, None, None)


@pytest.mark.parametrize("tasks", [1, 100])
def test_the_driver_gets_the_first_violations(spark: SparkSession, tasks: int) -> None:
    """All of few tasks, for each keeps that many, else those that are shown."""
    places = [(node, at) for at in range(MAX_VIOLATIONS) for node in ("b", "a")]
    rows = [result(VIOLATION, "order", *place) for place in places]
    rows += [result(VIOLATION, "queue", "b", 7), result(NEEDED, None, "b", 8)]
    rows += [result(TOTALS, None, "", 0) for _ in range(MAX_VIOLATIONS + 5)]
    with ExitStack() as kept:
        facts = FactTables(spark.createDataFrame([], DDL), tasks, kept)
        table = facts.made(RESULT_COLUMNS, rows)
        told = [dict(zip(RESULT_COLUMNS, row, strict=True)) for row in facts.results([table])]
    many = MAX_VIOLATIONS * (2 if tasks == 1 else 1)
    assert Counter((row["kind"], row["topic"]) for row in told) == {
        (VIOLATION, "order"): many,
        (VIOLATION, "queue"): 1,
        (TOTALS, None): MAX_VIOLATIONS + 5,
    }
    if tasks > 1:
        first = {(row["node"], row["at"]) for row in told if row["topic"] == "order"}
        assert first == {("a", at) for at in range(MAX_VIOLATIONS)}
