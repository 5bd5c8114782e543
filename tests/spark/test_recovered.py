"""What a session must do after a restart of its broker, by the rules of the audit.

The stories of ``test_audit_rules`` break the same rules without a restart.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from harness.logs import HeldLog, LogBuilder

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    Completed,
    Delivered,
    Expired,
    MessageDropped,
    MessagePublished,
    Queued,
    Received,
    Redelivered,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Subscribed,
    WillArmed,
    WillCancelled,
    WillFired,
)
from eventstore.format.node_events import BrokerStarted, BrokerStopped
from eventstore.format.positions import Position, position
from projections.audit.audit_engine import AuditEngine
from projections.audit.audit_outcome import MAX_VIOLATIONS, Outcome
from projections.audit.histogram import MIN_MS
from projections.audit.local_facts import LocalFacts
from projections.audit.log_outline import LogOutline
from projections.audit.rule_table import Rule, Violation
from projections.audit.session_audit import SessionAudit
from spark.jobs.fact_reading import FactRange, facts_in
from spark.jobs.recovery_job import _DUTIES, RECOVERY, _since_starts
from spark.runtime.marked_errors import SparkFailure
from spark.tables.stored_log import RecordRange

STARTED = position(100, 0)


def opened(*, resumed: bool = True, clean: bool = False, generation: int = 2) -> SessionOpened:
    return SessionOpened("c", resumed, clean, 4, generation=generation)


def delivered(pids: list[int], qos: int = 1) -> Delivered:
    return Delivered("c", "t/#", qos, list(pids), [position(1, pid) for pid in pids])


def armed(qos: int = 1, *, retain: bool = False) -> WillArmed:
    return WillArmed("c", "w", qos, retain, 4, 0)


def will(topic: str = "w", qos: int = 1, *, retain: bool = False) -> MessagePublished:
    pids = [0] if qos else []
    return MessagePublished("c", qos, retain, [topic], [], pids, 4, 0, 1, will=True)


CLOSED = SessionClosed("c", "broker_restarted")
LEFT = SessionClosed("c", "closed")
QUEUED = Queued("c", "t/#", 1, [position(101, 0)], 4)
BEFORE: list[Event] = [
    opened(resumed=False, generation=1), Subscribed("c", [("t/#", 2)]), delivered([1, 2, 3]),
]  # fmt: skip
"""Connected, with three messages on their way."""
RELEASING: list[Event] = [*BEFORE[:2], delivered([1, 2, 3], 2), Received("c", [2, 3])]
"""Two of them were received, and are to be released."""


def violations(before: list[Event], after: list[Event]) -> list[Violation]:
    """What is wrong behind the start: everything before it, then a turn with what comes after."""
    audit = SessionAudit("c", outline=LogOutline(stops=(STARTED,)))
    for number, event in enumerate(before):
        audit.take(event, position(number + 1, 0), 1000)
    for number, event in enumerate(after):
        audit.take(event, position(101, number), 2000 if event is CLOSED else 40_000)
    audit.finish()
    return [one for one in audit.violations if one.rule in _DUTIES and one.at >= STARTED]


def findings(before: list[Event], after: list[Event]) -> list[str]:
    return [one.what for one in violations(before, after)]


GOOD: dict[str, tuple[list[Event], list[Event]]] = {
    "messages queued before and after its end": (BEFORE, [QUEUED, CLOSED, QUEUED]),
    "resumed, all sent again in order": (
        BEFORE,
        [CLOSED, opened(), Redelivered("c", [[1, 3, 1]], "resumed"), delivered([4])],
    ),
    "resumed, answered before all was sent again": (
        BEFORE,
        [CLOSED, opened(), Acked("c", [2]), Redelivered("c", [1, 3], "resumed"), delivered([4])],
    ),
    "resumed, left before all was sent again": (
        BEFORE,
        [
            CLOSED, opened(), SessionClosed("c", "closed", 2), opened(generation=3),
            Redelivered("c", [[1, 3, 1]], "resumed"), delivered([4]),
        ],
    ),
    "what waits for PUBCOMP is first": (
        [*BEFORE[:2], delivered([1, 2], 2), Received("c", [2])],
        [CLOSED, opened(), Redelivered("c", [2], "resumed"), Redelivered("c", [1], "resumed")],
    ),
    "PUBRELs are sent again behind a new will": (
        RELEASING,
        [CLOSED, opened(), armed(), Redelivered("c", [2, 3], "resumed"), Completed("c", [2, 3])],
    ),
    "it failed when its client was back": (
        RELEASING,
        [
            CLOSED, opened(), SessionClosed("c", "session_failed", 2), opened(generation=3),
            Redelivered("c", [2, 3], "resumed"),
        ],
    ),
    "sent again because nobody answered": (
        BEFORE,
        [
            CLOSED, opened(), Redelivered("c", [3], "ack_wait"),
            Redelivered("c", [1, 2, 3], "resumed"), delivered([4]),
        ],
    ),
    "a will": ([*BEFORE, armed()], [WillFired("c"), will(), CLOSED]),
    "a will on a topic that is reserved": (
        [*BEFORE, armed()],
        [WillFired("c"), MessageDropped("c", "reserved_topic", 1), CLOSED],
    ),
    "clean, back again": (
        [opened(resumed=False, clean=True, generation=1)],
        [CLOSED, opened(resumed=False, clean=True)],
    ),
    "not there before": (
        [],
        [opened(resumed=False, generation=1), Subscribed("c", [("t/#", 1)]), delivered([1])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", GOOD)
def test_nothing_is_wrong(case: str) -> None:
    assert not findings(*GOOD[case])


BAD: dict[str, tuple[list[Event], list[Event], str]] = {
    "answered on a connection that is gone": (
        BEFORE, [Acked("c", [1]), CLOSED], "Acked on a connection that ended with its broker",
    ),
    "sent on a connection that is gone": (
        BEFORE, [delivered([4]), CLOSED], "Delivered on a connection that ended with its broker",
    ),
    "resumed before its connection ended": (
        BEFORE, [opened(), CLOSED], "the one before it was not closed",
    ),
    "ended for another reason": (BEFORE, [SessionClosed("c", "keep_alive")], "'keep_alive'"),
    "will forgotten": ([*BEFORE, armed()], [CLOSED], "the will stays"),
    "PUBREL not sent again": (
        RELEASING,
        [CLOSED, opened(), Subscribed("c", [("u", 1)]), SessionClosed("c", "closed", 2)],
        "PUBREL of packet 2 and 1 more was not sent again",
    ),
    "PUBREL not sent again until the end of the log": (
        RELEASING, [CLOSED, opened()], "PUBREL of packet 2 and 1 more was not sent again",
    ),
    "one PUBREL not sent again": (
        RELEASING, [CLOSED, opened(), Redelivered("c", [2], "resumed")], "PUBREL of packet 3 was",
    ),
    "PUBREL sent again later": (
        RELEASING,
        [
            CLOSED, opened(), Redelivered("c", [2], "ack_wait"),
            Redelivered("c", [2, 3, 1], "resumed"),
        ],
        "PUBREL of packet 2 and 1 more",
    ),
    "published while away": (
        [*BEFORE, LEFT],
        [MessagePublished("c", 1, False, ["t"], [], [1], 1, 0, 1)],
        "MessagePublished without a connection",
    ),
    "a clean session gets messages": (
        [opened(resumed=False, clean=True, generation=1)], [CLOSED, QUEUED], "there is no session",
    ),
    "sent again: what was not on its way": (
        BEFORE, [CLOSED, opened(), Redelivered("c", [9], "resumed")], "packet 9 was sent again",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_something_is_wrong(case: str) -> None:
    before, after, what = BAD[case]
    assert what in findings(before, after)[0]


def test_a_finding_has_the_position_that_shows_it() -> None:
    after = [CLOSED, opened(), Redelivered("c", [1, 9], "resumed")]
    assert {one.at for one in violations(BEFORE, after)} == {position(101, 3)}


DELAYED = [
    SessionOpened("c", False, False, 5, expiry=60),
    WillArmed("c", "w", 1, False, 4, 0, 30),
]
"""The will is published half a minute after the connection ends, if the client is not back."""
BACK = SessionOpened("c", True, False, 5, generation=2, expiry=60)


@pytest.mark.parametrize(
    "after",
    [
        [CLOSED],
        [CLOSED, WillFired("c"), will()],
        [CLOSED, WillCancelled("c"), BACK],
        [CLOSED, WillFired("c"), will(), SessionExpired("c", "expired")],
        [CLOSED, Expired("c", "t/#", [position(1, 0)], 0), WillCancelled("c"), BACK],
    ],
)
def test_a_delayed_will_waits_over_a_start(after: list[Event]) -> None:
    assert findings(DELAYED, after) == []
    assert findings([*DELAYED, LEFT], after[1:]) == []


def test_a_will_that_ends_with_its_session_does_not_wait() -> None:
    clean = [SessionOpened("c", False, True, 5, expiry=0), DELAYED[1]]
    assert "the will stays" in findings(clean, [CLOSED])[0]


@pytest.mark.parametrize(("clean_start", "resumed"), [(False, True), (True, False)])
def test_clean_start_begins_another_session(*, clean_start: bool, resumed: bool) -> None:
    back = SessionOpened("c", resumed, False, 5, generation=2, clean_start=clean_start)
    assert findings(DELAYED[:1], [CLOSED, back]) == []
    back.resumed = not resumed
    assert len(findings(DELAYED[:1], [CLOSED, back])) == 1


# ------------------------------------------------------------------------------- whole logs


class Turn(NamedTuple):
    """A record with payloads."""

    events: Sequence[Event]
    payload: bytes = b""


def log_of(*turns: Turn | Event) -> LogBuilder:
    """A log of turns, of which each is a record."""
    log = LogBuilder()
    for turn in turns:
        events, payload = turn if isinstance(turn, Turn) else ([turn], b"")
        log.record(*events, payloads=[payload])
    return log


def audited(log: LogBuilder, until: Position | None = None) -> Outcome:
    """What an audit of a recovery says of a log up to a position."""
    held = HeldLog(log)
    whole = RecordRange(held, 1, log.last, log.last, until=until)  # type: ignore[arg-type]
    facts = facts_in(FactRange(whole, log.node, MIN_MS, strict=True))
    return AuditEngine(cluster=False, recovery=True).outcome(LocalFacts(facts))


STARTED_NOW = BrokerStarted("1")
WRONG = Acked("c", [7])
"""Of a packet that was not sent."""
WAITS = Queued("c", "t/#", 1, [position(1, 2)], 4)
UNQUEUED = MessageDropped("c", "unsubscribed", 1, [position(1, 2)], "t/#", queued=4)
DROPPED: list[Event] = [
    SessionOpened("p", False, True, 4),
    MessagePublished("p", 1, False, ["t/1"], [], [1], 4, 0, 1),
    MessageDropped("c", "queue_messages", 1, [position(3, 1)], "t/#"),
]
LEFT_A_WILL = Turn([BEFORE[0], armed()], b"last")
WITHOUT_ITS_WILL = "the will fired, but its message is not recorded"
LOGS: dict[str, tuple[list[Turn | Event], Position | None, list[tuple[str, Position, str]]]] = {
    "the connection never ended": (
        [STARTED_NOW, Turn(BEFORE), STARTED_NOW], None,
        [(RECOVERY, position(3, 0), "its connection was not ended after the broker was started")],
    ),
    "without a start": ([Turn(BEFORE), WRONG, BrokerStopped(), BrokerStopped()], None, []),
    "read to the end of a turn": (
        [Turn(RELEASING), STARTED_NOW, CLOSED, Turn([opened(), Redelivered("c", [2], "resumed")])],
        position(4, 1),
        [(RECOVERY, position(4, 0), "the PUBREL of packet 3 was not sent again")],
    ),
    "read to the middle of a turn": (
        [Turn(RELEASING), STARTED_NOW, CLOSED, Turn([opened(), Redelivered("c", [2], "resumed")])],
        position(4, 0),
        [],
    ),
    "a will": (
        [LEFT_A_WILL, STARTED_NOW, Turn([WillFired("c"), will(), CLOSED], b"last")], None, [],
    ),
    "a will with another payload": (
        [LEFT_A_WILL, STARTED_NOW, Turn([WillFired("c"), will(), CLOSED], b"lost")], None,
        [(RECOVERY, position(3, 1), "published with another content than it was armed with")],
    ),
    "a will at QoS 0": (
        [
            Turn([BEFORE[0], armed(0)], b"last"), STARTED_NOW,
            Turn([WillFired("c"), will(qos=0), CLOSED], b"last"),
        ],
        None,
        [],
    ),
    "a will at QoS 0 without its message": (
        [Turn([BEFORE[0], armed(0)], b"last"), STARTED_NOW, Turn([WillFired("c"), CLOSED])], None,
        [(RECOVERY, position(3, 0), WITHOUT_ITS_WILL)],
    ),
    "dropped by the limits of its queue": (
        [Turn([*BEFORE, LEFT]), STARTED_NOW, Turn(DROPPED, b"text")], None, [],
    ),
    "taken out of its queue while away": (
        [Turn([*BEFORE, LEFT, WAITS]), STARTED_NOW, UNQUEUED], None,
        [(RECOVERY, position(3, 0), "but the client did not unsubscribe")],
    ),
    "taken out of its queue while it ends": (
        [Turn([*BEFORE, WAITS]), STARTED_NOW, Turn([UNQUEUED, CLOSED])], None,
        [(RECOVERY, position(3, 0), "but the client did not unsubscribe")],
    ),
    "stopped twice before": (
        [STARTED_NOW, BrokerStopped(), BrokerStopped(), STARTED_NOW], None, [],
    ),
    "stopped twice since": (
        [STARTED_NOW, BrokerStopped(), BrokerStopped()], None,
        [(Rule.EVENT, position(3, 0), "")],
    ),
    "many violations before": (
        [STARTED_NOW, Turn(BEFORE), *[WRONG] * (MAX_VIOLATIONS + 1), STARTED_NOW, CLOSED], None,
        [],
    ),
    "many violations before, and another": (
        [
            STARTED_NOW, Turn(BEFORE), *[WRONG] * MAX_VIOLATIONS, STARTED_NOW, CLOSED, opened(),
            WRONG,
        ],
        None,
        [(RECOVERY, position(MAX_VIOLATIONS + 6, 0), "PUBACK 7: not in flight")],
    ),
}  # fmt: skip
"""The records of a log, the position to which it is read, and what is wrong with its recovery."""


@pytest.mark.parametrize("case", LOGS)
def test_what_is_wrong_since_the_last_start(case: str) -> None:
    turns, until, expected = LOGS[case]
    violations, counts = _since_starts(audited(log_of(*turns), until))
    assert [(wrong.rule, wrong.at) for wrong in violations] == [(r, at) for r, at, _ in expected]
    for wrong, (_, _, what) in zip(violations, expected, strict=True):
        assert what in wrong.what
    assert sum(counts.values()) == len(expected)


def test_a_log_without_a_start_recovered_nothing() -> None:
    (node,) = audited(log_of(*LOGS["without a start"][0])).recoveries
    assert node.start is None
    assert not node.sessions


def test_violations_since_the_start_beyond_the_limit_are_counted() -> None:
    turns = [STARTED_NOW, Turn(BEFORE), WRONG, STARTED_NOW, CLOSED, opened()]
    many = MAX_VIOLATIONS + 1
    violations, counts = _since_starts(audited(log_of(*turns, *[WRONG] * many)))
    assert (len(violations), counts) == (MAX_VIOLATIONS, {RECOVERY: many})
    assert violations[0].at == position(len(turns) + 1, 0)


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (Acked("c", [1]), "the log is damaged: record 2 has a wrong checksum; restore a backup"),
        ({"e": "Acked", "v": 1}, "record 2, entry 0: event Acked"),
    ],
)
def test_a_damaged_log_is_an_error(event: Event, what: str) -> None:
    log = log_of(STARTED_NOW, event, STARTED_NOW)
    if isinstance(event, Acked):
        log.damage(2)
    with pytest.raises(SparkFailure) as caught:
        audited(log)
    assert str(caught.value).startswith(f"log {log.stream}: {what}")
    assert caught.value.exit_code == 65
