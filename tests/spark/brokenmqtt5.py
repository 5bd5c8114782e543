"""Logs of MQTT 5 that break one promise each, and similar logs that keep all of them."""

from typing import Any

from brokenlogs import Case, Story, at, closed, delivered, opened, published, snapshot

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

NO_LOCAL, IF_NEW, NEVER = 0x04, 0x10, 0x20
BLOCK = b"\2\0\0\0\5\1\1"


def opened5(generation: int = 1, **given: Any) -> SessionOpened:
    resumed = generation > 1
    return SessionOpened("s", resumed, False, 5, generation=generation, expiry=60, **given)


def mqtt5(name: str, options: int = 0, **given: Any) -> Story:
    """``s`` is at level 5 and subscribed to ``t`` with options; ``p`` publishes."""
    story = Story(name, bare=True)
    story(BrokerStarted("0.1"), opened("p"), opened5(**given))
    return story(Subscribed("s", [("t", 2)], options=[options]))


def _seconds(story: Story) -> int:
    return story.log.time_ms // 1000


def _waiting(name: str) -> Story:
    """A message of which the properties say that it expires in five seconds waits for ``s``."""
    story = mqtt5(name)(closed())
    event = published("t", blocks=[len(BLOCK)])
    event.at = len(BLOCK)
    waits = Queued("s", "t", 1, [at(4)], 3, expires=_seconds(story) + 5)
    story.log.record(event, waits, payloads=[BLOCK, b"one"])
    return story


def sent_too_late(name: str) -> Case:
    story = _waiting(name)
    later = story.log.time_ms + 10_000
    story(opened5(2), delivered(at(4), queued=3), time_ms=later)
    return story.breaks("expiry", at(5, 1))


def expired_too_early(name: str) -> Case:
    story = _waiting(name)
    story(Expired("s", "t", [at(4)], 3), time_ms=story.log.time_ms + 1000)
    return story.breaks("expiry", at(5))


def expired_in_time(name: str) -> Case:
    story = _waiting(name)
    story(Expired("s", "t", [at(4)], 3), time_ms=story.log.time_ms + 6000)(opened5(2))
    return story.keeps()


def _stored(name: str, make: Story | None = None) -> Story:
    """A message of QoS 2 that expires in five seconds waits for its PUBREL, in record 3."""
    story = make or mqtt5(name)
    event = published("t", qos=2, blocks=[len(BLOCK)], at=len(BLOCK))
    story.log.record(event, payloads=[BLOCK, b"one"])
    return story


def released_too_late(name: str) -> Case:
    story = _stored(name)
    later = story.log.time_ms + 8000
    story(Released("p", [1], [at(3)]), delivered(at(3), qos=2), time_ms=later)
    return story.breaks("expiry", at(4, 1))


def released_in_time(name: str) -> Case:
    """It is sent again after it has expired, which is permitted."""
    story = _stored(name)
    later = story.log.time_ms + 4000
    story(Released("p", [1], [at(3)]), delivered(at(3), qos=2), time_ms=later)
    story(closed(), time_ms=later + 10_000)(opened5(2), Redelivered("s", [1], "resumed"))
    return story(Received("s", [1])).keeps()


def released_after_it_expired(name: str) -> Case:
    story = _stored(name)
    expires, later = _seconds(story) + 5, story.log.time_ms + 8000
    waits = Queued("s", "t", 2, [at(3)], 3, expires=expires)
    story(Released("p", [1], [at(3)]), waits, Expired("s", "t", [at(3)], 3), time_ms=later)
    return story.keeps()


def shared_and_released_too_late(name: str) -> Case:
    story = _stored(name, shared(name, 2))
    later = story.log.time_ms + 8000
    sent, assigned = given("s", at(3))
    sent.qos = 2
    story(Released("p", [1], [at(3)]), sent, assigned, time_ms=later)
    return story.breaks("expiry", at(4, 2), GROUP)


def _kept_for_five_seconds(name: str) -> Story:
    story = Story(name, bare=True)
    story(BrokerStarted("0.1"), opened("p"), opened5())
    event = published("t", retain=True, blocks=[len(BLOCK)], at=len(BLOCK))
    story.log.record(event, payloads=[BLOCK, b"one"])
    return story


