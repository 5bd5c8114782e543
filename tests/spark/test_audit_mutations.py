"""Logs from which events were removed, or in which events were changed, at random.

Spark must find the same violations in the sessions of such a log as a comparison of every message
with every subscription without Spark; no more and no less.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
from foldedlogs import simulated
from harness.logs import LogBuilder
from harness.nats import Nats, access
from harness.plainaudit import violations

from eventstore.format.positions import Position, format_position
from eventstore.format.records import decode_record
from projections.audit.audit_outcome import Outcome
from projections.audit.rule_table import UNEXPECTED, Rule
from spark.jobs.pipeline import audit
from spark.tables.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = (3, 5)
"""Of the simulation."""
MUTANTS = 12
"""Logs made of each."""

OF_A_SESSION = {
    Rule.PACKET_ID_REUSE,
    Rule.UNDELIVERED,
    Rule.DELIVERED_TWICE,
    Rule.NO_SUBSCRIPTION,
    Rule.QOS,
    Rule.ORDER,
    Rule.QUEUE,
    Rule.ACKNOWLEDGEMENT,
    Rule.SESSION,
    Rule.CHECKPOINT,
    Rule.EVENT,
    Rule.SHARED,
    Rule.DROP,
    Rule.PROGRESS,
    Rule.WILL,
    Rule.EXPIRY,
    Rule.NO_LOCAL,
    Rule.OWNERSHIP,
}
"""The rules that are checked session by session."""

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


def expected(log: LogBuilder) -> Found:
    """What is found without Spark."""
    records = [decode_record(sequence, data) for sequence, data in enumerate(log.records, 1)]
    return {
        (rule, at, session)
        for session, found in violations(records).items()
        for rule, at, *_ in found
    }


def of_false_repetitions(log: LogBuilder) -> Found:
    """Unexpected deliveries of messages that a checkpoint repeats wrongly.

    Spark reports the checkpoint, and takes the message for published.
    """
    records = [decode_record(sequence, data) for sequence, data in enumerate(log.records, 1)]
    wrong = [(session, one) for session, found in violations(records).items() for one in found]
    repeated = {
        what.split()[1]
        for _, (rule, _, what, *_) in wrong
        if rule == Rule.CHECKPOINT and " is repeated, but " in what
    }
    return {
        (rule, at, session)
        for session, (rule, at, _, ref, *_) in wrong
        if rule == UNEXPECTED and ref is not None and format_position(ref) in repeated
    }


def told(outcome: Outcome, log: LogBuilder) -> Found:
    """What Spark found of these rules, whether delivered twice or without a subscription."""
    return {
        (one.rule, one.at, one.session or "")
        for one in outcome.violations
        if one.node == log.node and (one.rule in OF_A_SESSION)
    }


def test_violations_are_found(outcome: Outcome, logs: list[LogBuilder]) -> None:
    seen: set[str] = set()
    for log in logs:
        unexpected = {(at, session) for rule, at, session in expected(log) if rule == UNEXPECTED}
        known = {one for one in expected(log) if one[0] != UNEXPECTED}
        found = told(outcome, log)
        explained = {
            one
            for one in found
            if one[0] in (Rule.DELIVERED_TWICE, Rule.NO_SUBSCRIPTION, Rule.ORDER)
            and one[1:] in unexpected
        }
        classified = explained - known  # both find some deliveries without a subscription
        untold = {one[1:] for one in of_false_repetitions(log)}
        assert {one[1:] for one in explained} | untold == unexpected | untold, log.node
        only_spark = owed(outcome, log) - known
        assert {one for one in found - classified if one[2]} - only_spark == known, log.node
        seen |= {rule for rule, _, _ in found}
    assert len(seen) >= 5, f"only {seen} were broken"


def owed(outcome: Outcome, log: LogBuilder) -> Found:
    """What only Spark looks for: retained messages that a filter should have been sent."""
    return {
        (one.rule, one.at, one.session or "")
        for one in outcome.violations
        if one.node == log.node
        and ("retained message" in one.what or "does not repeat the session" in one.what)
    }
