"""The required state of a session after a broker's restart: each rule kept, and each broken."""

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
    "ended, nothing more": (BEFORE, [CLOSED]),
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
    "thrown away by its client": (BEFORE, [CLOSED, opened(resumed=False, clean=True)]),
    "a will": ([*BEFORE, armed()], [WillFired("c"), will(), CLOSED]),
    "a will on a topic that is reserved": (
        [*BEFORE, armed()],
        [WillFired("c"), MessageDropped("c", "reserved_topic", 1), CLOSED],
    ),
    "clean": ([opened(resumed=False, clean=True, generation=1)], [CLOSED]),
    "clean, back again": (
        [opened(resumed=False, clean=True, generation=1)],
        [CLOSED, opened(resumed=False, clean=True)],
    ),
    "away, then back": ([*BEFORE, LEFT], [QUEUED, opened()]),
    "away, then expired": ([*BEFORE, LEFT], [SessionExpired("c", "expired")]),
    "not there before": (
        [],
        [opened(resumed=False, generation=1), Subscribed("c", [("t/#", 1)]), delivered([1])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", GOOD)
def test_nothing_is_wrong(case: str) -> None:
    assert not findings(*GOOD[case])


BAD: dict[str, tuple[list[Event], list[Event], str]] = {
    "will at QoS 0 not recorded": (
        [*BEFORE, armed(0)], [WillFired("c"), CLOSED], "its message is not recorded",
    ),
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
    "another connection ended": (
        BEFORE, [SessionClosed("c", "broker_restarted", 7)], "connection 7 ended, but 1 was",
    ),
    "will forgotten": ([*BEFORE, armed()], [CLOSED], "the will stays"),
    "will said, not published": (
        [*BEFORE, armed()], [WillFired("c"), CLOSED], "its message is not recorded",
    ),
    "will twice": (
        [*BEFORE, armed()], [WillFired("c"), will(), CLOSED, WillFired("c")], "a second time",
    ),
    "will out of nothing": (BEFORE, [WillFired("c"), CLOSED], "not armed"),
    "another will": (
        [*BEFORE, armed()], [WillFired("c"), will("v"), CLOSED], "published with another topic",
    ),
    "will not retained": (
        [*BEFORE, armed(retain=True)], [WillFired("c"), will(), CLOSED], "with another RETAIN",
    ),
    "will in two messages": (
        [*BEFORE, armed()], [WillFired("c"), will(), will(), CLOSED], "none was due",
    ),
    "will once more behind the end": (
        [*BEFORE, armed()], [WillFired("c"), will(), CLOSED, will()], "none was due",
    ),
    "will of a clean session once more": (
        [opened(resumed=False, clean=True, generation=1), armed()],
        [WillFired("c"), will(), CLOSED, will()],
        "none was due",
    ),
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
    "sent while away": ([*BEFORE, LEFT], [delivered([4])], "Delivered without a connection"),
    "thrown away": (BEFORE, [CLOSED, opened(resumed=False)], "its state was discarded"),
    "a clean session resumed": (
        [opened(resumed=False, clean=True, generation=1)], [CLOSED, opened()], "was resumed",
    ),
    "a clean session gets messages": (
        [opened(resumed=False, clean=True, generation=1)], [CLOSED, QUEUED], "there is no session",
    ),
    "resumed out of nothing": ([], [opened()], "resumed that did not exist"),
    "its count of connections is lost": (
        BEFORE, [CLOSED, opened(generation=1)], "connection 1 follows connection 1",
    ),
    "sent again: what was not on its way": (
        BEFORE, [CLOSED, opened(), Redelivered("c", [9], "resumed")], "packet 9 was sent again",
    ),
    "sent again: out of order": (
        BEFORE, [CLOSED, opened(), Redelivered("c", [2], "resumed")], "packet 2 was sent again before",
    ),
    "something new before what was on its way": (
        BEFORE,
        [CLOSED, opened(), Redelivered("c", [1], "resumed"), delivered([4])],
        "before packet 2 was sent again",
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


def test_a_delayed_will_is_published_once() -> None:
    twice = [CLOSED, WillFired("c"), will(), WillFired("c"), will()]
    assert findings(DELAYED, twice)[0] == "the will was published a second time"


def test_a_will_that_ends_with_its_session_does_not_wait() -> None:
    clean = [SessionOpened("c", False, True, 5, expiry=0), DELAYED[1]]
    assert "the will stays" in findings(clean, [CLOSED])[0]


@pytest.mark.parametrize(("clean_start", "resumed"), [(False, True), (True, False)])
def test_clean_start_begins_another_session(*, clean_start: bool, resumed: bool) -> None:
    back = SessionOpened("c", resumed, False, 5, generation=2, clean_start=clean_start)
    assert findings(DELAYED[:1], [CLOSED, back]) == []
    back.resumed = not resumed
    assert len(findings(DELAYED[:1], [CLOSED, back])) == 1
