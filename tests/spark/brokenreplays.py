"""Logs in which a replay is not what it should be; and similar ones in which it is.

``s`` replays ``h/#``; ``p`` published three messages on it before, at 2.0 and 2.2, and at QoS 2 one
that takes effect at 4.0.
"""

from typing import Any

from brokencauses import LIMITS
from brokenlogs import (
    Case,
    Stories,
    Story,
    _cut,
    at,
    checkpoint,
    closed,
    opened,
    published,
    snapshot,
)

from eventstore.format.events import (
    LOG_SESSION,
    Acked,
    Delivered,
    MessageDropped,
    Released,
    ReplayOpened,
    ReplayReached,
    SessionOpened,
    Subscribed,
    Unsubscribed,
)
from eventstore.format.node_events import BrokerStarted, LimitsApplied, MessagesCarried
from eventstore.format.positions import Position

REPLAYS = Stories()

WHOLE = "$replay/all/h/#"
BEHIND = (5 << 20) - 1
"""The end of record 4."""


def past(**limits: Any) -> Story:
    story = Story(bare=True)
    story(BrokerStarted("0.1"), LimitsApplied(LIMITS, **limits), opened("p"))
    story(published("h/1", "x", "h/2"), payloads=3)
    story(published("h/1", qos=2, pid=9), payloads=1)
    return story(Released("p", [9], [at(3)]))


def begun(story: Story, qos: int = 1, **of: Any) -> Story:
    """Open the replay, in record 5 if nothing else was written."""
    options = [of.pop("options")] if "options" in of else []
    replayed = of.pop("filter", WHOLE)
    start = of.pop("start", {})
    subscribed = Subscribed("s", [(replayed, qos)], options=options)
    return story(
        SessionOpened("s", False, False, 5 if options else 4),
        subscribed,
        ReplayOpened("s", replayed, start, **of),
    )


def replay(qos: int = 1, **of: Any) -> Story:
    return begun(past(), qos, **of)


def sent(*refs: Position, pid: int = 1, qos: int = 1, topic_filter: str = WHOLE) -> Delivered:
    return Delivered("s", topic_filter, qos, [*range(pid, pid + len(refs))], [*refs])


def reached(through: Position, count: int = 0, **more: Any) -> ReplayReached:
    return ReplayReached("s", more.pop("filter", WHOLE), {"": through}, sent=count, **more)


ALL = (at(2), at(2, 2), at(3))


def _cut_in_the_middle() -> Story:
    """Two messages were sent, and are carried over; the cut follows in record 9."""
    story = replay()(sent(at(2)), reached(at(2), 1))
    checkpoint(story, snapshot(story, "p"), snapshot(story, "s"), sessions=2, retained=0)
    story(MessagesCarried([at(2)], ["h/1"], [], 3, 0, 1, publishers=["p"]), payloads=1)
    return story(_cut(story, 7))


# ------------------------------------------------------------------------------ it is wrong


@REPLAYS.add
def replay_from_too_early() -> Case:
    """The messages of record 2 are older than its beginning."""
    story = past()
    begun(story, start_ms=story.log.time_ms - 5)
    return story(sent(*ALL), reached(BEHIND, 3)).breaks(
        "replay", at(6, 3), "s", ("replay", at(6), "s"), ("replay", at(6, 1), "s")
    )


@REPLAYS.add
def replay_stands_still() -> Case:
    story = replay()(sent(*ALL), reached(BEHIND, 3, state="live"))(Acked("s", [[1, 3, 1]]))
    story(published("h/5", pid=2), payloads=1)
    story(sent(at(8), pid=4), reached(at(8), 1), time_ms=story.log.time_ms + 600_000)
    return story.breaks("progress", at(9, 1))


@REPLAYS.add
def replay_stands_still_to_the_end() -> Case:
    story = replay()(sent(*ALL), reached(BEHIND, 3, state="live"))(Acked("s", [[1, 3, 1]]))
    story(published("h/5", pid=2), payloads=1)
    story(closed(), time_ms=story.log.time_ms + 600_000)
    return story.breaks("progress", at(9))


