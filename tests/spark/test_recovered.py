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
from spark.jobs.session_check import SessionRecovery

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
UNQUEUED = MessageDropped("c", "unsubscribed", 1, [position(3, 0)], "t/#", queued=4)


def recovery(
    before: list[Event], after: list[Event], payloads: dict[int, bytes] | None = None
) -> SessionRecovery:
    """Everything before the start, then what comes after it; payloads by place in `after`, from
    -1 on backwards by place in `before`."""
    found = SessionRecovery("c", STARTED)
    given = payloads or {}
    for number, event in enumerate(before):
        found.take(event, position(number + 1, 0), 1000, given.get(number - len(before)))
    for number, event in enumerate(after):
        found.take(event, position(number + 101, 0), 2000, given.get(number))
    found.finish()
    return found


def findings(*args: object, **kwargs: object) -> list[str]:
    return [one.what for one in recovery(*args, **kwargs).findings]  # type: ignore[arg-type]


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
        [CLOSED, opened(), SessionClosed("c", "closed", 2), opened(generation=3), delivered([4])],
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
        [CLOSED, opened(), SessionClosed("c", "session_failed", 2), opened(generation=3)],
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
    "a will at QoS 0 is not recorded": ([*BEFORE, armed(0)], [WillFired("c"), CLOSED]),
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
    "not there before": ([], [opened(resumed=False, generation=1), delivered([1])]),
}  # fmt: skip


@pytest.mark.parametrize("case", GOOD)
def test_nothing_is_wrong(case: str) -> None:
    assert not findings(*GOOD[case])


