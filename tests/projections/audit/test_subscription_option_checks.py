"""Each promise of MQTT 5 about one session: a log that keeps it, and one that breaks it."""

from collections.abc import Sequence
from typing import TypeGuard

import pytest

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    Assigned,
    Completed,
    Delivered,
    MessageDropped,
    MessagePublished,
    Queued,
    Received,
    Redelivered,
    Refused,
    Returned,
    SessionClosed,
    SessionOpened,
    Subscribed,
    Unsubscribed,
)
from eventstore.format.positions import from_runs, position
from projections.audit.rule_table import Rule, Violation
from projections.audit.session_audit import SessionAudit

NO_LOCAL, IF_NEW, NEVER = 0x04, 0x10, 0x20
NOW = 1_700_000_000
M = [position(50 + number, 0) for number in range(8)]
"""Positions of messages from before the session's events."""


def audited(*steps: Event | tuple[int, Event], session: str = "s") -> list[Violation]:
    """Audit events, each in a record of its own from 101 on; with a time in seconds if given."""
    audit = SessionAudit(session)
    for number, step in enumerate(steps, 101):
        seconds, event = step if isinstance(step, tuple) else (NOW, step)
        at = position(number, 1)
        for ref in from_runs(event.refs) if takes_effect(event) else ():
            owner = "p" if ref in M else session
            audit.expect(
                *(position(number, 0), ref, "t", seconds * 1000),
                origin=owner, qos=1, granted=1, owed=True,
            )  # fmt: skip
        audit.take(event, at, seconds * 1000)
    audit.finish()
    return audit.violations


def takes_effect(event: Event) -> TypeGuard[Delivered | Queued | Assigned | MessageDropped]:
    """It determines the deliveries of messages published in its turn."""
    if isinstance(event, Queued):
        return not event.retain and event.behind < 0
    if isinstance(event, Assigned | MessageDropped):
        return event.queued < 0
    if not isinstance(event, Delivered) or event.filter.startswith("$share/"):
        return False
    return not event.retain and event.queued < 0


def rules(*steps: Event | tuple[int, Event], session: str = "s") -> list[tuple[str, int]]:
    """(rule, number of the event) of each violation; connections are not numbered here."""
    return [
        (one.rule, (one.at >> 20) - 101)
        for one in audited(*steps, session=session)
        if one.rule != Rule.OWNERSHIP
    ]


def opened(*, most: int = 65_535, resumed: bool = False, clean_start: bool = False) -> Event:
    return SessionOpened(
        "s", resumed, False, 5, expiry=60, receive_maximum=most, clean_start=clean_start
    )


def subscribed(options: int = 0, topic_filter: str = "t") -> Event:
    return Subscribed("s", [(topic_filter, 1)], options=[options] if options else [])


def queued(*refs: int, expires: int = 0) -> Event:
    return Queued("s", "t", 1, list(refs), 0, expires=expires)


def delivered(*refs: int, first: int = 1, queued: int = -1, retain: bool = False) -> Event:
    pids = list(range(first, first + len(refs)))
    return Delivered("s", "t", 1, pids, list(refs), retain=retain, queued=queued)


# ------------------------------------------------------------------------------------- expiry


def test_an_expired_message_is_not_sent() -> None:
    sent = delivered(M[0], M[1], queued=0)
    waits = Queued("s", "t", 1, [M[0], M[1]], 0, expires=[0, NOW + 5])
    (found,) = audited(opened(), subscribed(), waits, (NOW + 6, sent))
    assert (found.rule, found.at) == (Rule.EXPIRY, position(104, 2))
    assert found.what == "message 51.0 was sent 1 s too late"


# ---------------------------------------------------------------------------- receive maximum


def test_a_client_gets_as_many_as_it_accepts() -> None:
    assert rules(
        opened(most=2),
        subscribed(),
        delivered(M[0], M[1]),
        Acked("s", [1]),
        delivered(M[2], first=3),
        Acked("s", [2, 3]),
        Delivered("s", "t", 2, [4], [M[3]]),
        Received("s", [4]),
        Completed("s", [4]),
        Delivered("s", "t", 2, [5], [M[4]]),
        Refused("s", [5], [0x87]),
        delivered(M[5], M[6], first=6),
    ) == [(Rule.QOS, 6), (Rule.QOS, 9)], "these are of QoS 1"


@pytest.mark.parametrize(
    "steps",
    [
        [delivered(M[0], M[1], M[2])],
        [delivered(M[0], M[1]), delivered(M[2], first=3)],
        [delivered(M[0], M[1]), Received("s", [1]), delivered(M[2], first=3)],
    ],
)
def test_a_client_gets_no_more_than_it_accepts(steps: Sequence[Event]) -> None:
    found = rules(opened(most=2), subscribed(), *steps)
    assert (Rule.RECEIVE_MAXIMUM, 1 + len(steps)) in found