REPLAYS |= {
    "replay_skips_a_message": replay()(sent(at(2), at(3)), reached(BEHIND, 2)).breaks(
        "replay", at(6, 2)
    ),
    "replay_skips_a_message_at_qos_0": replay(0)(reached(BEHIND, 2)).breaks("replay", at(6)),
    "replay_counts_too_many": replay(0)(reached(BEHIND, 3, left_out={"expired": 1})).breaks(
        "replay", at(6), "s", ("replay", at(6), "s")
    ),
    # Messages at QoS 1 that are counted, but not named.
    "replay_names_too_few": replay()(sent(at(2), at(2, 2)), reached(BEHIND, 3)).breaks(
        "replay", at(6, 2)
    ),
    "replayed_twice": replay()(sent(at(2), at(2, 2)), reached(at(2, 2), 2))(
        sent(at(2, 2), pid=3), reached(BEHIND, 1)
    ).breaks("delivered_twice", at(7)),
    "replayed_twice_in_a_step": replay()(sent(at(2), at(2), at(3)), reached(BEHIND, 3)).breaks(
        "delivered_twice", at(6, 1)
    ),
    "replayed_in_another_order": replay()(sent(at(2, 2), at(2), at(3)), reached(BEHIND, 3)).breaks(
        "order", at(6, 1)
    ),
    # At QoS 2 a message takes its place with its PUBREL.
    "replayed_before_it_took_effect": replay()(
        sent(at(2), at(2, 2), at(3)), reached(at(3), 3)
    ).breaks("replay", at(6, 3), "s", ("replay", at(6, 2), "s")),
    "replayed_on_another_topic": replay()(sent(at(2), at(2, 1), at(3)), reached(BEHIND, 3)).breaks(
        "no_subscription", at(6, 1)
    ),
    "replayed_at_another_qos": replay()(
        sent(at(2), at(2, 2)), sent(at(3), pid=3, qos=2), reached(BEHIND, 3)
    ).breaks("qos", at(6, 2)),
    "replayed_without_a_cursor": replay()(sent(at(2))).breaks("replay", at(6)),
    "cursor_goes_back": replay()(sent(*ALL), reached(BEHIND, 3))(reached(at(3))).breaks(
        "replay", at(7)
    ),
    "cursor_beyond_the_log": replay()(sent(*ALL), reached(at(9), 3)).breaks("replay", at(6, 3)),
    "gap_without_a_cut": replay()(
        sent(at(3)), reached(BEHIND, 1, gap={"": [at(1), at(3) - 1]})
    ).breaks("replay", at(6, 1)),
    "gap_over_what_was_read": _cut_in_the_middle()(
        reached(at(5), gap={"": [at(2), at(5) - 1]})
    ).breaks("replay", at(10)),
    "replay_not_opened": past()(opened("s"), Subscribed("s", [(WHOLE, 1)]))(reached(BEHIND)).breaks(
        "replay", at(6)
    ),
    "replay_without_a_subscription": past()(opened("s"), ReplayOpened("s", WHOLE, {})).breaks(
        "replay", at(5, 1)
    ),
    "replay_after_its_end": replay()(sent(*ALL), reached(BEHIND, 3, state="ended"))(
        reached(at(6))
    ).breaks("replay", at(7)),
    "left_out_without_permissions": replay()(
        sent(at(2)), reached(BEHIND, 1, left_out={"not_permitted": 2})
    ).breaks("replay", at(6, 1)),
    "left_out_for_no_reason": replay()(
        sent(at(2)), reached(BEHIND, 1, left_out={"tired": 2})
    ).breaks("replay", at(6, 1)),
    "own_message_replayed": begun(past(), options=4)(sent(*ALL), reached(BEHIND, 3))(
        published("h/4", session="s", pid=2), payloads=1
    )(sent(at(7), pid=4), reached(at(7), 1)).breaks("no_local", at(8)),
    "replay_beyond_its_end": replay(until={"": at(2, 1)})(
        sent(at(2), at(2, 2)), reached(at(2, 2), 2, state="ended")
    ).breaks("replay", at(6, 2), "s", ("replay", at(6, 1), "s")),
    "more_than_the_last_message": replay(last=True, start={"": BEHIND})(
        sent(*ALL), reached(BEHIND, 3)
    ).breaks("replay", at(6, 3), "s", ("replay", at(6), "s")),
}


# ------------------------------------------------------------------------------ it is right


@REPLAYS.add
def replayed_as_promised() -> Case:
    story = replay()(sent(at(2)), reached(at(2), 1))(sent(at(2, 2), pid=2), reached(at(2, 2), 1))
    story(Acked("s", [1, 2]))(sent(at(3), pid=3), reached(BEHIND, 1, state="live"))
    story(published("h/5", pid=2), payloads=1)
    return story(sent(at(10), pid=4), reached(at(10), 1, state="live"))(closed()).keeps()


@REPLAYS.add
def replayed_beside_a_subscription() -> Case:
    story = replay()(Subscribed("s", [("h/#", 1)]))
    ordinary = Delivered("s", "h/#", 1, [1], [at(7)])
    story(published("h/5", pid=2), ordinary, payloads=1)
    story(sent(*ALL, at(7), pid=2), reached(at(7), 4))
    return story(Acked("s", [[1, 5, 1]])).keeps()


@REPLAYS.add
def replayed_from_a_time() -> Case:
    story = past()
    begun(story, start_ms=story.log.time_ms - 5)
    return story(sent(at(3)), reached(BEHIND, 1)).keeps()


@REPLAYS.add
def replayed_from_a_time_before_the_clock_was_set_back() -> Case:
    story = past()
    time_ms = story.log.time_ms
    story.log.jump(-3_600_000)
    story(published("h/6", pid=2), payloads=1)
    begun(story, start_ms=time_ms)
    return story(sent(at(3), at(6)), reached(at(6), 2)).keeps()


