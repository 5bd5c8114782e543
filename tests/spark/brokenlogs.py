"""Logs that break one promise each, with its position; and similar logs that keep all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
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


class Stories(dict[str, Case]):
    """Cases by their name; those of functions have the names of these."""

    def add(self, make: Callable[[], Case]) -> Callable[[], Case]:
        """Add the case that a function makes."""
        self[make.__name__] = make()
        return make


LOGS = Stories()
_NUMBERS = count(1)


class Story:
    """Writes a log; ``s`` is subscribed to ``t`` and ``w/+`` at QoS 2, ``p`` publishes."""

    def __init__(self, name: str = "", *, clean: bool = False, bare: bool = False) -> None:
        self.log = LogBuilder(name or f"story{next(_NUMBERS)}")
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

    def keeps(self, cut: int = 0) -> Case:
        """Return the log as one that keeps all promises; ``cut``: it begins with this record."""
        after = (lambda nats: self.log.cut(nats, cut)) if cut else None
        return Case(self.log, after=after)

    def breaks(
        self, rule: str, place: Position, session: str | None = "s", *more: Broken, cut: int = 0
    ) -> Case:
        case = self.keeps(cut)
        case.expected = [(rule, place, session), *more]
        return case


# ------------------------------------------------------------------- chain and turns


@LOGS.add
def record_missing() -> Case:
    story = Story()(published("t"), delivered(at(2)), payloads=1)
    story(Acked("s", [1]))(published("t", pid=2), delivered(at(4), pid=2), payloads=1)
    case = story.breaks("chain", at(3), None)
    case.after = lambda nats: story.log.lose(nats, [3])
    return case


@LOGS.add
def record_changed() -> Case:
    story = Story()(published("t"), delivered(at(2)), payloads=1)(Acked("s", [1]))
    story.log.damage(2)
    return story.breaks("chain", at(2), None)


@LOGS.add
def record_of_another_log() -> Case:
    """One that is right in itself, but continues another one."""
    story = Story()(published("t"), delivered(at(2)), payloads=1)(Acked("s", [1]))
    strange = decode_record(3, story.log.records[2])
    story.log.records[2] = encode_record(
        previous=b"\1" * 32,
        node=strange.node,
        time_ms=strange.time_ms,
        events=strange.raw_events,  # type: ignore[arg-type]
        payloads=[],
    )
    return story.breaks("chain", at(3), None)


@LOGS.add
def no_record() -> Case:
    story = Story()(published("t"), delivered(at(2)), payloads=1)
    story.log.raw(b"hello")
    return story.breaks("chain", at(3), None)


@LOGS.add
def beginning_gone() -> Case:
    story = Story()(published("t"), delivered(at(2)), payloads=1)(Acked("s", [1]))
    return story.breaks("chain", at(2), None, cut=2)


@LOGS.add
def turn_left_open() -> Case:
    """Its last part is missing, and no broker was started."""
    story = Story()
    story.log.turn([published("t"), queued(at(2))], [delivered(at(2))], whole=False)
    story(Subscribed("p", [("x", 1)]))
    return story.breaks("turn", at(3), None)


@LOGS.add
def turn_of_a_crash() -> Case:
    """What was left open by a crash is void, and nothing is wrong with that."""
    story = Story()
    story.log.turn([published("t")], [delivered(at(2))], whole=False)
    story(
        BrokerStarted("0.1"),
        closed("p", reason="broker_restarted"),
        closed(reason="broker_restarted"),
    )
    return story.keeps()


LOGS |= {
    "part_without_a_first": Story()(Subscribed("p", [("x", 1)]), part=1).breaks(
        "turn", at(2), None
    ),
    "turn_of_three": Story()(published("t"), payloads=1, last=False)(
        published("t", pid=2), payloads=1, part=1, last=False
    )(delivered(at(2), at(3)), part=2).keeps(),
}


# ------------------------------------------------------------------- packet identifiers


@LOGS.add
def identifier_in_flight() -> Case:
    story = Story()(published("t"), delivered(at(2)), payloads=1)
    story(published("t", pid=2), delivered(at(3), pid=1), payloads=1)
    return story.breaks("packet_id_reuse", at(3, 1))


LOGS |= {
    "identifier_being_released": Story()(published("t", qos=2), payloads=1)(
        Released("p", [1], [at(2)]), delivered(at(2), qos=2)
    )(Received("s", [1]))(published("t", pid=2), delivered(at(5), pid=1), payloads=1).breaks(
        "packet_id_reuse", at(5, 1)
    ),
    "identifier_zero": Story()(published("t"), delivered(at(2), pid=0), payloads=1).breaks(
        "packet_id_reuse", at(2, 1)
    ),
    "identifier_of_a_publisher": Story()(published("x", qos=2), payloads=1)(
        published("x", qos=2), payloads=1
    ).breaks("packet_id_reuse", at(3), "p"),
    "identifier_free_again": Story()(published("t"), delivered(at(2)), payloads=1)(Acked("s", [1]))(
        published("t", pid=1), delivered(at(4), pid=1), payloads=1
    ).keeps(),
}


# --------------------------------------------------------------------------- deliveries


@LOGS.add
def nothing_owed() -> Case:
    """To no client that unsubscribed, subscribed at QoS 0 or later, or ended."""
    story = Story()(
        opened("zero"),
        Subscribed("zero", [("#", 0)]),
        opened("gone"),
        Subscribed("gone", [("#", 1)]),
    )
    story(closed("gone"))(SessionExpired("gone", "expired"))(Unsubscribed("s", ["t", "w/+"]))
    story(published("t"), payloads=1)(opened("late"), Subscribed("late", [("t", 1)]))
    return story.keeps()


@LOGS.add
def two_filters_one_copy() -> Case:
    story = Story()(Subscribed("s", [("#", 1), ("+", 2)]))
    story(published("t"), delivered(at(3), topic_filter="+"), payloads=1)
    return story.keeps()


@LOGS.add
def sent_again() -> Case:
    """Under its packet identifier: that is how it must be."""
    story = Story()(published("t"), delivered(at(2)), payloads=1)(closed())
    story(opened(resumed=True, generation=2), Redelivered("s", [1], "resumed"))(Acked("s", [1]))
    return story.keeps()


@LOGS.add
def no_such_filter() -> Case:
    story = Story()(published("t"), delivered(at(2), topic_filter="#"), payloads=1)
    return story.breaks("no_subscription", at(2, 1))


LOGS |= {
    "never_delivered": Story()(published("x", "t"), payloads=2)(Acked("s", [])).breaks(
        "undelivered", at(2, 1)
    ),
    "never_delivered_by_wildcard": Story()(published("w/1", "w/1/2", "$w"), payloads=3)(
        published("w"), payloads=1
    ).breaks("undelivered", at(2)),
    "never_delivered_when_released": Story()(published("t", "t", qos=2), payloads=2)(
        Released("p", [1, 2], [at(2), at(2, 1)]), delivered(at(2), qos=2)
    ).breaks("undelivered", at(3, 1)),
    # The client was away.
    "never_queued": Story()(closed())(published("t"), payloads=1).breaks("undelivered", at(3)),
    "will_never_delivered": Story()(opened("x"), WillArmed("x", "t", 2, False, 3, 0), payloads=1)(
        WillFired("x"), published("t", session="x", qos=2, will=True), closed("x"), payloads=1
    ).breaks("undelivered", at(3, 1)),
    "delivered_too_late": Story()(published("t"), payloads=1)(delivered(at(2))).breaks(
        "undelivered", at(3)
    ),
    "retained_not_sent": Story()(published("r", retain=True), payloads=1)(
        Subscribed("s", [("r", 1)])
    )(published("x"), payloads=1)(Acked("p", [])).breaks("undelivered", at(3)),
    "dropped_with_a_reason": Story()(closed())(
        published("t", "t"),
        queued(at(3)),
        MessageDropped("s", "queue_messages", 1, [at(3, 1)], "t"),
        payloads=2,
    ).keeps(),
    # A clean session that ends in the turn of a publication need not get it.
    "ended_in_the_turn": Story(clean=True)(published("t"), closed(), payloads=1).keeps(),
    "delivered_again": Story()(published("t", qos=2), payloads=1)(
        Released("p", [1], [at(2)]), delivered(at(2), qos=2)
    )(Received("s", [1]))(Completed("s", [1]))(delivered(at(2), qos=2, pid=2)).breaks(
        "delivered_twice", at(6)
    ),
    "queued_after_delivery": Story()(published("t"), delivered(at(2)), payloads=1)(
        queued(at(2))
    ).breaks("delivered_twice", at(3)),
    "out_of_order": Story()(
        published("t", "t"), delivered(at(2, 1)), delivered(at(2), pid=2), payloads=2
    ).breaks("order", at(2, 3)),
    "order_of_two_topics": Story()(
        published("t", "w/1"),
        delivered(at(2, 1), topic_filter="w/+"),
        delivered(at(2), pid=2),
        payloads=2,
    ).keeps(),
    # What counts is the release, not the publication.
    "order_of_release": Story()(published("t", "t", qos=2), payloads=2)(
        Released("p", [2], [at(2, 1)]), delivered(at(2, 1), qos=2)
    )(Released("p", [1], [at(2)]), delivered(at(2), qos=2, pid=2)).keeps(),
    "not_subscribed": Story()(published("x"), delivered(at(2)), payloads=1).breaks(
        "no_subscription", at(2, 1)
    ),
    "after_unsubscribing": Story()(published("t"), delivered(at(2)), payloads=1)(
        Unsubscribed("s", ["t"])
    )(published("t", pid=2), delivered(at(4), pid=2), payloads=1).breaks(
        "no_subscription", at(4, 1)
    ),
    "retained_for_another_filter": Story()(published("r", retain=True), payloads=1)(
        Subscribed("s", [("q", 1)]), delivered(at(2), topic_filter="q", retain=True)
    ).breaks("no_subscription", at(3, 1)),
}


# ---------------------------------------------------------------- acknowledgements, queue


LOGS |= {
    "acknowledged_unknown": Story()(published("t"), delivered(at(2)), payloads=1)(
        Acked("s", [1, 2])
    ).breaks("acknowledgement", at(3, 1)),
    # PUBREC for a delivery at QoS 1.
    "acknowledged_otherwise": Story()(published("t"), delivered(at(2)), payloads=1)(
        Received("s", [1])
    ).breaks("acknowledgement", at(3)),
    "completed_before_received": Story()(published("t", qos=2), payloads=1)(
        Released("p", [1], [at(2)]), delivered(at(2), qos=2)
    )(Completed("s", [1])).breaks("acknowledgement", at(4)),
    "released_unknown": Story()(published("x", qos=2), payloads=1)(
        Released("p", [2], [at(2)])
    ).breaks("acknowledgement", at(3), "p"),
    "sent_again_unknown": Story()(Redelivered("s", [7], "ack_wait")).breaks(
        "acknowledgement", at(2)
    ),
    "not_from_the_head": Story()(closed())(
        published("t", "t"), queued(at(3), at(3, 1)), payloads=2
    )(opened(resumed=True, generation=2), delivered(at(3, 1), queued=3)).breaks("queue", at(4, 1)),
    "from_the_head": Story()(closed())(published("t", "t"), queued(at(3), at(3, 1)), payloads=2)(
        opened(resumed=True, generation=2), delivered(at(3), at(3, 1), queued=6)
    ).keeps(),
}


# ------------------------------------------------------------- QoS, turns, what is sent again


@LOGS.add
def at_less_than_the_highest() -> Case:
    """Of two subscriptions the one with the higher QoS counts."""
    story = Story()(Subscribed("s", [("#", 1)]))(published("t", qos=2), payloads=1)
    story(Released("p", [1], [at(3)]), delivered(at(3), topic_filter="#"))
    return story.breaks("qos", at(4, 1))


@LOGS.add
def changed_in_its_turn() -> Case:
    """A subscription counts for the whole turn, at each QoS that it had in it."""
    story = Story()(published("t"), Unsubscribed("s", ["t"]), delivered(at(2)), payloads=1)
    story(Subscribed("s", [("t", 2), ("u", 0)]))
    story(published("t", pid=2), Subscribed("s", [("t", 0)]), payloads=1)
    story(Subscribed("s", [("t", 2)]))(published("t", pid=3), payloads=1, last=False)
    story(Subscribed("s", [("t", 0)]), delivered(at(6), pid=2), part=1)
    story(published("u", pid=4), payloads=1, last=False)
    story(Subscribed("s", [("u", 1)]), delivered(at(8), topic_filter="u", pid=3), part=1)
    story(Subscribed("s", [("t", 2)]))(published("t", pid=5, qos=2), payloads=1)
    story(Released("p", [5], [at(11)]), Subscribed("s", [("t", 1)]), delivered(at(11), pid=4))
    return story.keeps()


@LOGS.add
def sent_again_in_order() -> Case:
    """PUBREL first; what is acknowledged meanwhile is not sent again, what comes new waits."""
    story = Story()(published("t", "t", "t"), delivered(at(2), at(2, 1)), payloads=3, last=False)
    story(delivered(at(2, 2), pid=3), part=1)
    story(published("t", qos=2, pid=9), Released("p", [9], [at(4)]), payloads=1, last=False)
    story(delivered(at(4), qos=2, pid=4), part=1)(Received("s", [4]))(closed())
    story(opened(resumed=True, generation=2), Redelivered("s", [4], "resumed"))
    story(Acked("s", [2]))(published("t", pid=10), queued(at(10)), payloads=1)
    story(Redelivered("s", [1, 3], "resumed"), delivered(at(10), pid=5, queued=3))
    story(Redelivered("s", [3, 1], "ack_wait"))
    return story.keeps()


LOGS |= {
    "at_another_qos": Story()(published("t", qos=2), payloads=1)(
        Released("p", [1], [at(2)]), delivered(at(2), qos=1)
    ).breaks("qos", at(3, 1)),
    "at_more_than_was_granted": Story()(Subscribed("s", [("t", 1)]))(
        published("t", qos=2), Released("p", [1], [at(3)]), payloads=1, last=False
    )(queued(at(3), qos=2), part=1).breaks("qos", at(4)),
    "retained_at_more_than_was_granted": Story()(published("r", qos=2, retain=True), payloads=1)(
        Released("p", [1], [at(2)])
    )(Subscribed("s", [("r", 1)]), delivered(at(2), topic_filter="r", qos=2, retain=True)).breaks(
        "qos", at(4, 1)
    ),
    # Of the turn before: it counts no more.
    "unsubscribed_in_a_part_before": Story()(
        published("t"), Unsubscribed("s", ["t"]), payloads=1, last=False
    )(delivered(at(2)), part=1)(published("t", pid=2), delivered(at(4), pid=2), payloads=1).breaks(
        "no_subscription", at(4, 1)
    ),
    # Subscribed to after the turn of the message, and so due only in the next one.
    "in_no_part_of_the_turn": Story()(published("u"), payloads=1)(Subscribed("s", [("u", 1)]))(
        published("u", pid=2), Acked("p", []), payloads=1
    ).breaks("undelivered", at(4)),
    "retained_sent_twice": Story()(published("r", retain=True), payloads=1)(
        Subscribed("s", [("r", 1)]),
        delivered(at(2), topic_filter="r", retain=True),
        delivered(at(2), topic_filter="r", retain=True, pid=2),
    ).breaks("delivered_twice", at(3, 2)),
    "retained_sent_later": Story()(published("r", retain=True), payloads=1)(
        Subscribed("s", [("r", 1)]), delivered(at(2), topic_filter="r", retain=True)
    )(delivered(at(2), topic_filter="r", retain=True, pid=2)).breaks("no_subscription", at(4)),
    "retained_for_each_subscribe": Story()(published("r", retain=True), payloads=1)(
        Subscribed("s", [("r", 1)]),
        Subscribed("s", [("r", 1)]),
        delivered(at(2), topic_filter="r", retain=True),
        delivered(at(2), topic_filter="r", retain=True, pid=2),
    ).keeps(),
    # The standard asks for the order of each publisher.
    "order_of_two_publishers": Story()(opened("x"))(
        published("t"),
        published("t", session="x", at=3),
        delivered(at(3, 1)),
        delivered(at(3), pid=2),
        payloads=2,
    ).keeps(),
    "sent_again_out_of_order": Story()(published("t", "t"), delivered(at(2), at(2, 1)), payloads=2)(
        closed()
    )(opened(resumed=True, generation=2), Redelivered("s", [2, 1], "resumed")).breaks(
        "order", at(4, 1)
    ),
    "sent_before_what_is_sent_again": Story()(published("t"), delivered(at(2)), payloads=1)(
        closed()
    )(opened(resumed=True, generation=2))(
        published("t", pid=2), delivered(at(5), pid=2), payloads=1
    ).breaks("order", at(5, 1)),
}


# --------------------------------------------------------------------------------- drops


@LOGS.add
def dropped_on_its_way() -> Case:
    story = Story()(published("t"), delivered(at(2)), payloads=1)
    story(MessageDropped("s", "queue_messages", 1, [at(2)], "t"))
    return story.breaks("undelivered", at(3))


LOGS |= {
    "dropped_more_than_named": Story()(closed())(
        published("t", "t"), queued(at(3), at(3, 1)), payloads=2
    )(MessageDropped("s", "queue_messages", 2, [at(3)], "t", 6)).breaks("queue", at(4)),
    "dropped_without_a_reason": Story()(
        published("t"), MessageDropped("s", "", 1, [at(2)], "t"), payloads=1
    ).breaks("drop", at(2, 1)),
    "dropped_too_late": Story()(published("t"), payloads=1)(
        MessageDropped("s", "queue_messages", 1, [at(2)], "t")
    ).breaks("undelivered", at(3)),
}


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


def _retained_checkpoint(ref: Position, payload: bytes = b"000") -> Story:
    story = Story()(published("r", retain=True), payloads=1)
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


@LOGS.add
def repeats_what_was_cleared() -> Case:
    story = Story()(published("r", retain=True), payloads=1)
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


LOGS |= {
    "repeats_the_one_before": _retained_checkpoint(at(2)).breaks("retained", at(4, 3), None),
    "repeats_other_bytes": _retained_checkpoint(at(3), b"abc").breaks("retained", at(4, 3), None),
    # And a filter that is subscribed to then gets it under its new position.
    "repeats_the_last": _retained_checkpoint(at(3))(
        Subscribed("s", [("r", 1)]), delivered(at(4, 3), topic_filter="r", retain=True)
    ).keeps(),
    "replayed_though_replaced": Story()(published("r", retain=True), payloads=1)(
        published("r", retain=True, pid=2), payloads=1
    )(Subscribed("s", [("r", 1)]), delivered(at(2), topic_filter="r", retain=True)).breaks(
        "retained", at(4, 1), "s", ("undelivered", at(4), "s")
    ),
    # A message of QoS 2 is retained with its PUBREL, not before.
    "retained_by_release": Story()(published("r", qos=2, retain=True), payloads=1)(
        Subscribed("s", [("r", 2)])
    )(Unsubscribed("s", ["r"]))(Released("p", [1], [at(2)]))(
        Subscribed("s", [("r", 2)]), delivered(at(2), topic_filter="r", qos=2, retain=True)
    ).keeps(),
}


# ------------------------------------------------------------------- checkpoints and cuts


@LOGS.add
def snapshot_of_another_state() -> Case:
    story = Story()
    checkpoint(
        story, snapshot(story, "p"), snapshot(story, "s", last_pid=9), sessions=2, retained=0
    )
    return story.breaks("checkpoint", at(2, 2))


@LOGS.add
def session_not_repeated() -> Case:
    story = Story()
    checkpoint(story, snapshot(story, "p"), sessions=1, retained=0)
    return story.breaks("checkpoint", at(2, 2))


@LOGS.add
def retained_not_repeated() -> Case:
    story = Story()(published("r", retain=True), payloads=1)
    checkpoint(story, snapshot(story, "p"), snapshot(story, "s"), sessions=2, retained=0)
    return story.breaks("checkpoint", at(3, 3), None)


@LOGS.add
def counts_of_a_checkpoint() -> Case:
    story = Story()
    checkpoint(story, snapshot(story, "p"), snapshot(story, "s"), sessions=3, retained=0)
    return story.breaks("checkpoint", at(2, 3), None)


@LOGS.add
def cut_anywhere() -> Case:
    """No checkpoint begins there."""
    story = Story()(Acked("s", []))
    link = previous_of(story.log.records[1]).hex()
    story(LogCut(2, link, story.log.time_ms, "keep"))
    return story.breaks("checkpoint", at(3), None)


def _waiting_over_a_checkpoint() -> Story:
    story = Story()(closed())(published("t"), queued(at(3)), payloads=1)
    return checkpoint(story, snapshot(story, "p"), snapshot(story, "s"), sessions=2, retained=0)


def _cut(story: Story, first: int) -> LogCut:
    data = story.log.records[first - 1]
    return LogCut(first, previous_of(data).hex(), decode_record(first, data).time_ms, "keep")


@LOGS.add
def cut_off_though_needed() -> Case:
    story = _waiting_over_a_checkpoint()
    story(_cut(story, 4))
    return story.breaks("checkpoint", at(5))


@LOGS.add
def carried_over_a_cut() -> Case:
    story = _waiting_over_a_checkpoint()
    story(MessagesCarried([at(3)], ["t"], [], 3, 0, 1), payloads=1)(_cut(story, 4))
    story(opened(resumed=True, generation=2), delivered(at(3), queued=3))(Acked("s", [1]))
    return story.keeps()


@LOGS.add
def carried_with_other_bytes() -> Case:
    story = _waiting_over_a_checkpoint()
    story.log.record(MessagesCarried([at(3)], ["t"], [], 3, 0, 1), payloads=[b"abc"])
    story(_cut(story, 4))
    return story.breaks("checkpoint", at(5), None)


@LOGS.add
def cut_log() -> Case:
    """A log that begins with a checkpoint, and continues correctly."""
    story = carried_over_a_cut().log
    case = Case(story)
    case.after = lambda nats: story.cut(nats, 4)
    return case


@LOGS.add
def cut_log_with_an_earlier_cut() -> Case:
    """What was carried over the earlier one is cut off."""
    story = _waiting_over_a_checkpoint()
    story(MessagesCarried([at(3)], ["t"], [], 3, 0, 1), payloads=1)
    both = snapshot(story, "p"), snapshot(story, "s")
    story(CheckpointBegun(2), *both, CheckpointCompleted(2, at(6), 2, 0))(_cut(story, 4))
    story(MessagesCarried([at(3)], ["t"], [], 3, 0, 1), payloads=1)(_cut(story, 6))
    return story.keeps(cut=6)


@LOGS.add
def cut_log_that_goes_wrong() -> Case:
    story = _waiting_over_a_checkpoint()
    story(MessagesCarried([at(3)], ["t"], [], 3, 0, 1), payloads=1)(_cut(story, 4))
    story(published("t"), payloads=1)
    return story.breaks("undelivered", at(7), cut=4)


# --------------------------------------------------------------------- sessions, ownership


@LOGS.add
def resumed_out_of_nothing_after_a_cut() -> Case:
    """The checkpoint that the log begins with does not have the session."""
    story = _waiting_over_a_checkpoint()
    story(MessagesCarried([at(3)], ["t"], [], 3, 0, 1), payloads=1)(_cut(story, 4))
    story(opened("x", resumed=True, generation=2))
    return story.breaks("session", at(7), "x", cut=4)


@LOGS.add
def taken_over() -> Case:
    story = Story()(
        SessionTakenOver("s", 1), closed(reason="taken_over"), opened(resumed=True, generation=2)
    )
    story(opened("x", clean=True), WillArmed("x", "q", 1, False, 3, 0), payloads=1)
    story(WillCancelled("x"), closed("x", reason="disconnect"))(opened("x", clean=True))
    return story.keeps()


LOGS |= {
    "resumed_out_of_nothing": Story()(opened("x", resumed=True)).breaks("session", at(2), "x"),
    "thrown_away": Story()(closed())(opened(generation=2)).breaks("session", at(3)),
    "resumed_though_clean": Story()(closed())(
        opened(resumed=True, clean=True, generation=2)
    ).breaks("session", at(3)),
    "resumed_out_of_a_clean_one": Story(clean=True)(
        WillArmed("s", "q", 0, False, 3, 0), payloads=1
    )(closed())(opened(resumed=True, generation=2)).breaks(
        "session", at(4), "s", *[("will", at(number), "s") for number in (2, 3, 4)]
    ),
    "expired_while_connected": Story()(SessionExpired("s", "expired")).breaks("session", at(2)),
    "two_connections": Story()(opened(resumed=True, generation=2)).breaks("ownership", at(2)),
    "generations": Story()(closed())(opened(resumed=True, generation=7)).breaks("ownership", at(3)),
    "closed_by_another": Story()(closed(generation=3)).breaks("ownership", at(2)),
    "delivered_to_nobody": Story()(closed())(published("t"), delivered(at(3)), payloads=1).breaks(
        "ownership", at(3, 1)
    ),
}


# ------------------------------------------------------------------------------- events


@LOGS.add
def unreadable() -> Case:
    story = Story()
    story.log.record({"e": "Acked", "v": 1, "session": "s", "pids": "many"})
    return story.breaks("event", at(2), None)


LOGS |= {
    # Payloads that the record does not hold.
    "misfit": Story()(published("t"), delivered(at(2)), payloads=0).breaks("event", at(2), None),
}