def test_a_new_connection_counts_its_deliveries() -> None:
    kept = [opened(), subscribed(), delivered(M[0], M[1], M[2]), SessionClosed("s", "closed")]
    back = opened(most=2, resumed=True)
    again = Redelivered("s", [1, 2], "resumed")
    assert rules(*kept, back, again, Acked("s", [1]), Redelivered("s", [3], "resumed")) == []
    found = rules(*kept, back, Redelivered("s", [1, 2, 3], "resumed"))
    assert found == [(Rule.RECEIVE_MAXIMUM, 5)]


# ----------------------------------------------------------------------------------- no local


def own(retain: bool = False) -> Event:
    return MessagePublished("s", 1, retain, ["t"], [], [1], 0, 0, 1)


OWN = position(103, 1)


def test_another_subscription_may_bring_a_client_its_own_messages() -> None:
    both = Subscribed("s", [("t", 1), ("#", 1)], options=[NO_LOCAL, 0])
    assert rules(opened(), both, own(), delivered(OWN)) == []
    gone = Unsubscribed("s", ["#"])
    steps = [opened(), both, own(), gone, delivered(OWN)]
    assert rules(*steps) == [(Rule.NO_LOCAL, 4)]


# ---------------------------------------------------------------------------- retain handling


def replayed(*steps: Event) -> list[tuple[str, int]]:
    """The rules that a log breaks whose last two events stand in one record."""
    audit = SessionAudit("s")
    for number, event in enumerate(steps, 101):
        last = number - 100 == len(steps)
        audit.take(event, position(number - last, 1 + last), NOW * 1000)
    return [(one.rule, (one.at >> 20) - 101) for one in audit.violations]


RETAINED = delivered(M[0], retain=True)


@pytest.mark.parametrize(
    "steps",
    [
        [subscribed(NEVER)],
        [subscribed(), subscribed(IF_NEW)],
        [subscribed(IF_NEW), subscribed(IF_NEW)],
        [subscribed(), subscribed(NEVER)],
    ],
)
@pytest.mark.parametrize("send", [RETAINED, Queued("s", "t", 1, [M[0]], 0, retain=True)])
def test_retained_messages_are_sent_as_requested(steps: list[Event], send: Event) -> None:
    found = replayed(opened(), *steps, send)
    assert found == [(Rule.RETAIN_HANDLING, len(steps))]


# ------------------------------------------------------------------------------------ the rest


def test_a_member_returns_only_its_deliveries() -> None:
    group = "$share/g/t"
    steps = [
        SessionOpened("s", False, False, 5),
        Subscribed("s", [(group, 2)]),
        Delivered("s", group, 1, [1, 2], [M[0], M[1]]),
    ]
    assert rules(*steps, Returned("s", group, [1, 2], [M[0], M[1]])) == []
    assert rules(*steps, Returned("s", group, [1], [M[1]])) == [(Rule.ACKNOWLEDGEMENT, 3)]
    assert rules(*steps, Returned("s", group, [3], [M[1]])) == [(Rule.ACKNOWLEDGEMENT, 3)]


@pytest.mark.parametrize("limit", [0, 7, 8])
def test_only_messages_above_the_maximum_end_as_too_large(limit: int) -> None:
    """The packet of an empty message on ``t`` has 8 bytes."""
    start = [
        SessionOpened("s", False, False, 5, expiry=60, packet_maximum=limit),
        subscribed(),
        delivered(M[0]),
    ]
    ended = [Acked("s", [1], reasons=[0x95])]
    assert rules(*start, *ended) == ([] if limit else [(Rule.ACKNOWLEDGEMENT, 3)])
    dropped = MessageDropped("s", "packet_too_large", 1, [M[1]], "t")
    assert rules(*start, dropped) == ([] if limit == 7 else [(Rule.DROP, 3)])


def test_refused_deliveries_have_no_latency() -> None:
    audit = SessionAudit("s")
    audit.take(opened(), position(1, 0), 1000)
    audit.take(subscribed(), position(2, 0), 1000)
    for number, code in enumerate((0, 0x10, 0x87, 0x95), 3):
        at = position(number, 1)
        audit.expect(
            *(at, M[number], "t", 1000), origin="p", qos=1, granted=1, owed=True
        )  # fmt: skip
        audit.take(delivered(M[number]), at, 1000)
        audit.take(Acked("s", [1], reasons=[code] if code else []), at + 1, 2000)
    assert sum(audit.latencies[1]) == 2
