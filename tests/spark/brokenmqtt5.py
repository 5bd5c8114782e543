"""Logs of MQTT 5 that break one promise each, and similar logs that keep all of them."""

from typing import Any

from brokenlogs import Case, Stories, Story, at, closed, delivered, opened, published, snapshot

from eventstore.format.events import (
    Acked,
    Assigned,
    Delivered,
    Expired,
    Queued,
    Received,
    Redelivered,
    Released,
    RetainedExpired,
    Returned,
    SessionClosed,
    SessionOpened,
    Subscribed,
)
from eventstore.format.node_events import (
    BrokerStarted,
    CheckpointBegun,
    CheckpointCompleted,
    RetainedSnapshot,
)
from eventstore.format.positions import Position

MQTT5_LOGS = Stories()

NO_LOCAL, IF_NEW, NEVER = 0x04, 0x10, 0x20
BLOCK = b"\2\0\0\0\5\1\1"


def opened5(generation: int = 1, **given: Any) -> SessionOpened:
    resumed = generation > 1
    return SessionOpened("s", resumed, False, 5, generation=generation, expiry=60, **given)


def mqtt5(options: int = 0, **given: Any) -> Story:
    """``s`` is at level 5 and subscribed to ``t`` with options; ``p`` publishes."""
    story = Story(bare=True)
    story(BrokerStarted("0.1"), opened("p"), opened5(**given))
    return story(Subscribed("s", [("t", 2)], options=[options]))


def _seconds(story: Story) -> int:
    return story.log.time_ms // 1000


def _waiting() -> Story:
    """A message of which the properties say that it expires in five seconds waits for ``s``."""
    story = mqtt5()(closed())
    event = published("t", blocks=[len(BLOCK)])
    event.at = len(BLOCK)
    waits = Queued("s", "t", 1, [at(4)], 3, expires=_seconds(story) + 5)
    story.log.record(event, waits, payloads=[BLOCK, b"one"])
    return story


GROUP = "$share/g/t"


def given(to: str, ref: Position, *, pid: int = 1, queued: int = -1) -> tuple[Delivered, Assigned]:
    """A member is sent a message, and the shared subscription assigns it."""
    one = delivered(ref, session=to, topic_filter=GROUP, pid=pid)
    return one, Assigned(GROUP, to, [ref], queued)


@MQTT5_LOGS.add
def sent_too_late() -> Case:
    story = _waiting()
    later = story.log.time_ms + 10_000
    story(opened5(2), delivered(at(4), queued=3), time_ms=later)
    return story.breaks("expiry", at(5, 1))


@MQTT5_LOGS.add
def expired_too_early() -> Case:
    story = _waiting()
    story(Expired("s", "t", [at(4)], 3), time_ms=story.log.time_ms + 1000)
    return story.breaks("expiry", at(5))


@MQTT5_LOGS.add
def expired_in_time() -> Case:
    story = _waiting()
    story(Expired("s", "t", [at(4)], 3), time_ms=story.log.time_ms + 6000)(opened5(2))
    return story.keeps()


def _stored(make: Story | None = None) -> Story:
    """A message of QoS 2 that expires in five seconds waits for its PUBREL, in record 3."""
    story = make or mqtt5()
    event = published("t", qos=2, blocks=[len(BLOCK)], at=len(BLOCK))
    story.log.record(event, payloads=[BLOCK, b"one"])
    return story


@MQTT5_LOGS.add
def released_too_late() -> Case:
    story = _stored()
    later = story.log.time_ms + 8000
    story(Released("p", [1], [at(3)]), delivered(at(3), qos=2), time_ms=later)
    return story.breaks("expiry", at(4, 1))


@MQTT5_LOGS.add
def released_in_time() -> Case:
    """It is sent again after it has expired, which is permitted."""
    story = _stored()
    later = story.log.time_ms + 4000
    story(Released("p", [1], [at(3)]), delivered(at(3), qos=2), time_ms=later)
    story(closed(), time_ms=later + 10_000)(opened5(2), Redelivered("s", [1], "resumed"))
    return story(Received("s", [1])).keeps()


@MQTT5_LOGS.add
def released_after_it_expired() -> Case:
    story = _stored()
    expires, later = _seconds(story) + 5, story.log.time_ms + 8000
    waits = Queued("s", "t", 2, [at(3)], 3, expires=expires)
    story(Released("p", [1], [at(3)]), waits, Expired("s", "t", [at(3)], 3), time_ms=later)
    return story.keeps()


