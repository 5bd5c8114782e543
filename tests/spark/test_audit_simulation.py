"""Logs of the real broker under random clients, faults and crashes keep every promise.

``FOLDMQ_SEEDS=300`` takes more runs, as ``make drills`` does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

import pytest
from foldedlogs import FoldedLog, simulated, simulated_shares
from harness.nats import Nats, access

from projections.audit.audit_outcome import (
    ALL_CLAIM,
    BROKER,
    RETAINED_CLAIM,
    SESSION_CLAIM,
    Outcome,
    StateClaim,
)
from projections.audit.rule_table import Rule
from projections.state.digests import retained_digest, session_digest
from spark.jobs.pipeline import NOTHING, audit
from spark.tables.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The logs of all simulated runs are audited without Spark: tests/simulation/test_chaos.py.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
SEEDS = range(100, 100 + max(4, int(os.environ.get("FOLDMQ_SEEDS", "0")) // 15))
SHARES = range(100, 100 + len(SEEDS) // 2)
"""Of runs in which clients share a subscription."""
NO_CASES = {
    *(Rule.EXPIRY, Rule.RECEIVE_MAXIMUM, Rule.NO_LOCAL, Rule.RETAIN_HANDLING),
    *(Rule.COPY, Rule.EXCHANGE, Rule.HOME),
    *(Rule.ERASURE, Rule.REPLAY),
}
"""Rules of which such runs have no case: they have one log, no erasures and no replays, and their
clients use few properties of MQTT 5."""


@pytest.fixture(scope="module")
def logs() -> list[FoldedLog]:
    """Of each seed the whole log, and the log as it was cut."""
    runs = [simulated(seed, f"audit{seed}") for seed in SEEDS]
    runs += [simulated_shares(seed, f"shares{seed}") for seed in SHARES]
    return list(chain.from_iterable(runs))


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, nats: Nats, logs: list[FoldedLog]) -> Outcome:
    """All of them in one audit, compared with what the broker's own fold says in the end."""
    for one in logs:
        one.store(nats)
    streams = ",".join(one.log.stream for one in logs)
    log = Log(spark, {**access(nats), "stream": streams})
    return audit(log, chain.from_iterable(map(claims, logs)), cluster=False, local=NOTHING)


def claims(one: FoldedLog) -> Iterator[StateClaim]:
    """Everything that there is in the end."""
    state, end = one.fold(), one.log.at(one.log.last + 1)
    yield StateClaim(BROKER, one.node, ALL_CLAIM, "", end, None)
    for name in state.sessions.names():
        digest = session_digest(state, name)
        yield StateClaim(BROKER, one.node, SESSION_CLAIM, name, end, digest)
    for message in state.retained.all():
        digest = retained_digest(message)
        yield StateClaim(BROKER, one.node, RETAINED_CLAIM, message.topic, end, digest)


def test_no_guarantee_was_violated(outcome: Outcome, logs: list[FoldedLog]) -> None:
    assert outcome.violations == ()
    assert outcome.kept
    assert [one.node for one in outcome.nodes] == sorted(one.node for one in logs)


def test_many_cases_were_checked(outcome: Outcome, logs: list[FoldedLog]) -> None:
    checked = {result.rule: result.checked for result in outcome.rules}
    assert {rule for rule, count in checked.items() if not count} <= NO_CASES, checked
    assert checked["chain"] == sum(one.log.last - one.first + 1 for one in logs)
    assert any(one.first > 1 for one in logs), "no log was cut"
    assert {latency.qos for latency in outcome.latencies} == {1, 2}
