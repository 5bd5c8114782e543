"""The recovery check: the required state of a restarted broker after a crash, from the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from foldedlogs import FoldedLog, moments, simulated
from harness.logs import LogBuilder
from harness.nats import Nats, access

from cli.spark.recovery_check import recovery_lines, recovery_object
from eventstore.errors import SALVAGE, CorruptLog
from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    MessagePublished,
    SessionClosed,
    SessionOpened,
    Subscribed,
)
from eventstore.format.node_events import BrokerStarted, BrokerStopped, LogEndUnproven
from eventstore.format.positions import MAX_INDEX, Position, position, sequence_of
from eventstore.format.turn_parts import TurnAssembler
from projections.audit.audit_outcome import (
    BROKER,
    MAX_VIOLATIONS,
    PROJECTIONS,
    BrokerStart,
    NodeRecovery,
    StateClaim,
)
from projections.audit.rule_table import Rule
from projections.log_proof import doubt_object, statement
from projections.state.digests import retained_digest, session_digest
from spark.jobs import recovery_job
from spark.jobs.pipeline import NOTHING, SMALL, LocalLimits, audit
from spark.jobs.recovery_job import RECOVERY, recovery_check
from spark.runtime.marked_errors import BadOption, SparkFailure, find_error
from spark.tables.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
SEEDS = range(25, 55)
"""Tried in turn until there are enough logs, one of them cut."""
ENOUGH = 5
NUMBERS = (
    "sessions", "connected", "clean", "inflight", "releasing", "inbound", "queued", "wills"
)  # fmt: skip


def starts(log: FoldedLog) -> list[Position]:
    """Where the broker was started, once the state is known."""
    known, turns, found = log.known_from(), TurnAssembler(), []
    for record in log.records():
        for part in turns.take(record)[1]:
            found += [
                position(part.sequence, index)
                for index, event in part.events()
                if isinstance(event, BrokerStarted) and part.sequence > known
            ]
    return found


def claims_of(log: FoldedLog) -> list[StateClaim]:
    """What a broker with the right state says behind the last record."""
    state, bound = log.fold(), position(sequence_of(log.end) + 1, 0)
    told = [("all", "", None)]
    told += [("session", name, session_digest(state, name)) for name in state.sessions.names()]
    told += [("retained", one.topic, retained_digest(one)) for one in state.retained.all()]
    told.append(("session", "never there", None))
    return [StateClaim(BROKER, log.node, kind, name, bound, said) for kind, name, said in told]


def ended_in_order(log: FoldedLog) -> bool:
    """Whether the broker before the last one stopped as it was asked to."""
    last = starts(log)[-1]
    before: Event | None = None
    for record in log.records():
        for index, event in record.events():
            if position(record.sequence, index) >= last:
                return isinstance(before, BrokerStopped)
            before = event
    return False


@pytest.fixture(scope="module")
def logs(nats: Nats) -> list[FoldedLog]:
    """Logs that end before the last start: after it, not all need be done."""
    made: list[FoldedLog] = []
    for seed in SEEDS:
        if len(made) >= ENOUGH and any(one.first > 1 for one in made):
            break
        for one in simulated(seed, f"rec{seed}"):
            found = starts(one)
            if len(found) > 1:
                if one.first > 1:
                    one.log.stream = f"COPY_OF_{one.node}"
                last = position(sequence_of(found[-1]) - 1, MAX_INDEX)
                made.append(FoldedLog(one.log, one.first, last))
                one.store(nats)
    assert len(made) >= ENOUGH
    assert any(one.first > 1 for one in made), "none was cut"
    return made


@pytest.fixture
def log(logs: list[FoldedLog], nats: Nats, spark: SparkSession) -> Log:
    options = access(nats)
    streams = ",".join(one.log.stream for one in logs)
    return Log(spark, {**options, "stream": streams, "until": moments(logs)})


def expected(log: FoldedLog) -> Iterator[tuple[str, int]]:
    at = starts(log)[-1]
    before = FoldedLog(log.log, log.first, position(sequence_of(at) - 1, MAX_INDEX)).fold()
    states = list(before.sessions.values())
    yield "at", at
    yield "sessions", len(states)
    yield "connected", sum(one.connected for one in states)
    yield "clean", sum(one.connected and one.clean for one in states)
    yield "inflight", sum(len(one.inflight) for one in states)
    yield "releasing", sum(len(one.releasing) for one in states)
    yield "inbound", sum(len(one.inbound) for one in states)
    yield "queued", sum(one.queued for one in states)
    yield "wills", sum(one.connected and one.will is not None for one in states)


def numbers(node: NodeRecovery) -> dict[str, int]:
    assert node.start is not None
    return {"at": node.start.at, **{name: getattr(node, name) for name in NUMBERS}}


def test_state_survives_crashes(logs: list[FoldedLog], log: Log) -> None:
    claims = [claim for one in logs for claim in claims_of(one)]
    outcome = recovery_check(log, claims)
    assert outcome.kept, outcome.violations
    assert not outcome.violations
    assert {one.node: numbers(one) for one in outcome.nodes} == {
        one.node: dict(expected(one)) for one in logs
    }
    ends = {one.node: one.start.crashed for one in outcome.nodes if one.start is not None}
    assert ends == {one.node: not ended_in_order(one) for one in logs}
    assert sum(ends.values()) > len(ends) // 2, "hardly any crashed"
    assert sum(one.connected for one in outcome.nodes), "nobody was connected"
    assert sum(one.resumed for one in outcome.nodes), "nobody came back"
    assert sum(one.sessions for one in outcome.compared) == sum(
        claim.kind == "session" and claim.digest is not None for claim in claims
    )


CRASHED: list[Event] = [
    SessionOpened("kept", False, False, 4), Subscribed("kept", [("t", 1)]),
    SessionOpened("clean", False, True, 4),
    MessagePublished("kept", 1, True, ["r"], [], [1], 2, 0, 1),
    MessagePublished("kept", 2, True, ["later"], [], [2], 2, 2, 1),
]  # fmt: skip


def crashed(log: LogBuilder) -> LogBuilder:
    """A broker that crashes while a turn is being written, and is started again."""
    log.record(BrokerStarted("1"))
    log.record(*CRASHED, payloads=[b"ab", b"cd"])
    log.turn([BrokerStopped()], [], whole=False)
    log.record(
        BrokerStarted("1"),
        SessionClosed("kept", "broker_restarted"),
        SessionClosed("clean", "broker_restarted"),
    )
    return log


def test_errors_have_positions(
    new_log: Callable[..., LogBuilder], opened: Callable[..., Log]
) -> None:
    good, bad, odd, first = (crashed(new_log()), crashed(new_log()), new_log(), new_log())
    good.record(SessionOpened("kept", True, False, 4, generation=2))
    bad.record(SessionOpened("kept", False, False, 4, generation=2))
    odd.record(BrokerStarted("1"))
    odd.record(BrokerStopped())
    odd.turn([SessionOpened("c", False, True, 4)], [BrokerStarted("1")])
    first.record(SessionOpened("c", False, True, 4))
    second = new_log()
    second.stream = f"COPY_OF_{second.node}"
    second.record(BrokerStarted("1"))
    second.record(SessionOpened("c", False, True, 4))
    outcome = recovery_check(opened(good, bad, odd, first, second))
    assert [(one.rule, one.node, one.at, one.session) for one in outcome.violations] == sorted(
        [
            (RECOVERY, bad.node, bad.at(5), "kept"),
            (Rule.EVENT, odd.node, odd.at(4), None),
            (RECOVERY, odd.node, odd.at(4), "c"),
        ],
        key=lambda one: one[1:3],
    )
    assert not outcome.kept
    assert outcome.counts == {RECOVERY: 2, Rule.EVENT: 1}
    nodes = {one.node: one.start for one in outcome.nodes}
    assert nodes[good.node] == BrokerStart(good.at(4), nodes[good.node].time_ms, True, True)
    assert nodes[odd.node] == BrokerStart(odd.at(4), nodes[odd.node].time_ms, False, False)
    assert nodes[first.node] is None
    (new,) = (one for one in outcome.nodes if one.node == second.node)
    assert new == NodeRecovery(new.summary, nodes[second.node])


@pytest.mark.parametrize("limits", [SMALL, NOTHING], ids=["here", "Spark"])
def test_a_damaged_log_is_an_error(
    new_log: Callable[..., LogBuilder],
    opened: Callable[..., Log],
    monkeypatch: pytest.MonkeyPatch,
    limits: LocalLimits,
) -> None:
    """Nothing can be said about what was recovered; the text is that of all commands."""
    log = crashed(new_log())
    log.damage(2)
    monkeypatch.setattr(recovery_job, "audit", partial(audit, local=limits))
    with pytest.raises(Exception, match="the log is damaged") as caught:
        recovery_check(opened(log))
    error = caught.value if limits is SMALL else find_error(caught.value)
    assert isinstance(error, SparkFailure)
    assert str(error) == (
        f"log {log.stream}: the log is damaged: record 2 has a wrong checksum; restore a backup, "
        f"or continue with the intact part: {SALVAGE}"
    )
    assert error.exit_code == CorruptLog.exit_code == 65


@pytest.mark.parametrize("limits", [SMALL, NOTHING], ids=["here", "Spark"])
def test_what_was_wrong_before_the_start_does_not_count(
    new_log: Callable[..., LogBuilder],
    opened: Callable[..., Log],
    monkeypatch: pytest.MonkeyPatch,
    limits: LocalLimits,
) -> None:
    log, stopped = new_log(), new_log()
    log.record(*CRASHED, payloads=[b"ab", b"cd"])
    for _ in range(MAX_VIOLATIONS + 1):
        log.record(Acked("kept", [7]))
    stopped.record(BrokerStopped())
    stopped.record(BrokerStopped())
    monkeypatch.setattr(recovery_job, "audit", partial(audit, local=limits))
    outcome = recovery_check(opened(crashed(log), crashed(stopped)))
    assert outcome.kept, outcome.violations
    assert not outcome.violations


OTHERWISE = [
    ("session", "kept", "0" * 16, "has another state of the session"),
    ("session", "kept", None, "does not have the session"),
    ("session", "kept", "unsaid", "does not have the session"),
    ("session", "never there", "1" * 16, "has a session that is not in the log"),
    ("retained", "r", "0" * 16, "has another retained message"),
    ("retained", "r", None, "does not have a retained message"),
    ("retained", "r", "unsaid", "does not have a retained message"),
    ("retained", "x", "1" * 16, "has a retained message that is not in the log"),
]
"""Kind and name of a claim, the broker's claim instead, and the reported difference."""


