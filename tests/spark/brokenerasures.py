"""Logs in which something erased is sent or stays, and similar ones that keep all promises.

Key 1 of topic ``t`` is erased; a message of three bytes on it is sealed.
"""

from __future__ import annotations

from typing import Any

from brokenlogs import Case, Stories, Story, at, closed, delivered, opened, published, queued

from eventstore.format.erasure_events import Erased, ErasureRequested, TopicsKeyed
from eventstore.format.events import Acked, MessageDropped, WillArmed, WillFired
from eventstore.format.node_events import OperatorActed, RetainedCleared

ERASURES = Stories()

UNDER_1, UNDER_2 = ((0, 3, 1),), ((0, 3, 2),)


def keyed(ends_ms: int = 0) -> Story:
    """Record 2 names key 1."""
    return Story()(TopicsKeyed(["t"], [1], ["0" * 32], ends_ms=ends_ms))


def erased(story: Story, *more: Any, before_ms: int = 0) -> Story:
    """A record with the request, and what follows in its turn; another one with its end."""
    request = ErasureRequested(1, "ann", "request", ["t"], [1], before_ms=before_ms)
    return story(request, *more)(Erased(1, 1))


def _waits() -> Story:
    """Message 4.0 is queued, and erased in record 5; the client is back in record 7."""
    story = keyed()(closed())
    story(published("t"), queued(at(4)), payloads=1, sealed=UNDER_1)
    return erased(story)


@ERASURES.add
def delivered_under_a_later_key() -> Case:
    """Only the first of two periods is erased."""
    begin = Story().log.time_ms
    story = keyed(begin + 25)(published("t"), delivered(at(3)), payloads=1, sealed=UNDER_1)
    second = TopicsKeyed(["t"], [2], ["1" * 32], begins_ms=begin + 30, ends_ms=begin + 9000)
    story(second, Acked("s", [1]), closed())
    story(published("t", pid=2), queued(at(5)), payloads=1, sealed=UNDER_2)
    erased(story, before_ms=begin + 30)
    return story(opened(resumed=True, generation=2), delivered(at(5), pid=2, queued=3)).keeps()


def _armed() -> Story:
    story = keyed()
    story(opened("x"), WillArmed("x", "t", 1, False, 3, 0), payloads=1, sealed=UNDER_1)
    return erased(story)


TOKEN, OTHER = "~" + "a" * 16, "~" + "b" * 16
ENTRY = f"$+client/{TOKEN}/c2VhbGVk"


def _name_erased() -> Story:
    """A client is known by a token in record 3, which is erased in record 4, and ends in 6."""
    story = Story()(TopicsKeyed([ENTRY], [1], ["0" * 32]))(opened(TOKEN))
    story(ErasureRequested(1, "ann", "request", [ENTRY], [1]))(Erased(1, 1))
    return story(closed(TOKEN))


ERASURES |= {
    "erased_but_delivered": _waits()(
        opened(resumed=True, generation=2), delivered(at(4), queued=3)
    ).breaks("erasure", at(7, 1)),
    "erased_and_dropped": _waits()(
        opened(resumed=True, generation=2), MessageDropped("s", "erased", 1, [at(4)], "t", 3)
    ).keeps(),
    "delivered_before_it_was_erased": erased(
        keyed()(published("t"), delivered(at(3)), payloads=1, sealed=UNDER_1)
    )(Acked("s", [1])).keeps(),
    "delivered_under_a_new_key": _waits()(TopicsKeyed(["t"], [2], ["1" * 32]))(
        opened(resumed=True, generation=2), MessageDropped("s", "erased", 1, [at(4)], "t", 3)
    )(*(published("t", pid=2), delivered(at(9))), payloads=1, sealed=UNDER_2).keeps(),
    "erased_but_retained": erased(
        keyed()(published("t", retain=True), delivered(at(3)), payloads=1, sealed=UNDER_1)
    ).breaks("erasure", at(4), None),
    "erased_and_not_retained": erased(
        keyed()(published("t", retain=True), delivered(at(3)), payloads=1, sealed=UNDER_1),
        OperatorActed("clear_retained", "ann", "t"),
        RetainedCleared(["t"]),
    ).keeps(),
    "erased_will_is_published": _armed()(TopicsKeyed(["t"], [2], ["1" * 32]))(
        WillFired("x"),
        published("t", session="x", will=True, pid=0),
        delivered(at(7, 1)),
        closed("x"),
        payloads=1,
        sealed=UNDER_2,
    ).breaks("erasure", at(7, 1), "x"),
    "erased_will_is_dropped": _armed()(
        WillFired("x"), MessageDropped("x", "erased", 1, topics=["t"]), closed("x")
    ).keeps(),
    "erased_name_connects": _name_erased()(opened(TOKEN, resumed=True, generation=2)).breaks(
        "erasure", at(7), TOKEN
    ),
    "erased_name_has_another_token": _name_erased()(
        TopicsKeyed([f"$+client/{OTHER}/b3RoZXI="], [2], ["1" * 32])
    )(opened(OTHER)).keeps(),
}
