"""Each promise: a log that breaks it, found with its position, and similar ones that keep it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from brokencauses import CAUSES
from brokenerasures import ERASURES
from brokenlogs import LOGS, Case, at
from brokenmqtt5 import MQTT5_LOGS
from brokenreplays import REPLAYS
from harness.nats import Nats, access
from harness.spark_plans import compiled
from holedlogs import HOLED

from projections.audit import local_facts
from projections.audit.audit_outcome import Outcome
from projections.audit.facts import CARRIED, EFFECT, RELEASED, RETAINED, SENT
from projections.audit.log_folds import MESSAGE_COLUMNS, RELEASED_COLUMNS, fold_released
from projections.audit.rule_table import RULES, Rule, Violation
from spark.jobs import fact_tables, pipeline
from spark.jobs.pipeline import LOCAL_BYTES, NOTHING, SMALL, LocalLimits, audit
from spark.tables.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CASES: dict[str, Case] = {**LOGS, **MQTT5_LOGS, **CAUSES, **HOLED, **REPLAYS, **ERASURES}
OF_ONE_LOG = {*RULES} - {Rule.STATE, Rule.HOME, Rule.EXCHANGE, Rule.COPY}
"""The rest is in ``test_audit_several_logs.py``."""


@pytest.fixture(scope="module")
def stored(nats: Nats) -> Nats:
    """The server with all of the logs: each is that of a node."""
    for case in CASES.values():
        case.log.store(nats)
        if case.after is not None:
            case.after(nats)
    return nats


@pytest.fixture(scope="module")
def outcome(stored: Nats) -> Outcome:
    """All of them in one audit, in this process: Spark applies the same rules."""
    return audit(Log(no_session, of(stored, CASES)), cluster=False, local=SMALL)


def of(nats: Nats, names: Iterable[str]) -> dict[str, str]:
    """Options that name logs."""
    return {**access(nats), "stream": ",".join(CASES[name].log.stream for name in names)}


@pytest.fixture(scope="module")
def some() -> list[str]:
    """Of each rule one log that breaks it, and a few that keep all."""
    first: dict[str, str] = {}
    for name, case in CASES.items():
        for rule, _, _ in case.expected:
            first.setdefault(rule, name)
    kept = [name for name, case in CASES.items() if not case.expected]
    return [*dict.fromkeys(first.values()), *kept[::12]]


@pytest.fixture(scope="module")
def few(some: list[str]) -> list[str]:
    """Enough logs to see which way an audit takes."""
    return some[:3]


@pytest.mark.parametrize("name", CASES)
def test_violations_are_found(name: str, outcome: Outcome) -> None:
    found = [(str(one.rule), one.at, one.session) for one in of_nodes(outcome, [name])]
    assert sorted(found, key=str) == sorted(CASES[name].expected, key=str)


def no_session() -> NoReturn:
    pytest.fail("a small log is audited without Spark")


@pytest.mark.parametrize(
    "at_once", [fact_tables.MANY_SPANS, 400], ids=["few subscriptions", "many"]
)
@pytest.mark.parametrize("which", ["some", pytest.param("all", marks=pytest.mark.long)])
def test_spark_finds_the_same(
    spark: SparkSession,
    stored: Nats,
    some: list[str],
    monkeypatch: pytest.MonkeyPatch,
    which: str,
    at_once: int,
) -> None:
    """Tasks have all subscriptions in memory if they are few, else those of some sessions."""
    monkeypatch.setattr(fact_tables, "MANY_SPANS", at_once)
    options = of(stored, some if which == "some" else CASES)
    here = audit(Log(no_session, options), cluster=False, local=SMALL)
    assert {one.rule for one in here.violations} == OF_ONE_LOG
    with compiled(spark):
        same(audit(Log(spark, options), cluster=False, local=NOTHING), here)


def test_spark_finds_the_same_behind_lost_records(spark: SparkSession, stored: Nats) -> None:
    options = of(stored, HOLED)
    here = audit(Log(no_session, options), cluster=False, local=SMALL)
    assert here.violations
    same(audit(Log(spark, options), cluster=False, local=NOTHING), here)


def same(found: Outcome, other: Outcome) -> None:
    assert found.violations == other.violations
    assert found.rules == other.rules
    assert found.notes == other.notes
    assert found.latencies == other.latencies


def of_nodes(outcome: Outcome, names: list[str]) -> tuple[Violation, ...]:
    nodes = {CASES[name].log.node for name in names}
    return tuple(one for one in outcome.violations if one.node in nodes)


@pytest.mark.parametrize(("memory", "here"), [(1 << 30, True), (1 << 10, False)])
def test_a_larger_log_is_audited_here_if_its_facts_fit_into_memory(
    spark: SparkSession,
    stored: Nats,
    outcome: Outcome,
    few: list[str],
    monkeypatch: pytest.MonkeyPatch,
    memory: int,
    here: bool,
) -> None:
    monkeypatch.setattr(pipeline, "LOCAL_BYTES", 0)
    started = []

    def session() -> SparkSession:
        started.append(True)
        return spark

    log = Log(session, of(stored, few))
    found = audit(log, cluster=False, local=LocalLimits(LOCAL_BYTES, memory))
    assert bool(started) is not here
    assert found.violations == of_nodes(outcome, few)
    assert found.violations


def test_a_log_whose_deliveries_do_not_fit_into_memory_is_audited_in_spark(
    spark: SparkSession,
    stored: Nats,
    outcome: Outcome,
    few: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline, "LOCAL_BYTES", 0)
    monkeypatch.setattr(local_facts, "_DUE_COPIES", 1 << 40)
    started = []

    def session() -> SparkSession:
        started.append(True)
        return spark

    log = Log(session, of(stored, few))
    found = audit(log, cluster=False, local=LocalLimits(LOCAL_BYTES, 1 << 30))
    assert started
    assert found.violations == of_nodes(outcome, few)
    assert found.violations


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
    monkeypatch.setattr(pipeline, "available_memory", lambda: available)
    monkeypatch.setattr(pipeline, "usable_cores", lambda: cores)
    found = pipeline.limits_here()
    assert found.log_bytes == log_bytes
    assert found.memory == (None if available is None else available // 2)


def test_every_rule_is_broken_by_some_log() -> None:
    assert {rule for case in CASES.values() for rule, _, _ in case.expected} == OF_ONE_LOG


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_more_complete_repetition_counts(order: tuple[int, int]) -> None:
    """A message that is repeated before a cut may be said not to be retained any more."""
    told: list[dict[str, Any]] = [
        {"kind": CARRIED, "at": at(9), "number": 0, "topic": "t", "digest": ""},
        {"kind": SENT, "at": at(2), "number": 1, "topic": "t", "digest": "abcd"},
    ]
    released = {"kind": RELEASED, "session": "p", "at": at(4), "number": 2 | 1 << 2}
    rows = [{"node": "n", "ref": at(2), **one} for one in (*(told[n] for n in order), released)]
    found = fold_released(tuple(map(row.get, MESSAGE_COLUMNS)) for row in rows)
    effect, retained = (dict(zip(RELEASED_COLUMNS, row, strict=True)) for row in found)
    assert (effect["kind"], effect["at"], effect["topic"]) == (EFFECT, at(4), "t")
    assert (retained["kind"], retained["digest"], retained["time_ms"]) == (RETAINED, "abcd", at(3))
