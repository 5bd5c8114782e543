"""The state of a broker or its projections, compared with the log in both directions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from brokenlogs import Story, at, closed, delivered, opened, published
from harness.logs import LogBuilder
from harness.nats import Nats, access

from eventstore.format.events import Acked, Released, SessionExpired, Subscribed
from eventstore.format.node_events import OperatorActed, RetainedCleared
from eventstore.format.positions import Position
from eventstore.format.records import decode_record
from projections.audit.audit_outcome import (
    ALL_CLAIM,
    BROKER,
    PROJECTIONS,
    RETAINED_CLAIM,
    SESSION_CLAIM,
    Outcome,
    StateClaim,
)
from projections.audit.rule_table import Rule
from projections.state.digests import NO_DIGEST, retained_digest, session_digest
from projections.state.node_state import NodeState
from spark.jobs.pipeline import NOTHING, SMALL, audit
from spark.runtime.marked_errors import BadOption
from spark.tables.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Wrong = list[tuple["Position", str | None, str]]
"""Position, session, and part of the message."""

CLEARED = (OperatorActed("clear_retained", "ops", "q"), RetainedCleared(["q"]))


def story(name: str) -> Story:
    """Sessions ``s`` and ``p``, retained ``r`` (3.0, of QoS 2 and released) and ``q`` (2.0)."""
    told = Story(name)(published("q", retain=True), payloads=1)
    told(published("r", qos=2, retain=True), payloads=1)(Released("p", [1], [at(3)]))
    told(published("t"), delivered(at(5)), payloads=1)(Acked("s", [1]))
    return told


def fold(log: LogBuilder, bound: Position) -> NodeState:
    """The state when all before a position had happened: that of a record's beginning."""
    state = NodeState()
    for sequence, data in enumerate(log.records, 1):
        if at(sequence) < bound:
            state.apply_record(decode_record(sequence, data))
    return state


def claims(log: LogBuilder, bound: Position, where: str = BROKER) -> list[StateClaim]:
    """The correct claims at a position."""
    state = fold(log, bound)
    told = [StateClaim(where, log.node, ALL_CLAIM, "", bound, None)]
    for name in state.sessions.names():
        digest = session_digest(state, name, pending=where == BROKER)
        told.append(StateClaim(where, log.node, SESSION_CLAIM, name, bound, digest))
    for message in state.retained.all():
        digest = retained_digest(message)
        told.append(StateClaim(where, log.node, RETAINED_CLAIM, message.topic, bound, digest))
    return told


def without(told: list[StateClaim], name: str) -> list[StateClaim]:
    return [one for one in told if one.name != name]


def changed(told: list[StateClaim], name: str, digest: str | None) -> list[StateClaim]:
    return [replace(one, digest=digest) if one.name == name else one for one in told]


Made = tuple["LogBuilder", list[StateClaim], Wrong]


def right(name: str) -> Made:
    """At the end, at every record, and of what is not there."""
    log = story(name).log
    told = [one for sequence in range(2, 8) for one in claims(log, at(sequence))]
    nobody = [StateClaim(BROKER, name, SESSION_CLAIM, "nobody", at(7), None)]
    nothing = [StateClaim(BROKER, name, RETAINED_CLAIM, "nothing", at(7), None)]
    return log, [*told, *nobody, *nothing], []


def pending(name: str) -> Made:
    """A retained message that waits for its PUBREL is part of what the broker says."""
    log = story(name).log
    state = fold(log, at(4))
    wrong = session_digest(state, "p", pending=False)
    told = changed(claims(log, at(4)), "p", wrong)
    return log, told, [(at(4), "p", "another state")]


def another_session(name: str) -> Made:
    log = story(name).log
    return log, changed(claims(log, at(7)), "s", NO_DIGEST), [(at(7), "s", "another state")]


def too_early(name: str) -> Made:
    """What is so one record later is not so yet."""
    log = story(name).log
    later = next(one.digest for one in claims(log, at(7)) if one.name == "s")
    return log, changed(claims(log, at(6)), "s", later), [(at(6), "s", "another state")]


def session_missing(name: str) -> Made:
    log = story(name).log
    return log, without(claims(log, at(7)), "s"), [(at(7), "s", "does not have the session")]


def session_denied(name: str) -> Made:
    log = story(name).log
    told = changed(claims(log, at(7)), "s", None)
    return log, told, [(at(7), "s", "does not have the session")]


def session_invented(name: str) -> Made:
    log = story(name).log
    strange = StateClaim(BROKER, name, SESSION_CLAIM, "x", at(7), NO_DIGEST)
    return log, [*claims(log, at(7)), strange], [(at(7), "x", "that is not in the log")]


def another_retained(name: str) -> Made:
    log = story(name).log
    told = changed(claims(log, at(7)), "r", NO_DIGEST)
    return log, told, [(at(7), None, "another retained message than the log has")]


def retained_missing(name: str) -> Made:
    log = story(name).log
    told = without(claims(log, at(7)), "q")
    return log, told, [(at(7), None, "does not have a retained message")]


def retained_invented(name: str) -> Made:
    log = story(name).log
    strange = StateClaim(BROKER, name, RETAINED_CLAIM, "x\n\x1b[2J", at(7), NO_DIGEST)
    return log, [*claims(log, at(7)), strange], [(at(7), None, "topic x\\n\\u001b[2J")]