def shared(qos: int = 1) -> Story:
    """``s`` and ``r`` share ``t``; ``p`` publishes. The next record is 3."""
    story = Story(bare=True)
    story(
        BrokerStarted("0.1"), opened("p"), opened5(),
        SessionOpened("r", False, False, 5, expiry=60),
        SessionOpened(GROUP, False, False, 5, expiry=0xFFFF_FFFF),
        Subscribed(GROUP, [("t", 2)]), SessionClosed(GROUP, "shared"),
    )  # fmt: skip
    return story(Subscribed("s", [(GROUP, qos)]), Subscribed("r", [(GROUP, qos)]))


@MQTT5_LOGS.add
def shared_and_released_too_late() -> Case:
    story = _stored(shared(2))
    later = story.log.time_ms + 8000
    sent, assigned = given("s", at(3))
    sent.qos = 2
    story(Released("p", [1], [at(3)]), sent, assigned, time_ms=later)
    return story.breaks("expiry", at(4, 2), GROUP)


def _kept_for_five_seconds() -> Story:
    story = Story(bare=True)
    story(BrokerStarted("0.1"), opened("p"), opened5())
    event = published("t", retain=True, blocks=[len(BLOCK)], at=len(BLOCK))
    story.log.record(event, payloads=[BLOCK, b"one"])
    return story


@MQTT5_LOGS.add
def retained_sent_too_late() -> Case:
    story = _kept_for_five_seconds()
    later = story.log.time_ms + 8000
    story(Subscribed("s", [("t", 1)]), delivered(at(2), retain=True), time_ms=later)
    return story.breaks("expiry", at(3, 1))


@MQTT5_LOGS.add
def retained_sent_in_time() -> Case:
    story = _kept_for_five_seconds()
    later = story.log.time_ms + 5000
    story(Subscribed("s", [("t", 1)]), delivered(at(2), retain=True), time_ms=later)
    return story(Acked("s", [1]), time_ms=later + 9000).keeps()


def _own_retained() -> Story:
    story = Story(bare=True)
    story(BrokerStarted("0.1"), opened("p"), opened5())
    return story(published("t", session="s", retain=True), payloads=1)


@MQTT5_LOGS.add
def not_its_own_retained_message() -> Case:
    story = _own_retained()(published("t/1", retain=True), payloads=1)
    sent = delivered(at(3), topic_filter="#", retain=True)
    story(Subscribed("s", [("#", 1)], options=[NO_LOCAL]), sent)
    repeated = RetainedSnapshot(["t", "t/1"], [1, 1], [[at(2), 2, at(3) - at(2)]], 3, 0, 2)
    repeated.publishers, repeated.publisher_of = ["s", "p"], [0, 1]
    story.log.record(
        CheckpointBegun(1),
        snapshot(story, "p"),
        snapshot(story, "s"),
        repeated,
        CheckpointCompleted(1, at(5), 2, 2),
        payloads=[b"000", b"000"],
    )
    again = delivered(at(5, 4), pid=2, topic_filter="#", retain=True)
    story(Subscribed("s", [("#", 1)], options=[NO_LOCAL]), again)
    return story(published("x", qos=0, retain=True), payloads=1).keeps()


def _retained() -> Story:
    story = Story(bare=True)
    story(BrokerStarted("0.1"), opened("p"), opened5())
    return story(published("t", retain=True), payloads=1)


@MQTT5_LOGS.add
def retained_not_sent_though_asked_for() -> Case:
    story = _retained()(Subscribed("s", [("t", 1)], options=[NEVER]))
    story(Subscribed("s", [("#", 1)], options=[IF_NEW]))
    story(published("x", session="p", qos=0, retain=True), payloads=1)
    return story.breaks("undelivered", at(4))


@MQTT5_LOGS.add
def retained_until_it_expired() -> Case:
    story = Story(bare=True)
    story(BrokerStarted("0.1"), opened("p"), opened5())
    event = published("t", "u", retain=True, blocks=[len(BLOCK)], at=len(BLOCK))
    story.log.record(event, payloads=[BLOCK, b"one", b"two"])
    story(RetainedExpired(["t"]), time_ms=story.log.time_ms + 5000)
    story(Subscribed("s", [("t", 1)]))
    return story(published("x", qos=0, retain=True), payloads=1).keeps()


