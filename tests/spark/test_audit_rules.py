"""Each promise has a log that breaks it, found with its place, and like ones that keep it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from brokenlogs import BROKEN, KEPT, Case
from conftest import access

from spark.audit.outcome import RULES, STATE
from spark.audit.run import audit
from spark.log import Log

if TYPE_CHECKING:
    from harness.nats import Nats
    from pyspark.sql import SparkSession

    from spark.audit.outcome import Outcome

NAMES = [make.__name__ for make in (*BROKEN, *KEPT)]


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {make.__name__: make(make.__name__) for make in (*BROKEN, *KEPT)}


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, nats: Nats, cases: dict[str, Case]) -> Outcome:
    """All of them in one audit: each is the log of a node."""
    for case in cases.values():
        case.log.store(nats)
        if case.after is not None:
            case.after(nats)
    streams = ",".join(case.log.stream for case in cases.values())
    return audit(Log(spark, {**access(nats), "stream": streams}), cluster=False)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_broken_is_found(name: str, cases: dict[str, Case], outcome: Outcome) -> None:
    found = [(one.rule, one.at, one.session) for one in outcome.violations if one.node == name]
    assert sorted(found, key=str) == sorted(cases[name].expected, key=str)


def test_every_rule_is_broken_by_some_log() -> None:
    made = {make.__name__: make(make.__name__) for make in BROKEN}
    broken = {rule for case in made.values() for rule, _, _ in case.expected}
    assert broken == {*RULES} - {STATE}
