"""Promises of shared subscriptions: logs that keep them, and logs that break one each."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from harness.logs import LogBuilder
from harness.plainaudit import violations

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
    Refused,
    Released,
    Returned,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Subscribed,
    Unsubscribed,
)
from eventstore.format.node_events import BrokerStarted
from eventstore.format.positions import Position, position
from eventstore.format.records import decode_record
from projections.audit.rule_table import Rule

GROUP = "$share/g/t/+"
A, B = "ann", "bob"


def opened(name: str, *, resumed: bool = False, clean: bool = False, generation: int = 1) -> Event:
    return SessionOpened(name, resumed, clean, 5, generation=generation, expiry=0 if clean else 60)


def closed(name: str, generation: int = 1) -> Event:
    return SessionClosed(name, "closed", generation)


def sent(to: str, *refs: Position, pid: int = 1, qos: int = 1) -> list[Event]:
    """The group gives messages to a member as they come."""
    pids = list(range(pid, pid + len(refs)))
    return [Delivered(to, GROUP, qos, pids, [*refs]), Assigned(GROUP, to, [*refs])]


def from_queue(to: str, *refs: Position, pid: int = 1) -> list[Event]:
    pids = list(range(pid, pid + len(refs)))
    size = 3 * len(refs)
    return [Delivered(to, GROUP, 1, pids, [*refs]), Assigned(GROUP, to, [*refs], size)]


def queued(*refs: Position, behind: int = -1) -> Event:
    return Queued(GROUP, "t/+", 1, [*refs], 3 * len(refs), behind=behind)


def returned(by: str, *refs: Position, pid: int = 1) -> Event:
    return Returned(by, GROUP, list(range(pid, pid + len(refs))), [*refs])


class Log:
    """Ann and Bob share ``t/+``; each record is a turn. The next one is record 2."""

    def __init__(self, qos: int = 1, *, clean: bool = False) -> None:
        self.log = LogBuilder()
        self.log.record(
            BrokerStarted("0.1"),
            opened("p"),
            opened(A, clean=clean),
            opened(B, clean=clean),
            SessionOpened(GROUP, False, False, 5, expiry=0xFFFF_FFFF),
            Subscribed(GROUP, [("t/+", 2)]),
            SessionClosed(GROUP, "shared"),
            Subscribed(A, [(GROUP, qos)]),
            Subscribed(B, [(GROUP, qos)]),
        )

    def turn(self, *events: Event | Sequence[Event]) -> Log:
        """Append a record."""
        flat: list[Event] = []
        for some in events:
            flat += [some] if not isinstance(some, (list, tuple)) else some
        self.log.record(*flat, payloads=[b"abc"] * 8)
        return self

    def publish(
        self, *events: Event | Sequence[Event], count: int = 1, qos: int = 1, topic: str = "t/a"
    ) -> Log:
        """Publish messages in the turn of some events."""
        pids = list(range(1, count + 1))
        return self.turn(MessagePublished("p", qos, False, [topic], [], pids, 3, 0, count), *events)

    def found(self) -> list[tuple[str, str | None, str]]:
        """(rule, session, position) of what is wrong."""
        records = [decode_record(at, data) for at, data in enumerate(self.log.records, 1)]
        return [
            (one.rule, one.session, f"{one.at >> 20}.{one.at & 0xFFFFF}")
            for one in violations(records, self.log.node)
        ]


M = [position(2, number) for number in range(8)]
"""Messages of record 2."""


def test_assigned_messages_are_sent_and_acknowledged() -> None:
    log = Log().publish(sent(A, M[0]), sent(B, M[1]), count=2)
    assert log.turn(Acked(A, [1]), Acked(B, [1], reasons=[0x87])).found() == []


def test_waiting_messages_are_sent_later() -> None:
    log = Log().publish(queued(M[0], M[1]), count=2).turn(from_queue(A, M[0], M[1]))
    assert log.turn(Acked(A, [1, 2])).found() == []


def test_a_leaving_member_returns_unacknowledged_messages() -> None:
    log = Log().publish(sent(A, M[0], M[1]), count=2)
    log.turn(Acked(A, [1]))
    log.turn(returned(A, M[1], pid=2), queued(M[1], behind=0), closed(A))
    assert log.turn(from_queue(B, M[1])).turn(Acked(B, [1])).found() == []


def test_a_returned_message_may_be_assigned_in_the_same_turn() -> None:
    log = Log().publish(sent(A, M[0]))
    log.turn(returned(A, M[0]), queued(M[0], behind=0), closed(A), from_queue(B, M[0]))
    assert log.found() == []


def test_a_qos_2_message_ends_with_the_session_of_its_member() -> None:
    log = Log(qos=2).publish(qos=2).turn(Released("p", [1], [M[0]]), sent(A, M[0], qos=2))
    log.turn(closed(A)).turn(SessionExpired(A, "expired"))
    assert log.found() == []
    log = Log(qos=2).publish(qos=2).turn(Released("p", [1], [M[0]]), sent(A, M[0], qos=2))
    log.turn(closed(A)).turn(opened(A, resumed=True, generation=2))
    assert log.turn(Received(A, [1])).turn(Completed(A, [1])).found() == []


def test_qos_0_deliveries_to_a_member_are_not_recorded() -> None:
    assert Log(qos=0).publish(Assigned(GROUP, A, [M[0]])).found() == []


def test_messages_end_with_the_last_member() -> None:
    log = Log(clean=True).turn(closed(B))
    log.publish(sent(A, position(3, 0)))
    assert log.turn(closed(A), SessionExpired(GROUP, "no_members")).found() == []


def test_messages_may_be_dropped() -> None:
    log = Log().publish(MessageDropped(GROUP, "packet_too_large", 1, [M[0]], "t/+"))
    assert log.found() == []


# --------------------------------------------------------------------------- what is broken


def test_a_message_that_no_member_was_sent() -> None:
    log = Log().publish(Assigned(GROUP, A, [M[0]]))
    assert log.found() == [(Rule.SHARED, GROUP, "2.1")]


def test_a_message_without_a_member() -> None:
    assert Log().publish().found() == [(Rule.UNDELIVERED, GROUP, "2.0")]


def test_a_message_that_a_member_was_not_to_get() -> None:
    log = Log().publish(sent(A, M[0]), Delivered(B, GROUP, 1, [1], [M[0]]))
    found = log.found()
    assert found == [(Rule.SHARED, GROUP, "2.3")] * 2, "two have it, and one without being assigned"


def test_a_message_that_went_to_another_member_than_it_is_assigned_to() -> None:
    log = Log().publish(Delivered(B, GROUP, 1, [1], [M[0]]), Assigned(GROUP, A, [M[0]]))
    assert sorted(log.found()) == [(Rule.SHARED, GROUP, "2.1"), (Rule.SHARED, GROUP, "2.2")]


def test_a_message_that_two_members_get() -> None:
    log = Log().publish(sent(A, M[0]), sent(B, M[0]))
    found = log.found()
    assert (Rule.SHARED, GROUP, "2.3") in found
    assert (Rule.DELIVERED_TWICE, GROUP, "2.4") in found


@pytest.mark.parametrize("done", [[], [Acked(A, [1])]])
def test_a_message_for_another_member_that_was_not_returned(done: list[Event]) -> None:
    log = Log().publish(sent(A, M[0])).turn(*done).turn(queued(M[0], behind=0))
    assert (Rule.SHARED, GROUP, "4.0") in log.found(), "it waits again"
    found = log.turn(from_queue(B, M[0])).found()
    assert ((Rule.SHARED, GROUP, "5.0") in found) == (not done), "two have it"


def test_a_leaving_member_that_keeps_unacknowledged_messages() -> None:
    log = Log().publish(sent(A, M[0])).turn(closed(A))
    assert log.found() == [(Rule.SHARED, GROUP, "3.0")]


def test_a_clean_session_that_takes_a_message_along() -> None:
    log = Log(clean=True).publish(sent(A, M[0])).turn(closed(A))
    assert log.found() == [(Rule.SHARED, GROUP, "3.0")]


def test_a_message_that_is_returned_and_lost() -> None:
    log = Log().publish(sent(A, M[0])).turn(returned(A, M[0]), closed(A))
    assert log.found() == [(Rule.SHARED, GROUP, "3.0")]


def test_a_qos_2_message_that_is_returned() -> None:
    log = Log(qos=2).publish(qos=2).turn(Released("p", [1], [M[0]]), sent(A, M[0], qos=2))
    log.turn(returned(A, M[0]), queued(M[0], behind=0), closed(A))
    assert log.found() == [(Rule.SHARED, A, "4.0")]


@pytest.mark.parametrize(
    "gone", [closed(A), Unsubscribed(A, [GROUP]), SessionClosed(A, "closed", 1, expiry=0)]
)
def test_a_message_for_a_member_that_is_away(gone: Event) -> None:
    log = Log().turn(gone).publish(Assigned(GROUP, A, [position(3, 0)]))
    wrong = [one for one in log.found() if one[0] == Rule.SHARED]
    assert (Rule.SHARED, GROUP, "3.1") in wrong


def test_a_message_that_waits_for_one_member() -> None:
    log = Log().publish(Queued(A, GROUP, 1, [M[0]], 3), queued(M[0]))
    assert (Rule.SHARED, GROUP, "2.1") in log.found()


def test_a_message_at_another_qos_than_the_granted_one() -> None:
    log = Log(qos=1).publish(sent(A, M[0], qos=2), qos=1)
    assert log.found() == [(Rule.QOS, GROUP, "2.1")]


def test_a_message_sent_in_a_later_turn_than_its_assignment() -> None:
    log = Log().publish().turn(sent(A, M[0]))
    assert log.found() == [(Rule.UNDELIVERED, GROUP, "3.1")]


def test_a_refused_message_is_not_given_to_another() -> None:
    log = Log(qos=2).publish(qos=2).turn(Released("p", [1], [M[0]]), sent(A, M[0], qos=2))
    log.turn(Refused(A, [1], [0x97]))
    assert log.found() == []
    log.turn(queued(M[0], behind=0))
    assert log.found() == [(Rule.SHARED, GROUP, "5.0")]


# --------------------------------------------------------------------------- order of topics


def by_topic(to: str, *refs: Position, pid: int = 1) -> list[Event]:
    pids = list(range(pid, pid + len(refs)))
    return [Delivered(to, GROUP, 1, pids, [*refs]), Assigned(GROUP, to, [*refs], by_topic=True)]


def test_a_topic_stays_with_its_member() -> None:
    log = Log().publish(by_topic(A, M[0])).publish(by_topic(B, position(3, 0)), topic="t/b")
    assert log.publish(by_topic(A, position(4, 0), pid=2)).found() == []
    assert log.publish(by_topic(B, position(5, 0), pid=2)).found() == [(Rule.SHARED, GROUP, "5.2")]


def test_a_topic_goes_to_one_member_in_a_turn() -> None:
    log = Log().publish(by_topic(A, M[0]), by_topic(B, M[1]), count=2)
    assert log.found() == [(Rule.SHARED, GROUP, "2.5")]


@pytest.mark.parametrize("change", [closed(B), opened("c"), Subscribed(B, [(GROUP, 0)])])
def test_a_topic_may_go_elsewhere_when_the_members_are_others(change: Event) -> None:
    log = Log().publish(by_topic(B, M[0])).turn(Acked(B, [1])).turn(change)
    log.publish(by_topic(A, position(5, 0)))
    same = change == opened("c")
    assert log.found() == ([(Rule.SHARED, GROUP, "5.2")] if same else [])


def test_messages_of_a_topic_are_assigned_in_order() -> None:
    log = Log().publish(by_topic(A, M[1], M[0]), count=2)
    assert log.found() == [(Rule.ORDER, GROUP, "2.4")]
    log = Log().publish(queued(M[0], M[1]), count=2)
    back = Assigned(GROUP, A, [M[0], M[1]], 6, by_topic=True)
    log.turn(Delivered(A, GROUP, 1, [1, 2], [M[0], M[1]]), back)
    log.turn(returned(A, M[0], M[1]), queued(M[0], M[1], behind=0), closed(A))
    again = Assigned(GROUP, B, [M[0]], 3, by_topic=True)
    assert log.turn(Delivered(B, GROUP, 1, [1], [M[0]]), again).found() == []