MQTT5_LOGS |= {
    "more_than_it_accepts": mqtt5(receive_maximum=1)(published("t"), delivered(at(3)), payloads=1)(
        published("t", pid=2), delivered(at(4), pid=2), payloads=1
    ).breaks("receive_maximum", at(4, 1)),
    "as_many_as_it_accepts": mqtt5(receive_maximum=1)(published("t"), delivered(at(3)), payloads=1)(
        Acked("s", [1], reasons=[0x10])
    )(published("t", pid=2, qos=1), delivered(at(5), pid=2), payloads=1)(
        Acked("s", [2], reasons=[0x87])
    ).keeps(),
    "its_own_message": mqtt5(NO_LOCAL)(
        published("t", session="s"), delivered(at(3)), payloads=1
    ).breaks("no_local", at(3, 1), "s", ("no_subscription", at(3, 1), "s")),
    "not_its_own_message": mqtt5(NO_LOCAL)(published("t", session="s"), payloads=1)(
        published("t"), delivered(at(4)), payloads=1
    ).keeps(),
    "its_own_retained_message": _own_retained()(
        Subscribed("s", [("t", 1)], options=[NO_LOCAL]), delivered(at(2), retain=True)
    ).breaks("no_local", at(3, 1)),
    "retained_for_nothing": _retained()(
        Subscribed("s", [("t", 1)], options=[NEVER]), delivered(at(2), retain=True)
    ).breaks("retain_handling", at(3, 1)),
    "retained_for_an_old_subscription": _retained()(
        Subscribed("s", [("t", 1)], options=[IF_NEW]), delivered(at(2), retain=True)
    )(Subscribed("s", [("t", 1)], options=[IF_NEW]), delivered(at(2), pid=2, retain=True)).breaks(
        "retain_handling", at(4, 1)
    ),
    "retained_not_asked_for": _retained()(Subscribed("s", [("t", 1)], options=[NEVER]))(
        Subscribed("s", [("t", 1)], options=[IF_NEW])
    )(published("x", qos=0, retain=True), payloads=1).keeps(),
    "ended_by_disconnect": mqtt5()(SessionClosed("s", "disconnect", expiry=0))(
        published("t"), payloads=1
    )(SessionOpened("s", False, False, 5, expiry=9)).keeps(),
}


# ----------------------------------------------------------------------- shared subscriptions


def back(ref: Position) -> tuple[Returned, Queued]:
    """``s`` returns a message, which waits again."""
    return Returned("s", GROUP, [1], [ref]), Queued(GROUP, "t", 1, [ref], 3, behind=0)


@MQTT5_LOGS.add
def a_topic_that_moves() -> Case:
    story = shared()
    for number, to in enumerate(("s", "s", "r"), 3):
        sent, assigned = given(to, at(number), pid=number)
        assigned.by_topic = True
        story(published("t", pid=number), sent, assigned, payloads=1)
    return story.breaks("shared", at(5, 2), GROUP)


MQTT5_LOGS |= {
    "assigned_and_not_sent": shared()(
        published("t"), Assigned(GROUP, "s", [at(3)]), payloads=1
    ).breaks("shared", at(3, 1), GROUP),
    "sent_to_two_members": shared()(published("t"), *given("s", at(3)), payloads=1)(
        *given("r", at(3))
    ).breaks("shared", at(4), GROUP, ("delivered_twice", at(4, 1), GROUP)),
    "not_returned": shared()(published("t"), *given("s", at(3)), payloads=1)(closed()).breaks(
        "shared", at(4), GROUP
    ),
    "returned_and_lost": shared()(published("t"), *given("s", at(3)), payloads=1)(
        back(at(3))[0], closed()
    ).breaks("shared", at(4), GROUP),
    "lost_in_a_group": shared()(published("t"), payloads=1).breaks("undelivered", at(3), GROUP),
    "shared_as_promised": shared()(published("t"), *given("s", at(3)), payloads=1)(
        *back(at(3)), closed()
    )(*given("r", at(3), queued=3))(Acked("r", [1]))(
        published("t", pid=2), *given("r", at(7), pid=2), payloads=1
    )(Acked("r", [2], reasons=[0x97])).keeps(),
}