def retained_sent_too_late(name: str) -> Case:
    story = _kept_for_five_seconds(name)
    later = story.log.time_ms + 8000
    story(Subscribed("s", [("t", 1)]), delivered(at(2), retain=True), time_ms=later)
    return story.breaks("expiry", at(3, 1))


def retained_sent_in_time(name: str) -> Case:
    story = _kept_for_five_seconds(name)
    later = story.log.time_ms + 5000
    story(Subscribed("s", [("t", 1)]), delivered(at(2), retain=True), time_ms=later)
    return story(Acked("s", [1]), time_ms=later + 9000).keeps()


def more_than_it_accepts(name: str) -> Case:
    story = mqtt5(name, receive_maximum=1)(published("t"), delivered(at(3)), payloads=1)
    story(published("t", pid=2), delivered(at(4), pid=2), payloads=1)
    return story.breaks("receive_maximum", at(4, 1))


def as_many_as_it_accepts(name: str) -> Case:
    story = mqtt5(name, receive_maximum=1)(published("t"), delivered(at(3)), payloads=1)
    story(Acked("s", [1], reasons=[0x10]))
    story(published("t", pid=2, qos=1), delivered(at(5), pid=2), payloads=1)
    return story(Acked("s", [2], reasons=[0x87])).keeps()


def its_own_message(name: str) -> Case:
    story = mqtt5(name, NO_LOCAL)
    story(published("t", session="s"), delivered(at(3)), payloads=1)
    return story.breaks("no_local", at(3, 1), "s", ("no_subscription", at(3, 1), "s"))


def not_its_own_message(name: str) -> Case:
    story = mqtt5(name, NO_LOCAL)(published("t", session="s"), payloads=1)
    return story(published("t"), delivered(at(4)), payloads=1).keeps()


def its_own_retained_message(name: str) -> Case:
    story = _own_retained(name)
    story(Subscribed("s", [("t", 1)], options=[NO_LOCAL]), delivered(at(2), retain=True))
    return story.breaks("no_local", at(3, 1))


def not_its_own_retained_message(name: str) -> Case:
    story = _own_retained(name)(published("t/1", retain=True), payloads=1)
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


def _own_retained(name: str) -> Story:
    story = Story(name, bare=True)
    story(BrokerStarted("0.1"), opened("p"), opened5())
    return story(published("t", session="s", retain=True), payloads=1)


def _retained(name: str) -> Story:
    story = Story(name, bare=True)
    story(BrokerStarted("0.1"), opened("p"), opened5())
    return story(published("t", retain=True), payloads=1)


def retained_for_nothing(name: str) -> Case:
    story = _retained(name)
    sent = delivered(at(2), retain=True)
    story(Subscribed("s", [("t", 1)], options=[NEVER]), sent)
    return story.breaks("retain_handling", at(3, 1))


def retained_for_an_old_subscription(name: str) -> Case:
    story = _retained(name)
    story(Subscribed("s", [("t", 1)], options=[IF_NEW]), delivered(at(2), retain=True))
    again = delivered(at(2), pid=2, retain=True)
    story(Subscribed("s", [("t", 1)], options=[IF_NEW]), again)
    return story.breaks("retain_handling", at(4, 1))


def retained_not_sent_though_asked_for(name: str) -> Case:
    story = _retained(name)(Subscribed("s", [("t", 1)], options=[NEVER]))
    story(Subscribed("s", [("#", 1)], options=[IF_NEW]))
    story(published("x", session="p", qos=0, retain=True), payloads=1)
    return story.breaks("undelivered", at(4))


def retained_not_asked_for(name: str) -> Case:
    story = _retained(name)(Subscribed("s", [("t", 1)], options=[NEVER]))
    story(Subscribed("s", [("t", 1)], options=[IF_NEW]))
    return story(published("x", qos=0, retain=True), payloads=1).keeps()


def retained_until_it_expired(name: str) -> Case:
    story = Story(name, bare=True)
    story(BrokerStarted("0.1"), opened("p"), opened5())
    event = published("t", "u", retain=True, blocks=[len(BLOCK)], at=len(BLOCK))
    story.log.record(event, payloads=[BLOCK, b"one", b"two"])
    story(RetainedExpired(["t"]), time_ms=story.log.time_ms + 5000)
    story(Subscribed("s", [("t", 1)]))
    return story(published("x", qos=0, retain=True), payloads=1).keeps()