def test_claims_of_the_broker_are_compared_both_ways(
    new_log: Callable[..., LogBuilder], opened: Callable[..., Log]
) -> None:
    logs = [crashed(new_log()) for _ in (None, *OTHERWISE)]
    claims = claims_of(FoldedLog(logs[0]))
    for log, (kind, name, said, _) in zip(logs[1:], OTHERWISE, strict=True):
        right = claims_of(FoldedLog(log))
        claims += [one for one in right if (one.kind, one.name) != (kind, name)]
        if said != "unsaid":
            claims.append(replace(right[0], kind=kind, name=name, digest=said))
    outcome = recovery_check(opened(*logs), claims)
    assert outcome.counts == {Rule.STATE: len(OTHERWISE)}
    found = {one.node: one for one in outcome.violations}
    for log, (kind, name, _, what) in zip(logs[1:], OTHERWISE, strict=True):
        one = found[log.node]
        assert one.at == position(log.last + 1, 0)
        assert what in one.what
        assert one.session == (name if kind == "session" else None)
        assert kind == "session" or one.what.endswith(f"topic {name}")


def test_a_recovery_is_not_checked_against_projections(
    new_log: Callable[..., LogBuilder], opened: Callable[..., Log]
) -> None:
    log = crashed(new_log())
    with pytest.raises(BadOption, match="not against projections"):
        recovery_check(opened(log), [StateClaim(PROJECTIONS, log.node, "all", "", 1, None)])


