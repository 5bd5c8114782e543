"""Each promise: a log that breaks it, found with its position, and similar ones that keep it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from brokencauses import BROKEN_CAUSES, KEPT_CAUSES
from brokenlogs import BROKEN, KEPT, Case, at
from brokenmqtt5 import BROKEN_MQTT5, KEPT_MQTT5
from harness.nats import access
from harness.spark_plans import compiled

from projections.audit import RULES, Rule
from spark.audit import local_facts, local_sessions, pipeline
from spark.audit.facts.fact_schema import CARRIED, DDL, RELEASED, SCHEMA, SENT
from spark.audit.facts.fact_tables import FactTables
from spark.audit.local_facts import LOCAL_BYTES, NOTHING, SMALL, LocalLimits
from spark.audit.pipeline import audit
from spark.audit.sessions import expected_deliveries
from spark.audit.sessions.expected_deliveries import published_messages
from spark.datasource.log import Log

if TYPE_CHECKING:
    from harness.nats import Nats
    from pyspark.sql import SparkSession

    from spark.audit.facts.audit_outcome import Outcome

ALL_BROKEN = (*BROKEN, *BROKEN_MQTT5, *BROKEN_CAUSES)
ALL = (*ALL_BROKEN, *KEPT, *KEPT_MQTT5, *KEPT_CAUSES)
NAMES = [make.__name__ for make in ALL]


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {make.__name__: make(make.__name__) for make in ALL}


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, nats: Nats, cases: dict[str, Case]) -> Outcome:
    """All of them in one audit: each is the log of a node."""
    for case in cases.values():
        case.log.store(nats)
        if case.after is not None:
            case.after(nats)
    streams = ",".join(case.log.stream for case in cases.values())
    with compiled(spark):
        return audit(Log(spark, {**access(nats), "stream": streams}), cluster=False, local=NOTHING)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_broken_is_found(name: str, cases: dict[str, Case], outcome: Outcome) -> None:
    found = [(str(one.rule), one.at, one.session) for one in outcome.violations if one.node == name]
    assert sorted(found, key=str) == sorted(cases[name].expected, key=str)


def no_session() -> NoReturn:
    pytest.fail("a small log is audited without Spark")


@pytest.mark.parametrize(
    ("limits", "sorted_bytes"),
    [(NOTHING, 1), (SMALL, 1 << 30), (SMALL, 1)],
    ids=["in Spark", "here", "here, session by session"],
)
def test_another_way_to_the_outcome_finds_the_same(
    spark: SparkSession,
    nats: Nats,
    outcome: Outcome,
    monkeypatch: pytest.MonkeyPatch,
    limits: LocalLimits,
    sorted_bytes: int,
) -> None:
    """Spark's joins, for many subscriptions, and the memory of this process, for small logs."""
    monkeypatch.setattr(expected_deliveries, "FEW_SPANS", 0)
    monkeypatch.setattr(local_sessions, "_SORTED", sorted_bytes)
    streams = ",".join(f"FOLDMQ_LOG_{name}" for name in NAMES)
    log = Log(spark if limits == NOTHING else no_session, {**access(nats), "stream": streams})
    found = audit(log, cluster=False, local=limits)
    assert found.violations == outcome.violations
    assert found.rules == outcome.rules
    assert found.notes == outcome.notes
    assert found.latencies == outcome.latencies


@pytest.mark.parametrize(("memory", "here"), [(1 << 30, True), (1 << 10, False)])
def test_a_larger_log_is_audited_here_if_its_facts_fit_into_memory(
    spark: SparkSession,
    nats: Nats,
    outcome: Outcome,
    monkeypatch: pytest.MonkeyPatch,
    memory: int,
    here: bool,
) -> None:
    monkeypatch.setattr(pipeline, "LOCAL_BYTES", 0)
    started = []

    def session() -> SparkSession:
        started.append(True)
        return spark

    streams = ",".join(f"FOLDMQ_LOG_{name}" for name in NAMES)
    log = Log(session, {**access(nats), "stream": streams})
    found = audit(log, cluster=False, local=LocalLimits(LOCAL_BYTES, memory))
    assert bool(started) is not here
    assert found.violations == outcome.violations


def test_a_log_whose_deliveries_do_not_fit_into_memory_is_audited_in_spark(
    spark: SparkSession, nats: Nats, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "LOCAL_BYTES", 0)
    monkeypatch.setattr(local_sessions, "_COPIES", 1 << 40)
    started = []

    def session() -> SparkSession:
        started.append(True)
        return spark

    streams = ",".join(f"FOLDMQ_LOG_{name}" for name in NAMES)
    log = Log(session, {**access(nats), "stream": streams})
    found = audit(log, cluster=False, local=LocalLimits(LOCAL_BYTES, 1 << 30))
    assert started
    assert found.violations == outcome.violations


@pytest.mark.parametrize(
    ("available", "cores", "log_bytes"),
    [
        (None, 1, LOCAL_BYTES),
        (64 << 30, 1, 2 << 30),
        (24 << 30, 2, 1 << 30),
        (6 << 30, 2, 384 << 20),
        (1 << 20, 2, LOCAL_BYTES),
        (24 << 30, 64, LOCAL_BYTES),
    ],
)
def test_limits_follow_from_memory_and_cores(
    monkeypatch: pytest.MonkeyPatch, available: int | None, cores: int, log_bytes: int
) -> None:
    monkeypatch.setattr(local_facts, "available_memory", lambda: available)
    monkeypatch.setattr(local_facts, "usable_cores", lambda: cores)
    found = local_facts.limits_here()
    assert found.log_bytes == log_bytes
    assert found.memory == (None if available is None else available // 2)


def test_every_rule_is_broken_by_some_log() -> None:
    made = {make.__name__: make(make.__name__) for make in ALL_BROKEN}
    broken = {rule for case in made.values() for rule, _, _ in case.expected}
    assert broken == {*RULES} - {Rule.STATE}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_what_was_said_again_the_fuller_one_counts(
    spark: SparkSession, order: tuple[int, int]
) -> None:
    """A message that is repeated before a cut may be said not to be retained any more."""
    told: list[dict[str, Any]] = [
        {"kind": CARRIED, "at": at(9), "ref": at(2), "number": 0, "topic": "t", "digest": ""},
        {"kind": SENT, "at": at(2), "ref": at(2), "number": 1, "topic": "t", "digest": "abcd"},
    ]
    released = {"kind": RELEASED, "session": "p", "at": at(4), "ref": at(2), "number": 2 | 1 << 2}
    rows = [{"node": "n", **one} for one in (told[order[0]], told[order[1]], released)]
    table = spark.createDataFrame([tuple(map(one.get, SCHEMA.names)) for one in rows], DDL)
    messages = published_messages(
        FactTables(table, table, Counter({CARRIED: 1, SENT: 1, RELEASED: 1}))
    )
    assert messages.released is not None
    (row,) = messages.released.collect()
    assert (row["number"], row["digest"], row["topic"]) == (1, "abcd", "t")
    assert (row["level"], row["at"], row["turn"]) == (2, at(4), at(3))
