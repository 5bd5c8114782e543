"""Logs from which events were removed, or in which events were changed, at random.

Spark must find the same violations in such a log as the audit in this process; no more and no less.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
from foldedlogs import simulated
from harness.logs import LogBuilder
from harness.nats import Nats, access
from harness.plainaudit import violations

from eventstore.format.positions import Position
from eventstore.format.records import decode_record
from projections.audit.audit_outcome import Outcome
from projections.audit.rule_table import Violation
from spark.jobs.pipeline import audit
from spark.tables.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = (3, 5)
"""Of the simulation."""
MUTANTS = 12
"""Logs made of each."""

Found = set[tuple[str, "Position", str]]
"""Rule, position, session."""


def mutate(raw: list[dict[str, Any]], chance: random.Random) -> None:
    """Change one of the events of a record so that it can still be read."""
    at = chance.randrange(len(raw))
    event, how = raw[at], chance.choice(["drop", "double", "swap", "field"])
    runs = next((name for name in ("refs", "pids") if event.get(name)), None)
    if how == "drop":
        del raw[at]
    elif how == "double":
        raw.insert(at, deepcopy(event))
    elif how == "swap":
        other = chance.randrange(len(raw))
        raw[at], raw[other] = raw[other], raw[at]
    elif runs is not None and event["e"] != "MessagePublished":
        first = event[runs][0]
        event[runs][0] = first + 1 if isinstance(first, int) else [first[0] + 1, *first[1:]]
    elif "filter" in event:
        event["filter"] = chance.choice(["#", "t/#", "other"])
    elif "resumed" in event:
        event["resumed"] = not event["resumed"]


def mutants(seed: int) -> Iterator[LogBuilder]:
    whole = simulated(seed, f"sound{seed}")[0].log
    chance = random.Random(seed)
    for number in range(MUTANTS):
        log = LogBuilder(f"mutant{seed}x{number}")
        chosen = set(chance.sample(range(2, whole.last), 1 + number % 3))
        for sequence, data in enumerate(whole.records, 1):
            record = decode_record(sequence, data)
            if sequence in chosen and record.raw_events:
                mutate(record.raw_events, chance)
            log.record(
                *record.raw_events,
                payloads=[record.payload],
                time_ms=record.time_ms,
                part=record.part,
                last=record.last,
            )
        yield log


@pytest.fixture(scope="module")
def logs() -> list[LogBuilder]:
    return [log for seed in SEEDS for log in mutants(seed)]


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, nats: Nats, logs: list[LogBuilder]) -> Outcome:
    for log in logs:
        log.store(nats)
    streams = ",".join(log.stream for log in logs)
    return audit(Log(spark, {**access(nats), "stream": streams}), cluster=False)


def places(violations: Iterable[Violation]) -> Found:
    return {(one.rule, one.at, one.session or "") for one in violations}


def test_violations_are_found(outcome: Outcome, logs: list[LogBuilder]) -> None:
    seen: set[str] = set()
    for log in logs:
        records = [decode_record(sequence, data) for sequence, data in enumerate(log.records, 1)]
        found = places(one for one in outcome.violations if one.node == log.node)
        assert found == places(violations(records, log.node)), log.node
        seen |= {rule for rule, _, _ in found}
    assert len(seen) >= 5, f"only {seen} were broken"
