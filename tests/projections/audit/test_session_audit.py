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
    Refused,
    Released,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Subscribed,
    Unsubscribed,
    WillArmed,
)
from eventstore.format.node_events import CheckpointBegun, OperatorActed, SessionSnapshot
from eventstore.format.positions import format_position, position
from projections.audit.log_outline import LogOutline
from projections.audit.ordering_rules import RedeliveryOrder, TopicOrder
from projections.audit.rule_table import UNEXPECTED, Rule, Violation
from projections.audit.session_audit import SessionAudit
from projections.audit.subscription_spans import (
    HeldSubscription,
    SubscribedSessions,
    SubscriptionSpan,
    SubscriptionSpans,
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

BROKEN: dict[str, tuple[str, list[Event | Message]]] = {
    "an identifier that is in flight": (
        Rule.PACKET_ID_REUSE,
        [*BEGIN, Message(1), delivered([1], [1]), Message(2), delivered([1], [2])],
    ),
    "an identifier that waits for PUBCOMP": (
        Rule.PACKET_ID_REUSE,
        [*BEGIN, Message(1), delivered([1], [1], 2), Received("s", [1]),
         Message(2), delivered([1], [2])],
    ),
    "identifier 0": (Rule.PACKET_ID_REUSE, [*BEGIN, Message(1), delivered([0], [1])]),
    "one identifier for two": (
        Rule.PACKET_ID_REUSE,
        [*BEGIN, Message(1), queued([1]), Message(2), queued([2]),
         delivered([3, 3], [1, 2], queued=0)],
    ),
    "a PUBLISH that was taken twice": (
        Rule.PACKET_ID_REUSE,
        [*BEGIN, MessagePublished("s", 2, False, ["x"], [], [7], 0, 0, 1),
         MessagePublished("s", 2, False, ["x"], [], [7], 0, 0, 1)],
    ),
    "a message that nothing became of": (Rule.UNDELIVERED, [*BEGIN, Message(1)]),
    "a message of which another turn tells": (
        Rule.UNDELIVERED,
        [*BEGIN, Message(1), Acked("s", []), delivered([1], [1])],
    ),
    "a message that a session that ended was owed": (
        Rule.UNDELIVERED,
        [*BEGIN, Message(1), SessionClosed("s", "closed"), SessionExpired("s", "expired")],
    ),
    "a message that did not match": (UNEXPECTED, [*BEGIN, delivered([1], [1])]),
    "a message that was delivered before": (
        UNEXPECTED,
        [*BEGIN, Message(1), delivered([1], [1], 2), Received("s", [1]), Completed("s", [1]),
         delivered([2], [1], 2)],
    ),
    "a message that was queued before": (
        UNEXPECTED,
        [*BEGIN, Message(1), queued([1]), queued([1])],
    ),
    "another filter": (Rule.NO_SUBSCRIPTION, [*BEGIN, Message(1), delivered([1], [1], under="u")]),
    "a filter that does not match": (
        Rule.NO_SUBSCRIPTION,
        [opened(), Subscribed("s", [("u/+", 1), ("t", 1)]), Message(1),
         delivered([1], [1], under="u/+")],
    ),
    "no session": (Rule.NO_SUBSCRIPTION, [delivered([1], [1])]),
    "a retained message after UNSUBSCRIBE": (
        Rule.NO_SUBSCRIPTION,
        [*BEGIN, Message(1), delivered([1], [1]), Acked("s", []), Unsubscribed("s", ["t"]),
         Delivered("s", "t", 1, [2], [M[0]], retain=True)],
    ),
    "a later message first": (
        Rule.ORDER,
        [*BEGIN, Message(1), queued([1]), Message(2), delivered([1], [2]),
         delivered([2], [1], queued=0)],
    ),
    "a later message first, of two filters": (
        Rule.ORDER,
        [*BEGIN, Subscribed("s", [("#", 2)]), Message(1), queued([1]), Message(2), queued([2], "#"),
         Message(3, "u"), delivered([1], [3], under="#"), Acked("s", [1]),
         delivered([2], [2], queued=0, under="#"), delivered([3], [1], queued=0)],
    ),
    "not the QoS of the message": (
        Rule.QOS, [*BEGIN, Message(1, qos=1, granted=[(2, True)]), delivered([1], [1], 2)]
    ),
    "not the QoS that was granted": (
        Rule.QOS, [*BEGIN, Message(1, granted=[(1, True)]), queued([1], qos=2)]
    ),
    "not the highest QoS": (
        Rule.QOS, [*BEGIN, Message(1, granted=[(1, True), (2, True)]), delivered([1], [1], 1)]
    ),
    "a retained message at a QoS that was not granted": (
        Rule.QOS,
        [opened(), Subscribed("s", [("t", 1)]), Delivered("s", "t", 2, [1], [M[0]], retain=True)],
    ),
    "a retained message twice": (
        UNEXPECTED,
        [*BEGIN, Delivered("s", "t", 1, [1, 2], [M[0], M[0]], retain=True)],
    ),
    "a retained message twice in the queue": (
        UNEXPECTED, [*BEGIN, Queued("s", "t", 1, [M[0], M[0]], 0, retain=True)]
    ),
    "a retained message out of nothing": (
        Rule.NO_SUBSCRIPTION,
        [*BEGIN, Acked("s", []), Queued("s", "t", 1, [M[0]], 0, retain=True)],
    ),
    "sent again out of order": (
        Rule.ORDER,
        [*BEGIN, Message(1), delivered([1], [1]), Message(2), delivered([2], [2]),
         SessionClosed("s", "closed"), opened(resumed=True), Redelivered("s", [2, 1], "resumed")],
    ),
    "PUBLISH again before PUBREL": (
        Rule.ORDER,
        [*BEGIN, Message(1), delivered([1], [1]), Message(2), delivered([2], [2], 2),
         Received("s", [2]), SessionClosed("s", "closed"), opened(resumed=True),
         Redelivered("s", [1], "resumed"), Redelivered("s", [2], "resumed")],
    ),
    "something new before what is sent again": (
        Rule.ORDER,
        [*BEGIN, Message(1), delivered([1], [1]), SessionClosed("s", "closed"),
         opened(resumed=True), Message(2), delivered([2], [2])],
    ),
    "a drop without a reason": (
        Rule.DROP, [*BEGIN, Message(1), MessageDropped("s", "", 1, [M[1]], "t")]
    ),
    "a drop in another turn": (
        Rule.UNDELIVERED,
        [*BEGIN, Message(1), Acked("s", []),
         MessageDropped("s", "queue_messages", 1, [M[1]], "t")],
    ),
    "a drop of what is on its way": (
        Rule.UNDELIVERED,
        [*BEGIN, Message(1), delivered([1], [1]), Acked("s", []),
         MessageDropped("s", "queue_messages", 1, [M[1]], "t")],
    ),
    "a drop that does not name all": (
        Rule.QUEUE,
        [*BEGIN, Message(1), queued([1]), Message(2), queued([2]),
         MessageDropped("s", "not_permitted", 2, [M[1]], "t", 0)],
    ),
    "not the head of the queue": (
        Rule.QUEUE,
        [*BEGIN, Message(1, "t"), queued([1]), Message(2, "t"), queued([2]),
         delivered([1], [2], queued=0)],
    ),
    "another QoS than was queued": (
        Rule.QUEUE,
        [*BEGIN, Message(1), queued([1]), delivered([1], [1], 2, queued=0)],
    ),
    "PUBACK for nothing": (Rule.ACKNOWLEDGEMENT, [*BEGIN, Acked("s", [1])]),
    "PUBACK for QoS 2": (Rule.ACKNOWLEDGEMENT, [*BEGIN, Message(1), delivered([1], [1], 2),
                                           Acked("s", [1])]),
    "PUBREC for QoS 1": (Rule.ACKNOWLEDGEMENT, [*BEGIN, Message(1), delivered([1], [1]),
                                           Received("s", [1])]),
    "PUBCOMP before PUBREC": (Rule.ACKNOWLEDGEMENT, [*BEGIN, Message(1), delivered([1], [1], 2),
                                                Completed("s", [1])]),
    "sent again though acknowledged": (
        Rule.ACKNOWLEDGEMENT,
        [*BEGIN, Message(1), delivered([1], [1]), Acked("s", [1]),
         Redelivered("s", [1], "ack_wait")],
    ),
    "sent again as resumed, without a reconnect": (
        Rule.ACKNOWLEDGEMENT,
        [*BEGIN, Message(1), delivered([1], [1]), Redelivered("s", [1], "resumed")],
    ),
    "sent again as resumed, but sent after that": (
        Rule.ACKNOWLEDGEMENT,
        [*BEGIN, Message(1), delivered([1], [1]), SessionClosed("s", "closed"),
         opened(resumed=True), Redelivered("s", [1], "resumed"), Message(2), delivered([2], [2]),
         Redelivered("s", [2], "resumed")],
    ),
    "PUBREL for nothing": (Rule.ACKNOWLEDGEMENT, [*BEGIN, Released("s", [1], [M[1]])]),
    "a session that was not kept": (Rule.SESSION, [*BEGIN, opened()]),
    "a session that there was not": (Rule.SESSION, [opened(resumed=True)]),
    "a clean session that was resumed": (
        Rule.SESSION, [opened(clean=True), opened(resumed=True)]
    ),
    "a session that was resumed although a clean one was requested": (
        Rule.SESSION, [opened(), SessionClosed("s", "closed"), opened(resumed=True, clean=True)]
    ),
    "a client that was there": (Rule.SESSION, [*BEGIN, SessionExpired("s", "expired")]),
    "an end of nothing": (Rule.SESSION, [SessionExpired("s", "expired")]),
    "a wrong checkpoint": (Rule.CHECKPOINT, [*BEGIN, SessionSnapshot("s", {"generation": 1})]),
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


@pytest.mark.parametrize("reason", [0x87, 0x95], ids=["by its client", "too large"])
def test_a_refused_delivery_is_not_sent_again(reason: int) -> None:
    audit = audited(
        [*BEGIN, Message(1), delivered([1], [1], 2), Message(2), delivered([2], [2], 2),
         SessionClosed("s", "closed"), replace(opened(resumed=True), level=5, packet_maximum=40),
         Refused("s", [1], [reason]), Redelivered("s", [2], "resumed"),
         Message(3), delivered([3], [3], 2)]
    )  # fmt: skip
    assert audit.violations == []


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


def test_an_unexpected_message_is_named() -> None:
    audit = audited([*BEGIN, delivered([1, 2], [3, 1])])
    assert [(one.rule, one.ref) for one in audit.violations] == [
        (UNEXPECTED, M[3]),
        (UNEXPECTED, M[1]),
    ]


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


def test_a_session_that_ends_in_the_turn_of_a_message_need_not_get_it() -> None:
    audit = SessionAudit("s")
    audit.take(opened(clean=True), position(1, 0), 0)
    audit.take(Subscribed("s", [("t", 1)]), position(1, 1), 0)
    simply(audit, position(2, 0))
    audit.take(SessionClosed("s", "closed"), position(3, 0), 0, None, 1)
    audit.finish()
    assert not audit.violations


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


def test_packets_resumed_before_the_checkpoint_of_a_cut_log_are_sent_again() -> None:
    """The log begins with the client that resumes them; the checkpoint says what they are."""
    before = SessionFold("s")
    for index, event in enumerate([*BEGIN, delivered([4], [1])]):
        before.take(event, position(9, index), 7)
    assert before.state is not None
    (part,) = encode_session(before.state)
    audit = SessionAudit("s", whole=position(300, 9), begin=position(300, 0))
    audit.take(replace(opened(resumed=True), generation=2), position(300, 0), 9)
    audit.take(SessionSnapshot("s", part, 0, last=True), position(300, 1), 9)
    audit.take(Redelivered("s", [4], "resumed"), position(301, 0), 9)
    audit.finish()
    assert not audit.violations


@pytest.mark.parametrize("whole", [0, 60])
def test_a_kick_in_the_turn_in_which_a_cut_log_begins_need_not_end_anything(whole: int) -> None:
    """The end of the connection is not checked before the session is known."""
    audit = SessionAudit("s", whole=position(whole, 0))
    events: list[Event] = [OperatorActed("kick", "o", "s", "s")]
    for index, event in enumerate(events):
        audit.take(event, position(50, index), 0)
    audit.finish()
    assert [one.rule for one in audit.violations] == ([] if whole else [Rule.SESSION])


def test_messages_from_before_a_cut_are_not_unexpected() -> None:
    audit = SessionAudit("s", whole=position(60, 0), begin=position(50, 0))
    for index, event in enumerate(BEGIN):
        audit.take(event, position(55, index), 0)
    audit.take(Delivered("s", "t", 1, [1], [position(40, 0)]), position(70, 0), 0)
    assert not audit.violations
    audit.take(Delivered("s", "t", 1, [2], [position(51, 0)]), position(71, 0), 0)
    assert [one.rule for one in audit.violations] == [UNEXPECTED]


def at(sequence: int) -> int:
    return position(sequence, 0)


def test_spans_of_subscriptions() -> None:
    events: list[Event] = [
        opened(),
        Subscribed("s", [("a", 1), ("b", 0)]),
        Subscribed("s", [("a", 1), ("b", 2)]),
        Unsubscribed("s", ["a", "c"]),
        SessionClosed("s", "closed"),
        opened(resumed=True),
        Subscribed("s", [("a", 2)]),
        opened(clean=True),
        WillArmed("s", "w", 0, False, 0, 0),
        Subscribed("s", [("d", 1)]),
        SessionClosed("s", "closed"),
        SessionExpired("s", "expired"),
        opened(),
        Subscribed("s", [("e", 1)]),
    ]
    spans = SubscriptionSpans("s")
    for index, event in enumerate(events):
        spans.take(event, at(index))
    assert spans.finish() == [
        SubscriptionSpan("b", 0, at(1), at(2), at(1), at(2)),
        SubscriptionSpan("a", 1, at(1), at(3), at(1), at(3)),
        SubscriptionSpan("b", 2, at(2), at(7), at(2), at(7)),
        SubscriptionSpan("a", 2, at(6), at(7), at(6), at(7)),
        SubscriptionSpan("d", 1, at(9), at(10), at(9), at(10)),
        SubscriptionSpan("e", 1, at(13), None, at(13), None),
    ]


def test_spans_of_a_cut_log_begin_with_the_checkpoint() -> None:
    fold = SessionFold("s")
    fold.take(opened(), position(1, 0), 0)
    fold.take(Subscribed("s", [("a", 1), ("b", 2)]), position(1, 1), 0)
    assert fold.state is not None
    (part,) = encode_session(fold.state)
    spans = SubscriptionSpans("s", whole=position(30, 0))
    spans.take(SessionSnapshot("s", part), position(20, 0))
    spans.take(Unsubscribed("s", ["a"]), position(25, 0))
    spans.take(SessionSnapshot("s", part), position(40, 0))  # repeats: not from here on
    assert spans.finish() == [
        SubscriptionSpan("a", 1, at(20), at(25), at(20), at(25)),
        SubscriptionSpan("b", 2, at(20), None, at(20), None),
    ]


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


def test_events_of_other_sessions_change_nothing() -> None:
    audit = audited([*BEGIN, CheckpointBegun(1)])
    assert audit.violations == []
    assert audit.fold.state is not None


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


def test_a_subscription_to_something_else_changes_nothing() -> None:
    audit = audited([*BEGIN, Message(1, granted=[(1, True)]), Subscribed("s", [("u", 0)])])
    assert [one.rule for one in audit.violations] == [Rule.UNDELIVERED]


def test_a_retained_message_for_each_subscribe() -> None:
    again = [Subscribed("s", [("t", 1)]), Delivered("s", "t", 1, [1, 2], [M[0], M[0]], retain=True)]
    assert audited([*BEGIN, *again]).violations == []


def test_a_dropped_retained_message_may_be_on_its_way_as_well() -> None:
    drop = MessageDropped("s", "queue_messages", 1, [M[1]], "t")
    assert audited([*BEGIN, Message(1), delivered([1], [1]), Subscribed("s", [("t", 1)]), drop])
    steps = [*BEGIN, Message(1), delivered([1], [1]), Acked("s", []), Subscribed("s", [("t", 1)])]
    assert audited([*steps, drop]).violations == []


def test_publishers_have_an_order_each() -> None:
    steps = [*BEGIN, Message(1, origin="p"), queued([1]), Message(2, origin="q"),
             delivered([1], [2]), delivered([2], [1], queued=0)]  # fmt: skip
    assert audited(steps).violations == []


def test_a_session_that_the_checkpoint_does_not_have_was_not() -> None:
    audit = SessionAudit("s", whole=at(100), begin=at(90))
    audit.take(opened(resumed=True), at(99), 0)  # not known yet
    assert audit.violations == []
    audit = SessionAudit("s", whole=at(100), begin=at(90))
    audit.take(opened(resumed=True), at(101), 0)
    assert [one.rule for one in audit.violations] == [Rule.SESSION]


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