def retained_cleared(name: str) -> Made:
    """The broker still has what the log says was cleared."""
    log = story(name)(*CLEARED).log
    told = changed(claims(log, at(8)), "r", NO_DIGEST)
    before = next(one for one in claims(log, at(7)) if one.name == "q")
    return (
        log,
        [*told, replace(before, bound=at(8))],
        [
            (at(8), None, "that is not in the log"),
            (at(8), None, "another retained"),
        ],
    )


def stored(name: str) -> Made:
    """Projections: without pending, and as of their mark."""
    log = story(name).log
    return log, [*claims(log, at(4), PROJECTIONS)], []


def stored_newer(name: str) -> Made:
    """They may be newer than their mark: a topic set again, one cleared, a session gone."""
    told = story(name)(published("r", retain=True, pid=5), payloads=1)(*CLEARED)
    told(closed())(SessionExpired("s", "expired"))
    log = told.log
    now = {one.name: one for one in claims(log, at(11), PROJECTIONS) if one.kind == RETAINED_CLAIM}
    older = without(without(claims(log, at(7), PROJECTIONS), "q"), "s")
    return (
        log,
        [replace(now[one.name], bound=one.bound) if one.name in now else one for one in older],
        [],
    )


def stored_too_old(name: str) -> Made:
    """What was retained before their mark, and is not since."""
    log = story(name)(published("q", retain=True, pid=5), payloads=1).log
    before = next(one for one in claims(log, at(7), PROJECTIONS) if one.name == "q")
    told = changed(claims(log, at(8), PROJECTIONS), "q", before.digest)
    return log, told, [(at(8), None, "the projections has another retained message")]


def of_a_later_session(name: str) -> Made:
    """A session that ended and began again: what counts is what was at that position."""
    told = story(name)(closed(), opened("c", clean=True))(closed("c"))
    told(opened("c", clean=True))(Subscribed("c", [("x", 1)]))
    log = told.log
    return log, [one for number in (8, 9, 10, 11) for one in claims(log, at(number))], []


CASES: tuple[Callable[[str], Made], ...] = (
    right, pending, another_session, too_early, session_missing, session_denied, session_invented,
    another_retained, retained_missing, retained_invented, retained_cleared,
    stored, stored_newer, stored_too_old, of_a_later_session,
)  # fmt: skip


@pytest.fixture(scope="module")
def made() -> dict[str, Made]:
    cases = {make.__name__: make(make.__name__) for make in CASES}
    log, *_ = cases["another_session"]
    log.stream = f"COPY_OF_{log.node}"
    return cases


@pytest.fixture(scope="module", params=[NOTHING, SMALL], ids=["in Spark", "in the driver"])
def outcome(
    request: pytest.FixtureRequest, spark: SparkSession, nats: Nats, made: dict[str, Made]
) -> Outcome:
    told: list[StateClaim] = []
    for log, said, _ in made.values():
        log.store(nats)
        told += said
    streams = ",".join(log.stream for log, _, _ in made.values())
    log = Log(spark, {**access(nats), "stream": streams})
    return audit(log, told, cluster=False, local=request.param)


@pytest.mark.parametrize("name", [make.__name__ for make in CASES])
def test_claims(name: str, made: dict[str, Made], outcome: Outcome) -> None:
    found = [one for one in outcome.violations if one.node == name]
    _, _, expected = made[name]
    assert {one.rule for one in found} <= {Rule.STATE}, found
    assert len(found) == len(expected), found
    for place, session, words in expected:
        assert any(
            (one.at, one.session) == (place, session) and words in one.what for one in found
        ), found


def test_claims_about_a_node_that_is_not_read_are_refused(
    spark: SparkSession, nats: Nats, made: dict[str, Made], outcome: Outcome
) -> None:
    assert outcome.compared
    log, told, _ = made["another_session"]
    strange = [replace(one, node="of nobody") for one in told]
    read = Log(spark, {**access(nats), "stream": log.stream})
    with pytest.raises(BadOption, match=f'claimed of node "of nobody", .* there is {log.node}'):
        audit(read, [*told, *strange], cluster=False)


def test_how_much_was_compared(made: dict[str, Made], outcome: Outcome) -> None:
    (compared,) = (one for one in outcome.compared if one.node == "another_session")
    assert (compared.where, compared.sessions, compared.retained) == (BROKER, 2, 2)
    assert compared.as_of == at(7)
    (result,) = (one for one in outcome.rules if one.rule == Rule.STATE)
    assert result.violations == sum(len(expected) for _, _, expected in made.values())


def test_claims_beyond_the_end_of_the_log_are_not_counted_as_compared(
    spark: SparkSession, nats: Nats
) -> None:
    log = story("beyond").log
    log.store(nats)
    told = [replace(one, bound=at(99)) for one in claims(log, at(7))]
    read = Log(spark, {**access(nats), "stream": log.stream})
    outcome = audit(read, told, cluster=False)
    (result,) = (one for one in outcome.rules if one.rule == Rule.STATE)
    assert result.checked == 0
    beyond = [note for note in outcome.notes if "the log is incomplete" in note]
    assert [note.split(" are ")[0] for note in beyond] == [
        "2 claims about sessions",
        "2 claims about retained messages",
    ]
