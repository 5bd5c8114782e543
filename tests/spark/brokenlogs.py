"""Logs that break one promise each, with its position; and similar logs that keep all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harness.logs import LogBuilder
from harness.nats import Nats

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
    Released,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    SessionTakenOver,
    Subscribed,
    Unsubscribed,
    WillArmed,
    WillCancelled,
    WillFired,
)
from eventstore.format.node_events import (
    BrokerStarted,
    CheckpointBegun,
    CheckpointCompleted,
    LogCut,
    MessagesCarried,
    OperatorActed,
    RetainedCleared,
    RetainedSnapshot,
    SessionSnapshot,
)
from eventstore.format.positions import Position, position
from eventstore.format.records import decode_record, encode_record, previous_of
from projections.state.single_session import SessionFold
from projections.state.snapshot import encode_session

Broken = tuple[str, Position, str | None]
"""Rule, position, session."""


@dataclass
class Case:
    """A log, and all that an audit must find in it."""

    log: LogBuilder
    expected: list[Broken] = field(default_factory=list)
    after: Callable[[Nats], None] | None = None
    """Done to the stream when the log is stored."""


# ------------------------------------------------------------------------------- events


def opened(
    session: str = "s", *, resumed: bool = False, clean: bool = False, generation: int = 1
) -> SessionOpened:
    return SessionOpened(session, resumed, clean, 4, generation=generation)


def closed(session: str = "s", generation: int = 1, reason: str = "closed") -> SessionClosed:
    return SessionClosed(session, reason, generation)


def published(
    *topics: str, session: str = "p", qos: int = 1, retain: bool = False, pid: int = 1, **more: Any
) -> MessagePublished:
    """Messages of three bytes each; their payloads begin at ``at``."""
    distinct = list(dict.fromkeys(topics))
    which = [distinct.index(topic) for topic in topics] if len(distinct) > 1 else []
    pids: list[Any] = list(range(pid, pid + len(topics))) if qos else []
    at = more.pop("at", 0)
    return MessagePublished(session, qos, retain, distinct, which, pids, 3, at, len(topics), **more)


def delivered(
    *refs: Position,
    session: str = "s",
    topic_filter: str = "t",
    qos: int = 1,
    pid: int = 1,
    retain: bool = False,
    queued: int = -1,
) -> Delivered:
    pids: list[Any] = list(range(pid, pid + len(refs)))
    return Delivered(session, topic_filter, qos, pids, [*refs], retain, queued)


def queued(*refs: Position, session: str = "s", topic_filter: str = "t", qos: int = 1) -> Queued:
    return Queued(session, topic_filter, qos, [*refs], 3 * len(refs))


def at(sequence: int, index: int = 0) -> Position:
    return position(sequence, index)


class Story:
    """Writes a log; ``s`` is subscribed to ``t`` and ``w/+`` at QoS 2, ``p`` publishes."""

    def __init__(self, name: str, *, clean: bool = False, bare: bool = False) -> None:
        self.log = LogBuilder(name)
        if bare:
            return
        self.log.record(
            BrokerStarted("0.1"),
            opened("p"),
            opened("s", clean=clean),
            Subscribed("s", [("t", 2), ("w/+", 2)]),
        )

    def __call__(self, *events: Event, payloads: int = 0, **given: Any) -> Story:
        """Append a record, with this many payloads."""
        texts = [f"{number:03}".encode() for number in range(payloads)]
        self.log.record(*events, payloads=texts, **given)
        return self

    def keeps(self) -> Case:
        return Case(self.log)

    def breaks(self, rule: str, place: Position, session: str | None = "s", *more: Broken) -> Case:
        return Case(self.log, [(rule, place, session), *more])


# ------------------------------------------------------------------- chain and turns


def record_missing(name: str) -> Case:
    story = Story(name)(published("t"), delivered(at(2)), payloads=1)
    story(Acked("s", [1]))(published("t", pid=2), delivered(at(4), pid=2), payloads=1)
    case = story.breaks("chain", at(3), None)
    case.after = lambda nats: story.log.lose(nats, [3])
    return case


def record_changed(name: str) -> Case:
    story = Story(name)(published("t"), delivered(at(2)), payloads=1)(Acked("s", [1]))
    story.log.damage(2)
    return story.breaks("chain", at(2), None)


def record_of_another_log(name: str) -> Case:
    """One that is right in itself, but continues another one."""
    story = Story(name)(published("t"), delivered(at(2)), payloads=1)(Acked("s", [1]))
    strange = decode_record(3, story.log.records[2])
    story.log.records[2] = encode_record(
        previous=b"\1" * 32,
        node=strange.node,
        time_ms=strange.time_ms,
        events=strange.raw_events,  # type: ignore[arg-type]
        payloads=[],
    )
    return story.breaks("chain", at(3), None)


def no_record(name: str) -> Case:
    story = Story(name)(published("t"), delivered(at(2)), payloads=1)
    story.log.raw(b"hello")
    return story.breaks("chain", at(3), None)


def beginning_gone(name: str) -> Case:
    story = Story(name)(published("t"), delivered(at(2)), payloads=1)(Acked("s", [1]))
    case = story.breaks("chain", at(2), None)
    case.after = lambda nats: story.log.cut(nats, 2)
    return case


def turn_left_open(name: str) -> Case:
    """Its last part is missing, and no broker was started."""
    story = Story(name)
    story.log.turn([published("t"), queued(at(2))], [delivered(at(2))], whole=False)
    story(Subscribed("p", [("x", 1)]))
    return story.breaks("turn", at(3), None)


def part_without_a_first(name: str) -> Case:
    story = Story(name)(Subscribed("p", [("x", 1)]), part=1)
    return story.breaks("turn", at(2), None)


def turn_of_a_crash(name: str) -> Case:
    """What was left open by a crash is void, and nothing is wrong with that."""
    story = Story(name)
    story.log.turn([published("t")], [delivered(at(2))], whole=False)
    story(
        BrokerStarted("0.1"),
        closed("p", reason="broker_restarted"),
        closed(reason="broker_restarted"),
    )
    return story.keeps()


def turn_of_three(name: str) -> Case:
    story = Story(name)
    story(published("t"), payloads=1, last=False)
    story(published("t", pid=2), payloads=1, part=1, last=False)
    story(delivered(at(2), at(3)), part=2)
    return story.keeps()


# ------------------------------------------------------------------- packet identifiers


def identifier_in_flight(name: str) -> Case:
    story = Story(name)(published("t"), delivered(at(2)), payloads=1)
    story(published("t", pid=2), delivered(at(3), pid=1), payloads=1)
    return story.breaks("packet_id_reuse", at(3, 1))


def identifier_being_released(name: str) -> Case:
    story = Story(name)(published("t", qos=2), payloads=1)
    story(Released("p", [1], [at(2)]), delivered(at(2), qos=2))(Received("s", [1]))
    story(published("t", pid=2), delivered(at(5), pid=1), payloads=1)
    return story.breaks("packet_id_reuse", at(5, 1))


def identifier_zero(name: str) -> Case:
    story = Story(name)(published("t"), delivered(at(2), pid=0), payloads=1)
    return story.breaks("packet_id_reuse", at(2, 1))


def identifier_of_a_publisher(name: str) -> Case:
    story = Story(name)(published("x", qos=2), payloads=1)(published("x", qos=2), payloads=1)
    return story.breaks("packet_id_reuse", at(3), "p")


def identifier_free_again(name: str) -> Case:
    story = Story(name)(published("t"), delivered(at(2)), payloads=1)(Acked("s", [1]))
    story(published("t", pid=1), delivered(at(4), pid=1), payloads=1)
    return story.keeps()


# --------------------------------------------------------------------------- deliveries


def never_delivered(name: str) -> Case:
    story = Story(name)(published("x", "t"), payloads=2)(Acked("s", []))
    return story.breaks("undelivered", at(2, 1))


def never_delivered_by_wildcard(name: str) -> Case:
    story = Story(name)(published("w/1", "w/1/2", "$w"), payloads=3)(published("w"), payloads=1)
    return story.breaks("undelivered", at(2))


def never_delivered_when_released(name: str) -> Case:
    story = Story(name)(published("t", "t", qos=2), payloads=2)
    story(Released("p", [1, 2], [at(2), at(2, 1)]), delivered(at(2), qos=2))
    return story.breaks("undelivered", at(3, 1))


def never_queued(name: str) -> Case:
    """The client was away."""
    story = Story(name)(closed())(published("t"), payloads=1)
    return story.breaks("undelivered", at(3))


def will_never_delivered(name: str) -> Case:
    story = Story(name)(opened("x"), WillArmed("x", "t", 2, False, 3, 0), payloads=1)(
        WillFired("x"),
        published("t", session="x", qos=2, will=True),
        closed("x"),
        payloads=1,
    )
    return story.breaks("undelivered", at(3, 1))


def delivered_too_late(name: str) -> Case:
    story = Story(name)(published("t"), payloads=1)(delivered(at(2)))
    return story.breaks("undelivered", at(3))


def retained_not_sent(name: str) -> Case:
    story = Story(name)(published("r", retain=True), payloads=1)(Subscribed("s", [("r", 1)]))
    story(published("x"), payloads=1)(Acked("p", []))
    return story.breaks("undelivered", at(3))


def dropped_with_a_reason(name: str) -> Case:
    story = Story(name)(closed())(
        published("t", "t"),
        queued(at(3)),
        MessageDropped("s", "queue_messages", 1, [at(3, 1)], "t"),
        payloads=2,
    )
    return story.keeps()


def nothing_owed(name: str) -> Case:
    """To no client that unsubscribed, subscribed at QoS 0 or later, or ended."""
    story = Story(name)(
        opened("zero"),
        Subscribed("zero", [("#", 0)]),
        opened("gone"),
        Subscribed("gone", [("#", 1)]),
    )
    story(closed("gone"))(SessionExpired("gone", "expired"))(Unsubscribed("s", ["t", "w/+"]))
    story(published("t"), payloads=1)(opened("late"), Subscribed("late", [("t", 1)]))
    return story.keeps()


def two_filters_one_copy(name: str) -> Case:
    story = Story(name)(Subscribed("s", [("#", 1), ("+", 2)]))
    story(published("t"), delivered(at(3), topic_filter="+"), payloads=1)
    return story.keeps()


def ended_in_the_turn(name: str) -> Case:
    """A clean session that ends in the turn of a publication need not get it."""
    story = Story(name, clean=True)(published("t"), closed(), payloads=1)
    return story.keeps()


def delivered_again(name: str) -> Case:
    story = Story(name)(published("t", qos=2), payloads=1)
    story(Released("p", [1], [at(2)]), delivered(at(2), qos=2))(Received("s", [1]))
    story(Completed("s", [1]))(delivered(at(2), qos=2, pid=2))
    return story.breaks("delivered_twice", at(6))


def queued_after_delivery(name: str) -> Case:
    story = Story(name)(published("t"), delivered(at(2)), payloads=1)(queued(at(2)))
    return story.breaks("delivered_twice", at(3))


def sent_again(name: str) -> Case:
    """Under its packet identifier: that is how it must be."""
    story = Story(name)(published("t"), delivered(at(2)), payloads=1)(closed())
    story(opened(resumed=True, generation=2), Redelivered("s", [1], "resumed"))(Acked("s", [1]))
    return story.keeps()


def out_of_order(name: str) -> Case:
    story = Story(name)(
        published("t", "t"), delivered(at(2, 1)), delivered(at(2), pid=2), payloads=2
    )
    return story.breaks("order", at(2, 3))


def order_of_two_topics(name: str) -> Case:
    story = Story(name)(
        published("t", "w/1"),
        delivered(at(2, 1), topic_filter="w/+"),
        delivered(at(2), pid=2),
        payloads=2,
    )
    return story.keeps()


def order_of_release(name: str) -> Case:
    """What counts is the release, not the publication."""
    story = Story(name)(published("t", "t", qos=2), payloads=2)
    story(Released("p", [2], [at(2, 1)]), delivered(at(2, 1), qos=2))
    story(Released("p", [1], [at(2)]), delivered(at(2), qos=2, pid=2))
    return story.keeps()


def not_subscribed(name: str) -> Case:
    story = Story(name)(published("x"), delivered(at(2)), payloads=1)
    return story.breaks("no_subscription", at(2, 1))


def no_such_filter(name: str) -> Case:
    story = Story(name)(published("t"), delivered(at(2), topic_filter="#"), payloads=1)
    return story.breaks("no_subscription", at(2, 1))


def after_unsubscribing(name: str) -> Case:
    story = Story(name)(published("t"), delivered(at(2)), payloads=1)(Unsubscribed("s", ["t"]))
    story(published("t", pid=2), delivered(at(4), pid=2), payloads=1)
    return story.breaks("no_subscription", at(4, 1))


def retained_for_another_filter(name: str) -> Case:
    story = Story(name)(published("r", retain=True), payloads=1)
    story(Subscribed("s", [("q", 1)]), delivered(at(2), topic_filter="q", retain=True))
    return story.breaks("no_subscription", at(3, 1))


# ---------------------------------------------------------------- acknowledgements, queue


def acknowledged_unknown(name: str) -> Case:
    story = Story(name)(published("t"), delivered(at(2)), payloads=1)(Acked("s", [1, 2]))
    return story.breaks("acknowledgement", at(3, 1))


def acknowledged_otherwise(name: str) -> Case:
    """PUBREC for a delivery at QoS 1."""
    story = Story(name)(published("t"), delivered(at(2)), payloads=1)(Received("s", [1]))
    return story.breaks("acknowledgement", at(3))


def completed_before_received(name: str) -> Case:
    story = Story(name)(published("t", qos=2), payloads=1)
    story(Released("p", [1], [at(2)]), delivered(at(2), qos=2))(Completed("s", [1]))
    return story.breaks("acknowledgement", at(4))


def released_unknown(name: str) -> Case:
    story = Story(name)(published("x", qos=2), payloads=1)(Released("p", [2], [at(2)]))
    return story.breaks("acknowledgement", at(3), "p")


def sent_again_unknown(name: str) -> Case:
    story = Story(name)(Redelivered("s", [7], "ack_wait"))
    return story.breaks("acknowledgement", at(2))


def not_from_the_head(name: str) -> Case:
    story = Story(name)(closed())(published("t", "t"), queued(at(3), at(3, 1)), payloads=2)
    story(opened(resumed=True, generation=2), delivered(at(3, 1), queued=3))
    return story.breaks("queue", at(4, 1))


def from_the_head(name: str) -> Case:
    story = Story(name)(closed())(published("t", "t"), queued(at(3), at(3, 1)), payloads=2)
    story(opened(resumed=True, generation=2), delivered(at(3), at(3, 1), queued=6))
    return story.keeps()


# ------------------------------------------------------------- QoS, turns, what is sent again


def at_another_qos(name: str) -> Case:
    story = Story(name)(published("t", qos=2), payloads=1)
    story(Released("p", [1], [at(2)]), delivered(at(2), qos=1))
    return story.breaks("qos", at(3, 1))


def at_more_than_was_granted(name: str) -> Case:
    story = Story(name)(Subscribed("s", [("t", 1)]))
    story(published("t", qos=2), Released("p", [1], [at(3)]), payloads=1, last=False)
    story(queued(at(3), qos=2), part=1)
    return story.breaks("qos", at(4))


def at_less_than_the_highest(name: str) -> Case:
    """Of two subscriptions the one with the higher QoS counts."""
    story = Story(name)(Subscribed("s", [("#", 1)]))(published("t", qos=2), payloads=1)
    story(Released("p", [1], [at(3)]), delivered(at(3), topic_filter="#"))
    return story.breaks("qos", at(4, 1))


def retained_at_more_than_was_granted(name: str) -> Case:
    story = Story(name)(published("r", qos=2, retain=True), payloads=1)(Released("p", [1], [at(2)]))
    story(Subscribed("s", [("r", 1)]), delivered(at(2), topic_filter="r", qos=2, retain=True))
    return story.breaks("qos", at(4, 1))


def changed_in_its_turn(name: str) -> Case:
    """A subscription counts for the whole turn, at each QoS that it had in it."""
    story = Story(name)(published("t"), Unsubscribed("s", ["t"]), delivered(at(2)), payloads=1)
    story(Subscribed("s", [("t", 2), ("u", 0)]))
    story(published("t", pid=2), Subscribed("s", [("t", 0)]), payloads=1)
    story(Subscribed("s", [("t", 2)]))(published("t", pid=3), payloads=1, last=False)
    story(Subscribed("s", [("t", 0)]), delivered(at(6), pid=2), part=1)
    story(published("u", pid=4), payloads=1, last=False)
    story(Subscribed("s", [("u", 1)]), delivered(at(8), topic_filter="u", pid=3), part=1)
    story(Subscribed("s", [("t", 2)]))(published("t", pid=5, qos=2), payloads=1)
    story(Released("p", [5], [at(11)]), Subscribed("s", [("t", 1)]), delivered(at(11), pid=4))
    return story.keeps()


def unsubscribed_in_a_part_before(name: str) -> Case:
    """Of the turn before: it counts no more."""
    story = Story(name)(published("t"), Unsubscribed("s", ["t"]), payloads=1, last=False)
    story(delivered(at(2)), part=1)(published("t", pid=2), delivered(at(4), pid=2), payloads=1)
    return story.breaks("no_subscription", at(4, 1))


def in_no_part_of_the_turn(name: str) -> Case:
    """Subscribed to after the turn of the message, and so due only in the next one."""
    story = Story(name)(published("u"), payloads=1)(Subscribed("s", [("u", 1)]))
    story(published("u", pid=2), Acked("p", []), payloads=1)
    return story.breaks("undelivered", at(4))


def retained_sent_twice(name: str) -> Case:
    story = Story(name)(published("r", retain=True), payloads=1)
    story(
        Subscribed("s", [("r", 1)]),
        delivered(at(2), topic_filter="r", retain=True),
        delivered(at(2), topic_filter="r", retain=True, pid=2),
    )
    return story.breaks("delivered_twice", at(3, 2))


def retained_sent_later(name: str) -> Case:
    story = Story(name)(published("r", retain=True), payloads=1)
    story(Subscribed("s", [("r", 1)]), delivered(at(2), topic_filter="r", retain=True))
    story(delivered(at(2), topic_filter="r", retain=True, pid=2))
    return story.breaks("no_subscription", at(4))


def retained_for_each_subscribe(name: str) -> Case:
    story = Story(name)(published("r", retain=True), payloads=1)
    story(
        Subscribed("s", [("r", 1)]),
        Subscribed("s", [("r", 1)]),
        delivered(at(2), topic_filter="r", retain=True),
        delivered(at(2), topic_filter="r", retain=True, pid=2),
    )
    return story.keeps()


def order_of_two_publishers(name: str) -> Case:
    """The standard asks for the order of each publisher."""
    story = Story(name)(opened("x"))(
        published("t"),
        published("t", session="x", at=3),
        delivered(at(3, 1)),
        delivered(at(3), pid=2),
        payloads=2,
    )
    return story.keeps()


def sent_again_out_of_order(name: str) -> Case:
    story = Story(name)(published("t", "t"), delivered(at(2), at(2, 1)), payloads=2)(closed())
    story(opened(resumed=True, generation=2), Redelivered("s", [2, 1], "resumed"))
    return story.breaks("order", at(4, 1))


def sent_before_what_is_sent_again(name: str) -> Case:
    story = Story(name)(published("t"), delivered(at(2)), payloads=1)(closed())
    story(opened(resumed=True, generation=2))
    story(published("t", pid=2), delivered(at(5), pid=2), payloads=1)
    return story.breaks("order", at(5, 1))


def sent_again_in_order(name: str) -> Case:
    """PUBREL first; what is acknowledged meanwhile is not sent again, what comes new waits."""
    story = Story(name)(
        published("t", "t", "t"), delivered(at(2), at(2, 1)), payloads=3, last=False
    )
    story(delivered(at(2, 2), pid=3), part=1)
    story(published("t", qos=2, pid=9), Released("p", [9], [at(4)]), payloads=1, last=False)
    story(delivered(at(4), qos=2, pid=4), part=1)(Received("s", [4]))(closed())
    story(opened(resumed=True, generation=2), Redelivered("s", [4], "resumed"))
    story(Acked("s", [2]))(published("t", pid=10), queued(at(10)), payloads=1)
    story(Redelivered("s", [1, 3], "resumed"), delivered(at(10), pid=5, queued=3))
    story(Redelivered("s", [3, 1], "ack_wait"))
    return story.keeps()


# --------------------------------------------------------------------------------- drops


def dropped_more_than_named(name: str) -> Case:
    story = Story(name)(closed())(published("t", "t"), queued(at(3), at(3, 1)), payloads=2)
    story(MessageDropped("s", "queue_messages", 2, [at(3)], "t", 6))
    return story.breaks("queue", at(4))


def dropped_without_a_reason(name: str) -> Case:
    story = Story(name)(published("t"), MessageDropped("s", "", 1, [at(2)], "t"), payloads=1)
    return story.breaks("drop", at(2, 1))


def dropped_on_its_way(name: str) -> Case:
    story = Story(name)(published("t"), delivered(at(2)), payloads=1)
    story(MessageDropped("s", "queue_messages", 1, [at(2)], "t"))
    return story.breaks("undelivered", at(3))


def dropped_too_late(name: str) -> Case:
    story = Story(name)(published("t"), payloads=1)
    story(MessageDropped("s", "queue_messages", 1, [at(2)], "t"))
    return story.breaks("undelivered", at(3))


# --------------------------------------------------------------------------- retained


def checkpoint(
    story: Story,
    *events: Event,
    sessions: int,
    retained: int,
    payloads: int = 0,
    number: int = 1,
) -> Story:
    """A checkpoint in one record, of sessions in a given state or without one."""
    begun = at(story.log.last + 1)
    completed = CheckpointCompleted(number, begun, sessions, retained)
    return story(CheckpointBegun(number), *events, completed, payloads=payloads)


def snapshot(story: Story, session: str, **changed: Any) -> SessionSnapshot:
    """The state of a session as of now, with some of its fields changed."""
    fold = SessionFold(session)
    for sequence, data in enumerate(story.log.records, 1):
        record = decode_record(sequence, data)
        for index, event in record.events():
            if getattr(event, "session", None) == session:
                fold.take(event, at(sequence, index), record.time_ms)
    assert fold.state is not None
    (part,) = encode_session(fold.state)
    return SessionSnapshot(session, {**part, **changed})


def _retained_checkpoint(name: str, ref: Position, payload: bytes = b"000") -> Story:
    story = Story(name)(published("r", retain=True), payloads=1)
    story(published("r", retain=True, pid=2), payloads=1)
    begun = at(4)
    story.log.record(
        CheckpointBegun(1),
        snapshot(story, "p"),
        snapshot(story, "s"),
        RetainedSnapshot(["r"], [1], [ref], 3, 0, 1),
        CheckpointCompleted(1, begun, 2, 1),
        payloads=[payload],
    )
    return story


def repeats_the_one_before(name: str) -> Case:
    return _retained_checkpoint(name, at(2)).breaks("retained", at(4, 3), None)


def repeats_other_bytes(name: str) -> Case:
    return _retained_checkpoint(name, at(3), b"abc").breaks("retained", at(4, 3), None)


def repeats_the_last(name: str) -> Case:
    """And a filter that is subscribed to then gets it under its new position."""
    story = _retained_checkpoint(name, at(3))
    story(Subscribed("s", [("r", 1)]), delivered(at(4, 3), topic_filter="r", retain=True))
    return story.keeps()


def repeats_what_was_cleared(name: str) -> Case:
    story = Story(name)(published("r", retain=True), payloads=1)
    story(OperatorActed("clear_retained", "ops", "r"), RetainedCleared(["r"]))
    begun = at(4)
    story(
        CheckpointBegun(1),
        snapshot(story, "p"),
        snapshot(story, "s"),
        RetainedSnapshot(["r"], [1], [at(2)], 3, 0, 1),
        CheckpointCompleted(1, begun, 2, 1),
        payloads=1,
    )
    return story.breaks("retained", at(4, 3), None)


def replayed_though_replaced(name: str) -> Case:
    story = Story(name)(published("r", retain=True), payloads=1)
    story(published("r", retain=True, pid=2), payloads=1)
    story(Subscribed("s", [("r", 1)]), delivered(at(2), topic_filter="r", retain=True))
    return story.breaks("retained", at(4, 1), "s", ("undelivered", at(4), "s"))


def retained_by_release(name: str) -> Case:
    """A message of QoS 2 is retained with its PUBREL, not before."""
    story = Story(name)(published("r", qos=2, retain=True), payloads=1)
    story(Subscribed("s", [("r", 2)]))(Unsubscribed("s", ["r"]))(Released("p", [1], [at(2)]))
    story(Subscribed("s", [("r", 2)]), delivered(at(2), topic_filter="r", qos=2, retain=True))
    return story.keeps()


# ------------------------------------------------------------------- checkpoints and cuts


def snapshot_of_another_state(name: str) -> Case:
    story = Story(name)
    checkpoint(
        story, snapshot(story, "p"), snapshot(story, "s", last_pid=9), sessions=2, retained=0
    )
    return story.breaks("checkpoint", at(2, 2))


def session_not_repeated(name: str) -> Case:
    story = Story(name)
    checkpoint(story, snapshot(story, "p"), sessions=1, retained=0)
    return story.breaks("checkpoint", at(2, 2))


def retained_not_repeated(name: str) -> Case:
    story = Story(name)(published("r", retain=True), payloads=1)
    checkpoint(story, snapshot(story, "p"), snapshot(story, "s"), sessions=2, retained=0)
    return story.breaks("checkpoint", at(3, 3), None)


def counts_of_a_checkpoint(name: str) -> Case:
    story = Story(name)
    checkpoint(story, snapshot(story, "p"), snapshot(story, "s"), sessions=3, retained=0)
    return story.breaks("checkpoint", at(2, 3), None)


def cut_anywhere(name: str) -> Case:
    """No checkpoint begins there."""
    story = Story(name)(Acked("s", []))
    link = previous_of(story.log.records[1]).hex()
    story(LogCut(2, link, story.log.time_ms, "keep"))
    return story.breaks("checkpoint", at(3), None)


def _waiting_over_a_checkpoint(name: str) -> Story:
    story = Story(name)(closed())(published("t"), queued(at(3)), payloads=1)
    return checkpoint(story, snapshot(story, "p"), snapshot(story, "s"), sessions=2, retained=0)


def _cut(story: Story, first: int) -> LogCut:
    data = story.log.records[first - 1]
    return LogCut(first, previous_of(data).hex(), decode_record(first, data).time_ms, "keep")


def cut_off_though_needed(name: str) -> Case:
    story = _waiting_over_a_checkpoint(name)
    story(_cut(story, 4))
    return story.breaks("checkpoint", at(5))


def carried_over_a_cut(name: str) -> Case:
    story = _waiting_over_a_checkpoint(name)
    story(MessagesCarried([at(3)], ["t"], [], 3, 0, 1), payloads=1)(_cut(story, 4))
    story(opened(resumed=True, generation=2), delivered(at(3), queued=3))(Acked("s", [1]))
    return story.keeps()


def carried_with_other_bytes(name: str) -> Case:
    story = _waiting_over_a_checkpoint(name)
    story.log.record(MessagesCarried([at(3)], ["t"], [], 3, 0, 1), payloads=[b"abc"])
    story(_cut(story, 4))
    return story.breaks("checkpoint", at(5), None)


def cut_log(name: str) -> Case:
    """A log that begins with a checkpoint, and continues correctly."""
    story = carried_over_a_cut(name).log
    case = Case(story)
    case.after = lambda nats: story.cut(nats, 4)
    return case


def cut_log_with_an_earlier_cut(name: str) -> Case:
    """What was carried over the earlier one is cut off."""
    story = _waiting_over_a_checkpoint(name)
    story(MessagesCarried([at(3)], ["t"], [], 3, 0, 1), payloads=1)
    both = snapshot(story, "p"), snapshot(story, "s")
    story(CheckpointBegun(2), *both, CheckpointCompleted(2, at(6), 2, 0))(_cut(story, 4))
    story(MessagesCarried([at(3)], ["t"], [], 3, 0, 1), payloads=1)(_cut(story, 6))
    case = story.keeps()
    case.after = lambda nats: story.log.cut(nats, 6)
    return case


def cut_log_that_goes_wrong(name: str) -> Case:
    story = _waiting_over_a_checkpoint(name)
    story(MessagesCarried([at(3)], ["t"], [], 3, 0, 1), payloads=1)(_cut(story, 4))
    story(published("t"), payloads=1)
    case = story.breaks("undelivered", at(7))
    case.after = lambda nats: story.log.cut(nats, 4)
    return case


# --------------------------------------------------------------------- sessions, ownership


def resumed_out_of_nothing(name: str) -> Case:
    story = Story(name)(opened("x", resumed=True))
    return story.breaks("session", at(2), "x")


def thrown_away(name: str) -> Case:
    story = Story(name)(closed())(opened(generation=2))
    return story.breaks("session", at(3))


def resumed_though_clean(name: str) -> Case:
    story = Story(name)(closed())(opened(resumed=True, clean=True, generation=2))
    return story.breaks("session", at(3))


def resumed_out_of_a_clean_one(name: str) -> Case:
    story = Story(name, clean=True)(WillArmed("s", "q", 0, False, 3, 0), payloads=1)(closed())
    story(opened(resumed=True, generation=2))
    wills = [("will", at(number), "s") for number in (2, 3, 4)]
    return story.breaks("session", at(4), "s", *wills)


def expired_while_connected(name: str) -> Case:
    story = Story(name)(SessionExpired("s", "expired"))
    return story.breaks("session", at(2))


def resumed_out_of_nothing_after_a_cut(name: str) -> Case:
    """The checkpoint that the log begins with does not have the session."""
    story = _waiting_over_a_checkpoint(name)
    story(MessagesCarried([at(3)], ["t"], [], 3, 0, 1), payloads=1)(_cut(story, 4))
    story(opened("x", resumed=True, generation=2))
    case = story.breaks("session", at(7), "x")
    case.after = lambda nats: story.log.cut(nats, 4)
    return case


def two_connections(name: str) -> Case:
    story = Story(name)(opened(resumed=True, generation=2))
    return story.breaks("ownership", at(2))


def generations(name: str) -> Case:
    story = Story(name)(closed())(opened(resumed=True, generation=7))
    return story.breaks("ownership", at(3))


def closed_by_another(name: str) -> Case:
    story = Story(name)(closed(generation=3))
    return story.breaks("ownership", at(2))


def delivered_to_nobody(name: str) -> Case:
    story = Story(name)(closed())(published("t"), delivered(at(3)), payloads=1)
    return story.breaks("ownership", at(3, 1))


def taken_over(name: str) -> Case:
    story = Story(name)(
        SessionTakenOver("s", 1), closed(reason="taken_over"), opened(resumed=True, generation=2)
    )
    story(opened("x", clean=True), WillArmed("x", "q", 1, False, 3, 0), payloads=1)
    story(WillCancelled("x"), closed("x", reason="disconnect"))(opened("x", clean=True))
    return story.keeps()


# ------------------------------------------------------------------------------- events


def unreadable(name: str) -> Case:
    story = Story(name)
    story.log.record({"e": "Acked", "v": 1, "session": "s", "pids": "many"})
    return story.breaks("event", at(2), None)


def misfit(name: str) -> Case:
    """Payloads that the record does not hold."""
    story = Story(name)(published("t"), delivered(at(2)), payloads=0)
    return story.breaks("event", at(2), None)


BROKEN = (
    record_missing, record_changed, record_of_another_log, no_record, beginning_gone,
    turn_left_open, part_without_a_first,
    identifier_in_flight, identifier_being_released, identifier_zero, identifier_of_a_publisher,
    never_delivered, never_delivered_by_wildcard, never_delivered_when_released, never_queued,
    will_never_delivered, delivered_too_late, retained_not_sent, delivered_again,
    queued_after_delivery, out_of_order, not_subscribed, no_such_filter, after_unsubscribing,
    retained_for_another_filter,
    acknowledged_unknown, acknowledged_otherwise, completed_before_received, released_unknown,
    sent_again_unknown, not_from_the_head,
    repeats_the_one_before, repeats_other_bytes, repeats_what_was_cleared,
    replayed_though_replaced,
    snapshot_of_another_state, session_not_repeated, retained_not_repeated,
    counts_of_a_checkpoint, cut_anywhere, cut_off_though_needed, carried_with_other_bytes,
    cut_log_that_goes_wrong,
    at_another_qos, at_more_than_was_granted, at_less_than_the_highest,
    retained_at_more_than_was_granted, unsubscribed_in_a_part_before, in_no_part_of_the_turn,
    retained_sent_twice, retained_sent_later, sent_again_out_of_order,
    sent_before_what_is_sent_again, dropped_more_than_named, dropped_without_a_reason,
    dropped_on_its_way, dropped_too_late,
    resumed_though_clean, resumed_out_of_a_clean_one, expired_while_connected,
    resumed_out_of_nothing_after_a_cut, resumed_out_of_nothing, thrown_away,
    two_connections, generations, closed_by_another, delivered_to_nobody,
    unreadable, misfit,
)  # fmt: skip
KEPT = (
    turn_of_a_crash, turn_of_three, identifier_free_again, dropped_with_a_reason, nothing_owed,
    two_filters_one_copy, ended_in_the_turn, changed_in_its_turn, retained_for_each_subscribe,
    order_of_two_publishers, sent_again_in_order, sent_again, order_of_two_topics, order_of_release,
    from_the_head, repeats_the_last, retained_by_release, carried_over_a_cut, cut_log,
    cut_log_with_an_earlier_cut, taken_over,
)  # fmt: skip