def ended_by_disconnect(name: str) -> Case:
    story = mqtt5(name)(SessionClosed("s", "disconnect", expiry=0))
    return story(published("t"), payloads=1)(SessionOpened("s", False, False, 5, expiry=9)).keeps()


# ----------------------------------------------------------------------- shared subscriptions

GROUP = "$share/g/t"


def shared(name: str, qos: int = 1) -> Story:
    """``s`` and ``r`` share ``t``; ``p`` publishes. The next record is 3."""
    story = Story(name, bare=True)
    story(
        BrokerStarted("0.1"), opened("p"), opened5(),
        SessionOpened("r", False, False, 5, expiry=60),
        SessionOpened(GROUP, False, False, 5, expiry=0xFFFF_FFFF),
        Subscribed(GROUP, [("t", 2)]), SessionClosed(GROUP, "shared"),
    )  # fmt: skip
    return story(Subscribed("s", [(GROUP, qos)]), Subscribed("r", [(GROUP, qos)]))


def given(to: str, ref: Position, *, pid: int = 1, queued: int = -1) -> tuple[Delivered, Assigned]:
    """A member is sent a message, and the shared subscription assigns it."""
    one = delivered(ref, session=to, topic_filter=GROUP, pid=pid)
    return one, Assigned(GROUP, to, [ref], queued)


def back(ref: Position) -> tuple[Returned, Queued]:
    """``s`` returns a message, which waits again."""
    return Returned("s", GROUP, [1], [ref]), Queued(GROUP, "t", 1, [ref], 3, behind=0)


def assigned_and_not_sent(name: str) -> Case:
    story = shared(name)(published("t"), Assigned(GROUP, "s", [at(3)]), payloads=1)
    return story.breaks("shared", at(3, 1), GROUP)


def sent_to_two_members(name: str) -> Case:
    story = shared(name)(published("t"), *given("s", at(3)), payloads=1)
    story(*given("r", at(3)))
    more = ("delivered_twice", at(4, 1), GROUP)
    return story.breaks("shared", at(4), GROUP, more)


def not_returned(name: str) -> Case:
    story = shared(name)(published("t"), *given("s", at(3)), payloads=1)(closed())
    return story.breaks("shared", at(4), GROUP)


def returned_and_lost(name: str) -> Case:
    story = shared(name)(published("t"), *given("s", at(3)), payloads=1)
    story(back(at(3))[0], closed())
    return story.breaks("shared", at(4), GROUP)


def a_topic_that_moves(name: str) -> Case:
    story = shared(name)
    for number, to in enumerate(("s", "s", "r"), 3):
        sent, assigned = given(to, at(number), pid=number)
        assigned.by_topic = True
        story(published("t", pid=number), sent, assigned, payloads=1)
    return story.breaks("shared", at(5, 2), GROUP)


def lost_in_a_group(name: str) -> Case:
    story = shared(name)(published("t"), payloads=1)
    return story.breaks("undelivered", at(3), GROUP)


def shared_as_promised(name: str) -> Case:
    story = shared(name)(published("t"), *given("s", at(3)), payloads=1)
    story(*back(at(3)), closed())(*given("r", at(3), queued=3))(Acked("r", [1]))
    story(published("t", pid=2), *given("r", at(7), pid=2), payloads=1)
    return story(Acked("r", [2], reasons=[0x97])).keeps()


BROKEN_MQTT5 = (
    assigned_and_not_sent, sent_to_two_members, not_returned, returned_and_lost, a_topic_that_moves,
    lost_in_a_group, released_too_late, shared_and_released_too_late, retained_sent_too_late,
    sent_too_late, expired_too_early, more_than_it_accepts, its_own_message,
    its_own_retained_message, retained_for_nothing, retained_for_an_old_subscription,
    retained_not_sent_though_asked_for,
)  # fmt: skip
KEPT_MQTT5 = (
    expired_in_time, as_many_as_it_accepts, not_its_own_message, not_its_own_retained_message,
    retained_until_it_expired, retained_not_asked_for, ended_by_disconnect, shared_as_promised,
    released_in_time, released_after_it_expired, retained_sent_in_time,
)  # fmt: skip
