"""Logs in which something erased is sent or stays, and similar ones that keep all promises.

Key 1 of topic ``t`` is erased; a message of three bytes on it is sealed.
"""

from __future__ import annotations

from typing import Any

from brokenlogs import Case, Story, at, closed, delivered, opened, published, queued

from eventstore.format.erasure_events import Erased, ErasureRequested, TopicsKeyed
from eventstore.format.events import Acked, MessageDropped, WillArmed, WillFired
from eventstore.format.node_events import OperatorActed, RetainedCleared

UNDER_1, UNDER_2 = ((0, 3, 1),), ((0, 3, 2),)


def keyed(name: str, ends_ms: int = 0) -> Story:
    """Record 2 names key 1."""
    return Story(name)(TopicsKeyed(["t"], [1], ["0" * 32], ends_ms=ends_ms))


def erased(story: Story, *more: Any, before_ms: int = 0) -> Story:
    """A record with the request, and what follows in its turn; another one with its end."""
    request = ErasureRequested(1, "ann", "request", ["t"], [1], before_ms=before_ms)
    return story(request, *more)(Erased(1, 1))


def _waits(name: str) -> Story:
    """Message 4.0 is queued, and erased in record 5; the client is back in record 7."""
    story = keyed(name)(closed())
    story(published("t"), queued(at(4)), payloads=1, sealed=UNDER_1)
    return erased(story)


def erased_but_delivered(name: str) -> Case:
    story = _waits(name)(opened(resumed=True, generation=2), delivered(at(4), queued=3))
    return story.breaks("erasure", at(7, 1))


def erased_and_dropped(name: str) -> Case:
    story = _waits(name)(
        opened(resumed=True, generation=2), MessageDropped("s", "erased", 1, [at(4)], "t", 3)
    )
    return story.keeps()


def delivered_before_it_was_erased(name: str) -> Case:
    story = keyed(name)(published("t"), delivered(at(3)), payloads=1, sealed=UNDER_1)
    return erased(story)(Acked("s", [1])).keeps()


def delivered_under_a_later_key(name: str) -> Case:
    """Only the first of two periods is erased."""
    begin = Story(name).log.time_ms
    story = keyed(name, begin + 25)(published("t"), delivered(at(3)), payloads=1, sealed=UNDER_1)
    second = TopicsKeyed(["t"], [2], ["1" * 32], begins_ms=begin + 30, ends_ms=begin + 9000)
    story(second, Acked("s", [1]), closed())
    story(published("t", pid=2), queued(at(5)), payloads=1, sealed=UNDER_2)
    erased(story, before_ms=begin + 30)
    return story(opened(resumed=True, generation=2), delivered(at(5), pid=2, queued=3)).keeps()


def delivered_under_a_new_key(name: str) -> Case:
    story = _waits(name)(TopicsKeyed(["t"], [2], ["1" * 32]))
    story(opened(resumed=True, generation=2), MessageDropped("s", "erased", 1, [at(4)], "t", 3))
    sent = published("t", pid=2), delivered(at(9))
    return story(*sent, payloads=1, sealed=UNDER_2).keeps()


def erased_but_retained(name: str) -> Case:
    story = keyed(name)(published("t", retain=True), delivered(at(3)), payloads=1, sealed=UNDER_1)
    return erased(story).breaks("erasure", at(4), None)


def erased_and_not_retained(name: str) -> Case:
    story = keyed(name)(published("t", retain=True), delivered(at(3)), payloads=1, sealed=UNDER_1)
    erased(story, OperatorActed("clear_retained", "ann", "t"), RetainedCleared(["t"]))
    return story.keeps()


def _armed(name: str) -> Story:
    story = keyed(name)
    story(opened("x"), WillArmed("x", "t", 1, False, 3, 0), payloads=1, sealed=UNDER_1)
    return erased(story)


def erased_will_is_published(name: str) -> Case:
    story = _armed(name)(TopicsKeyed(["t"], [2], ["1" * 32]))
    story(
        WillFired("x"),
        published("t", session="x", will=True, pid=0),
        delivered(at(7, 1)),
        closed("x"),
        payloads=1,
        sealed=UNDER_2,
    )
    return story.breaks("erasure", at(7, 1), "x")


def erased_will_is_dropped(name: str) -> Case:
    dropped = MessageDropped("x", "erased", 1, topics=["t"])
    return _armed(name)(WillFired("x"), dropped, closed("x")).keeps()


TOKEN, OTHER = "~" + "a" * 16, "~" + "b" * 16
ENTRY = f"$+client/{TOKEN}/c2VhbGVk"


def _name_erased(name: str) -> Story:
    """A client is known by a token in record 3, which is erased in record 4, and ends in 6."""
    story = Story(name)(TopicsKeyed([ENTRY], [1], ["0" * 32]))(opened(TOKEN))
    story(ErasureRequested(1, "ann", "request", [ENTRY], [1]))(Erased(1, 1))
    return story(closed(TOKEN))


def erased_name_connects(name: str) -> Case:
    story = _name_erased(name)(opened(TOKEN, resumed=True, generation=2))
    return story.breaks("erasure", at(7), TOKEN)


def erased_name_has_another_token(name: str) -> Case:
    story = _name_erased(name)(TopicsKeyed([f"$+client/{OTHER}/b3RoZXI="], [2], ["1" * 32]))
    return story(opened(OTHER)).keeps()


BROKEN_ERASURES = (
    erased_but_delivered, erased_but_retained, erased_will_is_published, erased_name_connects,
)  # fmt: skip
KEPT_ERASURES = (
    erased_and_dropped, delivered_before_it_was_erased, delivered_under_a_later_key,
    delivered_under_a_new_key, erased_and_not_retained, erased_will_is_dropped,
    erased_name_has_another_token,
)  # fmt: skip
