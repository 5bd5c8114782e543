"""What a session must do after a restart of its broker, by the rules of the audit.

The stories of ``test_audit_rules`` break the same rules without a restart.
"""

import pytest

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
from eventstore.format.positions import position
from projections.audit.log_outline import LogOutline
from projections.audit.rule_table import Violation
from projections.audit.session_audit import SessionAudit
from spark.jobs.recovery_job import _DUTIES

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
    "dropped by the limits of its queue": (
        [*BEFORE, LEFT], [MessageDropped("c", "queue_messages", 1, [position(101, 0)], "t/#")],
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
