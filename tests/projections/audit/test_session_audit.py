"""Each promise: a log that keeps it, and one that breaks it at a known position."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    Completed,
    Delivered,
    MessageDropped,
    MessagePublished,
    Queued,
    Received,
    Redelivered,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Subscribed,
    Unsubscribed,
)
from eventstore.format.node_events import SessionSnapshot
from eventstore.format.positions import format_position, position
from projections.audit.log_outline import LogOutline
from projections.audit.ordering_rules import RedeliveryOrder, TopicOrder
from projections.audit.rule_table import UNEXPECTED, Rule, Violation
from projections.audit.session_audit import SessionAudit
from projections.audit.subscription_spans import (
    HeldSubscription,
    SubscribedSessions,
)
from projections.state.single_session import SessionFold
from projections.state.snapshot import encode_session
from protocol.mqtt.topics import matches

M = [position(100 + number, 0) for number in range(6)]
"""Positions of messages."""


class Message:
    """A message that takes effect and matches; it may be delivered at QoS 1 or 2 by default."""

    def __init__(
        self,
        number: int,
        topic: str = "t",
        *,
        qos: int = 2,
        granted: Sequence[tuple[int, bool]] = ((1, True), (2, False)),
        origin: str = "p",
    ) -> None:
        self.number = number
        self.topic = topic
        self.qos = qos
        self.granted = granted
        """QoS of each subscription, and whether the message must be delivered for it."""
        self.origin = origin


def expect(audit: SessionAudit, at: int, message: Message, ref: int | None = None) -> None:
    for granted, owed in message.granted:
        audit.expect(
            at,
            at if ref is None else ref,
            message.topic,
            1000,
            origin=message.origin,
            qos=message.qos,
            granted=granted,
            owed=owed,
        )


def simply(audit: SessionAudit, at: int, topic: str = "t", *, time_ms: int = 0) -> None:
    audit.expect(at, at, topic, time_ms, origin="p", qos=1, granted=1, owed=True)


_IN_THE_TURN = (Delivered, Queued, MessageDropped, Subscribed, Unsubscribed)


def audited(steps: Sequence[Event | Message], **known: Any) -> SessionAudit:
    """Audit steps of which each stands in a record of its own, from 101 on.

    What became of a message stands in the record in which it took effect.
    """
    audit = SessionAudit("s", **known)
    sequence, generation = 100, 0
    for one in steps:
        step = one
        if isinstance(one, SessionOpened):
            generation += 1
            step = replace(one, generation=generation)
        elif isinstance(one, SessionClosed):
            step = replace(one, generation=generation)
        if isinstance(step, Message):
            sequence = 100 + step.number
            expect(audit, position(sequence, 0), step, M[step.number])
        else:
            audit.take(step, position(sequence, 1), 1005)
            sequence += 0 if isinstance(step, _IN_THE_TURN) else 1
    audit.finish()
    return audit


def opened(*, resumed: bool = False, clean: bool = False) -> SessionOpened:
    return SessionOpened("s", resumed=resumed, clean=clean, level=4)


def delivered(
    pids: list[int], messages: list[int], qos: int = 1, queued: int = -1, under: str = "t"
) -> Delivered:
    return Delivered("s", under, qos, list(pids), [M[one] for one in messages], queued=queued)


def queued(messages: list[int], under: str = "t", qos: int = 1) -> Queued:
    return Queued("s", under, qos, [M[one] for one in messages], 0)


BEGIN = [opened(), Subscribed("s", [("t", 2)])]
ALL_KEPT: list[Event | Message] = [
    *BEGIN,
    Message(1),
    delivered([1], [1]),
    Message(2),
    delivered([2], [2], 2),
    Acked("s", [1]),
    Received("s", [2]),
    Redelivered("s", [2], "ack_wait"),
    Completed("s", [2]),
    SessionClosed("s", "closed"),
    Message(3),
    queued([3]),
    Message(4),
    queued([4]),
    opened(resumed=True),
    delivered([1, 2], [3, 4], queued=0),
    Acked("s", [1, 2]),
    Message(5),
    MessageDropped("s", "queue_messages", 1, [M[5]], "t"),
    MessagePublished("s", 2, False, ["x"], [], [7], 0, 0, 1),
    SessionClosed("s", "closed"),
    SessionExpired("s", "expired"),
]

# The others are logs of tests/spark, which an audit reads as a whole: brokenlogs.py and the like.
BROKEN: dict[str, tuple[str, list[Event | Message]]] = {
    "no session": (Rule.NO_SUBSCRIPTION, [delivered([1], [1])]),
    "a retained message twice in the queue": (
        UNEXPECTED, [*BEGIN, Queued("s", "t", 1, [M[0], M[0]], 0, retain=True)]
    ),
    "a retained message out of nothing": (
        Rule.NO_SUBSCRIPTION,
        [*BEGIN, Acked("s", []), Queued("s", "t", 1, [M[0]], 0, retain=True)],
    ),
    "a checkpoint of nothing": (Rule.CHECKPOINT, [SessionSnapshot("s", {"generation": 1})]),
    "events that do not fit": (
        Rule.EVENT, [*BEGIN, MessagePublished("s", 2, False, ["x"], [], [7], 0, 0, 2)]
    ),
}  # fmt: skip


def test_a_log_without_violations() -> None:
    audit = audited(ALL_KEPT)
    assert audit.violations == []
    assert audit.fold.state is None
    assert {qos: sum(counts) for qos, counts in audit.latencies.items()} == {1: 3, 2: 1}
    assert audit.slowest_ms == {1: 5, 2: 5}
    assert audit.latencies[1][3] == 3


@pytest.mark.parametrize("what", BROKEN)
def test_a_violated_guarantee_is_found(what: str) -> None:
    rule, steps = BROKEN[what]
    audit = audited(steps)
    assert audit.violations
    # Some of these break into a connection, too: see tests/spark/brokencauses.py.
    assert {one.rule for one in audit.violations} - {Rule.OWNERSHIP} == {rule}


def test_a_violation_has_its_position() -> None:
    audit = SessionAudit("s")
    for index, event in enumerate(BEGIN):
        audit.take(event, position(1, index), 0)
    for number in (1, 2, 3):
        simply(audit, position(2, number))
    refs = [position(2, number) for number in (1, 2, 3)]
    audit.take(Delivered("s", "t", 1, [[7, 3, 1]], [[refs[0], 3, 1]]), position(2, 4), 0)
    simply(audit, position(3, 0))
    audit.take(Delivered("s", "t", 1, [8], [position(3, 0)]), position(3, 1), 0)
    audit.take(Acked("s", [7, 10, 9]), position(4, 0), 0)
    simply(audit, position(5, 0))
    audit.finish()
    assert [(one.rule, format_position(one.at)) for one in audit.violations] == [
        (Rule.PACKET_ID_REUSE, "3.1"),
        (Rule.ACKNOWLEDGEMENT, "4.1"),
        (Rule.UNDELIVERED, "5.0"),
    ]


def test_violations_are_reported_one_by_one() -> None:
    found: list[Violation] = []
    audit = SessionAudit("s", tell=found.append)
    audit.take(opened(), position(1, 0), 0)
    audit.take(Acked("s", [[1, 5000, 1]]), position(2, 0), 0)
    assert [one.at for one in found] == [position(2, number) for number in range(5000)]
    assert not audit.violations


def test_a_turn_of_several_records_is_one() -> None:
    audit = SessionAudit("s")
    for index, event in enumerate(BEGIN):
        audit.take(event, position(1, index), 0)
    simply(audit, position(2, 0))
    audit.take(Delivered("s", "t", 1, [1], [position(2, 0)]), position(4, 0), 0, None, 2)
    assert not audit.violations
    simply(audit, position(5, 0))
    audit.take(Delivered("s", "t", 1, [2], [position(5, 0)]), position(7, 0), 0, None, 1)
    assert [one.rule for one in audit.violations] == [Rule.UNDELIVERED]


def test_a_cut_log_is_checked_from_where_its_state_is_known() -> None:
    before = SessionFold("s")
    for index, event in enumerate([*BEGIN, delivered([4], [1]), queued([2])]):
        before.take(event, position(9, index), 7)
    assert before.state is not None
    parts = encode_session(before.state)
    events: list[Event] = [
        Acked("s", [99]),  # not known yet whether it is right
        Delivered("s", "t", 1, [4], [M[1]]),
        *(SessionSnapshot("s", part, number, number == len(parts) - 1)
          for number, part in enumerate(parts)),
        delivered([5], [2], queued=0),
        Acked("s", [4, 5]),
        Acked("s", [6]),
    ]  # fmt: skip
    audit = SessionAudit("s", whole=position(500, 0), begin=position(200, 0))
    for index, event in enumerate(events):
        audit.take(event, position(300 + index, 0), 9)
    audit.finish()
    assert [(one.rule, one.at) for one in audit.violations] == [
        (Rule.ACKNOWLEDGEMENT, position(305, 0))
    ]


def at(sequence: int) -> int:
    return position(sequence, 0)


def test_a_message_meets_the_subscriptions_of_its_turn() -> None:
    chance = random.Random(3)
    filters = ("a", "a/b", "a/+", "#", "+/b", "$s/#", "c")
    for _ in range(50):
        held = SubscribedSessions()
        spans = []
        for number in range(chance.randrange(60)):
            begins = at(chance.randrange(50))
            ends = at(chance.randrange(50)) + begins
            one = HeldSubscription(str(number), 1, begins, begins, ends, no_local=False)
            spans.append((chance.choice(filters), one))
            held.add(*spans[-1])
        turns = sorted(at(chance.randrange(110)) for _ in range(80))
        behind = chance.randrange(80)
        for turn in turns[behind:] + turns[:behind]:
            topic = chance.choice(("a", "a/b", "$s/b", "c", "d"))
            found = {one.session for one in held.matching(topic, turn)}
            assert found == {
                one.session
                for topic_filter, one in spans
                if matches(topic_filter, topic) and one.begins <= turn <= one.ends
            }


def test_a_subscription_counts_for_the_whole_turn() -> None:
    """What is there in a part of it may bring a message, or not."""
    maybe = [(1, False)]
    for steps in (
        [*BEGIN, Message(1), Unsubscribed("s", ["t"]), delivered([1], [1])],
        [*BEGIN, Message(1, granted=maybe)],
        [*BEGIN, Message(1, granted=maybe), Acked("s", []), SessionClosed("s", "closed")],
        [*BEGIN, Message(1, granted=[(2, True)]), Subscribed("s", [("t", 0)])],
        [*BEGIN, Message(1, granted=[(2, True)]), Subscribed("s", [("t", 1)]),
         delivered([1], [1], 1)],
    ):  # fmt: skip
        assert audited(steps).violations == []


def test_a_possible_delivery_must_not_come_later() -> None:
    audit = audited([*BEGIN, Message(1, granted=[(1, False)]), Acked("s", []), delivered([1], [1])])
    assert [one.rule for one in audit.violations] == [UNEXPECTED]


def test_a_dropped_retained_message_may_be_on_its_way_as_well() -> None:
    drop = MessageDropped("s", "queue_messages", 1, [M[1]], "t")
    assert audited([*BEGIN, Message(1), delivered([1], [1]), Subscribed("s", [("t", 1)]), drop])
    steps = [*BEGIN, Message(1), delivered([1], [1]), Acked("s", []), Subscribed("s", [("t", 1)])]
    assert audited([*steps, drop]).violations == []


def test_topics_are_dropped_when_no_older_message_can_arrive() -> None:
    order = TopicOrder()
    order.queued("waits")
    for number in range(1000):
        assert order.delivered(number, number)
        order.end_turn()
    assert order.delivered("waits", 7)
    order.end_turn()
    assert len(order) == 1
    assert not order.delivered("waits", 6)
    order.left("waits")
    order.end_turn()
    assert len(order) == 0


def test_many_packets_are_sent_again() -> None:
    fold = SessionFold("s")
    fold.take(opened(), at(1), 0)
    fold.take(Subscribed("s", [("t", 1)]), at(2), 0)
    fold.take(Delivered("s", "t", 1, [[1, 60_000, 1]], [[at(3), 60_000, 1]]), at(3), 0)
    assert fold.state is not None
    resending = RedeliveryOrder(fold.state)
    resending.answered(Acked("s", [[1, 20_000, 1], 20_003]))
    for first in range(20_001, 60_001, 500):
        event = Redelivered("s", [[first, 500, 1]], "resumed")
        assert list(resending.again(event, at(9))) == []
    assert not resending


def test_lost_records_may_contain_the_beginning_of_a_connection() -> None:
    """What was in flight, and on which connection, is not known behind them."""
    state = SessionFold("s")
    events = [
        replace(opened(), generation=1, receive_maximum=2),
        Subscribed("s", [("t", 1)]),
        delivered([1, 2], [0, 1]),
    ]
    for index, event in enumerate([*events[:2], delivered([3, 4], [2, 3])]):
        state.take(event, position(101, index), 0)
    assert state.state is not None
    (kept,) = encode_session(state.state)
    behind = [SessionSnapshot("s", kept), Redelivered("s", [3, 4], "resumed")]

    def violations(*holes: int) -> list[Violation]:
        audit = SessionAudit("s", position(105, 0), outline=LogOutline(holes=holes))
        for index, event in enumerate(events[:2]):
            audit.take(event, position(101, index), 0)
        for number in (0, 1):
            expect(audit, position(102, number), Message(number), M[number])
        audit.take(events[2], position(102, 2), 0)
        for index, event in enumerate(behind):
            audit.take(event, position(104, index), 0)
        audit.finish()
        return audit.violations

    assert violations()
    assert not violations(position(104, 0))