@REPLAYS.add
def replayed_up_to_a_time() -> Case:
    story = past()
    begun(story, until_ms=story.log.time_ms - 5)
    return story(sent(at(2), at(2, 2)), reached(at(4) - 1, 2, state="ended")).keeps()


@REPLAYS.add
def stream_by_its_name() -> Case:
    story = replay(filter="$stream/hall", topic_filter="h/#")
    step = sent(*ALL, topic_filter="$stream/hall")
    return story(step, reached(BEHIND, 3, filter="$stream/hall")).keeps()


@REPLAYS.add
def replay_that_waits() -> Case:
    """The client may not read, or has no room: nothing stands still."""
    story = replay()(sent(at(2)), reached(at(2), 1, state="withheld"))
    story(sent(at(2, 2), at(3), pid=2), reached(BEHIND, 2), time_ms=story.log.time_ms + 600_000)
    return story.keeps()


@REPLAYS.add
def dropped_on_its_way_by_a_replay() -> Case:
    story = begun(past(permissions="0123456789abcdef"))(sent(*ALL), reached(BEHIND, 3))
    return story(
        MessageDropped("s", "not_permitted", 1, [at(2)], WHOLE), Acked("s", [1], reasons=[0x87])
    ).keeps()


@REPLAYS.add
def replay_in_a_cut_log() -> Case:
    """The state of the replay comes from the checkpoint."""
    story = _cut_in_the_middle()
    story(reached(at(7) - 1, gap={"": [at(2) + 1, at(7) - 1]}))
    story(published("h/5", pid=2), payloads=1)(sent(at(11), pid=2), reached(at(11), 1))
    return story.keeps(cut=7)


@REPLAYS.add
def replay_skips_a_message_in_a_cut_log() -> Case:
    story = _cut_in_the_middle()
    story(reached(at(7) - 1, gap={"": [at(2) + 1, at(7) - 1]}))
    story(published("h/5", "h/6", pid=2), payloads=2)(sent(at(11), pid=2), reached(at(11, 1), 1))
    return story.breaks("replay", at(12, 1), cut=7)


REPLAYS |= {
    # Of a granted QoS of 2, each message has its own.
    "replayed_at_qos_0_and_2": begun(past()(published("h/0", qos=0), payloads=1), 2)(
        *(sent(at(2), at(2, 2)), sent(at(3), pid=3, qos=2), reached(at(5), 4))
    )(reached(at(6))).keeps(),
    "replayed_after_a_position": replay(start={"": at(2)})(
        sent(at(2, 2), at(3)), reached(BEHIND, 2)
    ).keeps(),
    "replayed_up_to_a_position": replay(until={"": at(2, 1)})(
        sent(at(2)), reached(at(2, 1), 1, state="ended")
    )(published("h/9", pid=3), payloads=1)(closed()).keeps(),
    "replayed_the_last_messages": replay(last=True, start={"": BEHIND})(
        sent(at(2, 2)), reached(at(2, 2), 1)
    )(published("h/2", pid=3), payloads=1)(sent(at(3), at(7), pid=2), reached(at(7), 2)).keeps(),
    "left_out_with_reasons": begun(past(permissions="0123456789abcdef"))(
        sent(at(2)), reached(BEHIND, 1, left_out={"not_permitted": 2})
    ).keeps(),
    "own_messages_left_out": begun(past(), options=4)(
        published("h/4", session="s", pid=2), payloads=1
    )(sent(*ALL), reached(at(6), 3, left_out={"no_local": 1})).keeps(),
    # Unsubscribed with messages on their way, and subscribed to again.
    "replay_begun_again": replay()(sent(*ALL), reached(BEHIND, 3))(Unsubscribed("s", [WHOLE]))(
        Subscribed("s", [(WHOLE, 1)]), ReplayOpened("s", WHOLE, {})
    )(sent(*ALL, pid=4), reached(BEHIND, 3))(Acked("s", [[1, 6, 1]])).keeps(),
    "replay_goes_on_after_a_reconnect": replay()(sent(at(2)), reached(at(2), 1))(
        Acked("s", [1]), closed()
    )(opened("s", resumed=True, generation=2), Subscribed("s", [(WHOLE, 1)]))(
        sent(at(2, 2), at(3), pid=2), reached(BEHIND, 2)
    ).keeps(),
    # Messages of another log are read there.
    "replay_of_copies": begun(
        past()(opened(f"{LOG_SESSION}n2"), published("h/8", session=f"{LOG_SESSION}n2"), payloads=1)
    )(sent(*ALL), reached(at(5, 1), 3)).keeps(),
    "replay_of_several_logs": replay(0)(
        ReplayReached("s", WHOLE, {"": BEHIND, "n2": at(7)}, sent=9)
    ).keeps(),
    "gap_after_a_cut": _cut_in_the_middle()(
        reached(at(7) - 1, gap={"": [at(2) + 1, at(7) - 1]})
    ).keeps(),
}