def test_claims_about_a_node_that_is_not_read_are_refused(
    new_log: Callable[..., LogBuilder], opened: Callable[..., Log]
) -> None:
    log = crashed(new_log())
    with pytest.raises(BadOption, match=f"claimed of node other, .* there is {log.node}"):
        recovery_check(opened(log), [StateClaim(BROKER, "other", "all", "", 1, None)])


def test_the_result_holds_for_the_proven_part(
    new_log: Callable[..., LogBuilder], opened: Callable[..., Log]
) -> None:
    log = new_log()
    log.record(BrokerStarted("1"))
    log.record(SessionOpened("c", False, False, 4))
    log.record(BrokerStarted("1"), LogEndUnproven("copy", 2, 1_000_000, 9))
    log.record(SessionClosed("c", "broker_restarted"))
    outcome = recovery_check(opened(log))
    assert outcome.kept, outcome.violations
    (node,) = outcome.nodes
    (doubt,) = node.doubts
    assert (doubt.reason, doubt.after, doubt.missing) == ("copy", 2, 7)
    assert [end for _, end in node.proven] == [1_000_000, node.summary.ends_ms]
    verdict, *rest = recovery_lines(outcome)
    assert verdict.startswith("recovered: the state matches the log, from ")
    assert verdict.endswith("; nothing can be said about 1 part")
    assert f"  {statement(doubt)}" in rest
    found = recovery_object(outcome)
    assert found["nodes"][0]["not_proven"] == [doubt_object(doubt)]  # type: ignore[index]
    assert len(found["nodes"][0]["proven"]) == 2  # type: ignore[index]