BAD: dict[str, tuple[list[Event], list[Event], str]] = {
    "never ended": (BEFORE, [QUEUED], "was not ended"),
    "answered on a connection that is gone": (BEFORE, [Acked("c", [1]), CLOSED], "Acked before"),
    "sent on a connection that is gone": (BEFORE, [delivered([4]), CLOSED], "Delivered before"),
    "resumed before its connection ended": (BEFORE, [opened(), CLOSED], "SessionOpened before"),
    "ended for another reason": (BEFORE, [SessionClosed("c", "keep_alive")], "'keep_alive'"),
    "another connection ended": (
        BEFORE, [SessionClosed("c", "broker_restarted", 7)], "connection 7 ended, it was 1",
    ),
    "will forgotten": ([*BEFORE, armed()], [CLOSED], "will was not published"),
    "will said, not published": ([*BEFORE, armed()], [WillFired("c"), CLOSED], "though it says so"),
    "will twice": (
        [*BEFORE, armed()], [WillFired("c"), will(), CLOSED, WillFired("c")], "not armed",
    ),
    "will out of nothing": (BEFORE, [WillFired("c"), CLOSED], "not armed"),
    "another will": ([*BEFORE, armed()], [WillFired("c"), will("v"), CLOSED], "another message"),
    "will not retained": (
        [*BEFORE, armed(retain=True)], [WillFired("c"), will(), CLOSED], "another message",
    ),
    "will in two messages": (
        [*BEFORE, armed()], [WillFired("c"), will(), will(), CLOSED], "a second time",
    ),
    "will once more behind the end": (
        [*BEFORE, armed()], [WillFired("c"), will(), CLOSED, will()], "a second time",
    ),
    "will at QoS 0 behind the end": (
        [*BEFORE, armed(0)], [WillFired("c"), CLOSED, will(qos=0)], "without its client",
    ),
    "will of a clean session once more": (
        [opened(resumed=False, clean=True, generation=1), armed()],
        [WillFired("c"), will(), CLOSED, will()],
        "MessagePublished for a session that did not exist",
    ),
    "taken out of its queue while it ends": (
        [*BEFORE, LEFT, QUEUED, opened()],
        [UNQUEUED, SessionClosed("c", "broker_restarted", 2)],
        "MessageDropped before",
    ),
    "taken out of its queue while away": ([*BEFORE, LEFT, QUEUED], [UNQUEUED], "was offline"),
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
        "without its client",
    ),
    "sent while away": ([*BEFORE, LEFT], [delivered([4])], "was offline"),
    "thrown away": (BEFORE, [CLOSED, opened(resumed=False)], "state was thrown away"),
    "a clean session resumed": (
        [opened(resumed=False, clean=True, generation=1)], [CLOSED, opened()], "was resumed",
    ),
    "a clean session gets messages": (
        [opened(resumed=False, clean=True, generation=1)], [CLOSED, QUEUED], "did not exist",
    ),
    "resumed out of nothing": ([], [opened()], "resumed that did not exist"),
    "its count of connections is lost": (
        BEFORE, [CLOSED, opened(generation=1)], "connection 1 was opened, the last was 1",
    ),
    "sent again: what was not on its way": (
        BEFORE, [CLOSED, opened(), Redelivered("c", [9], "resumed")], "packet 9 was sent again",
    ),
    "sent again: out of order": (
        BEFORE, [CLOSED, opened(), Redelivered("c", [2], "resumed")], "packet 2 was sent again out",
    ),
    "something new before what was on its way": (
        BEFORE,
        [CLOSED, opened(), Redelivered("c", [1], "resumed"), delivered([4])],
        "before packet 2 was redelivered",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_something_is_wrong(case: str) -> None:
    before, after, what = BAD[case]
    assert len(found := findings(before, after)) == 1
    assert what in found[0]


def test_a_finding_has_the_position_that_shows_it() -> None:
    found = recovery(BEFORE, [CLOSED, opened(), Redelivered("c", [1, 9], "resumed")]).findings
    assert [one.at for one in found] == [position(103, 1)]


def test_unchecked_events_are_not_reported() -> None:
    """The log is read up to the middle of the turn in which the client reconnected."""
    for torn, count in ((position(102, 0), 0), (position(103, 0), 1)):
        found = SessionRecovery("c", STARTED)
        for number, event in enumerate(RELEASING):
            found.take(event, position(number + 1, 0), 1000)
        found.take(CLOSED, position(101, 0), 2000)
        found.take(opened(), position(102, 0), 2000)
        found.finish(torn)
        assert len(found.findings) == count


def test_payloads_of_wills_are_compared_where_they_are_known() -> None:
    before, after = [*BEFORE, armed()], [WillFired("c"), will(), CLOSED]
    assert not findings(before, after, payloads={-1: b"last", 1: b"last"})
    assert not findings(before, after, payloads={1: b"last"})
    assert "another payload" in findings(before, after, payloads={-1: b"last", 1: b"lost"})[0]


def test_findings_of_a_session_are_bounded() -> None:
    flood = [Acked("c", [1])] * 1000
    assert len(findings(BEFORE, [*flood, CLOSED])) == 100


def test_a_log_without_a_start_is_only_folded() -> None:
    found = SessionRecovery("c", None)
    for number, event in enumerate(BEFORE):
        found.take(event, position(number + 1, 0), 1000)
    found.finish()
    assert found.before is None
    assert not found.findings
    assert found.fold.state is not None


def test_recovered_state_is_counted() -> None:
    found = recovery([*BEFORE, armed()], [WillFired("c"), will(), CLOSED, opened()])
    assert found.before is not None
    assert found.before == (True, False, True, 3, 0, 0, 0)
    assert found.fired
    assert found.resumed


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
    assert findings(DELAYED, twice) == [
        "a will was published that was not armed",
        "its will was published a second time",
    ]


def test_a_will_that_ends_with_its_session_does_not_wait() -> None:
    clean = [SessionOpened("c", False, True, 5, expiry=0), DELAYED[1]]
    assert findings(clean, [CLOSED]) == ["its will was not published when its connection ended"]


@pytest.mark.parametrize(("clean_start", "resumed"), [(False, True), (True, False)])
def test_clean_start_begins_another_session(*, clean_start: bool, resumed: bool) -> None:
    back = SessionOpened("c", resumed, False, 5, generation=2, clean_start=clean_start)
    assert findings(DELAYED[:1], [CLOSED, back]) == []
    back.resumed = not resumed
    assert len(findings(DELAYED[:1], [CLOSED, back])) == 1
