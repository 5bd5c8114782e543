"""Logs in which a replay is not what it should be; and similar ones in which it is.

``s`` replays ``h/#``; ``p`` published three messages on it before, at 2.0 and 2.2, and at QoS 2 one
that takes effect at 4.0.
"""

from __future__ import annotations

from typing import Any

from brokencauses import LIMITS
from brokenlogs import Case, Story, _cut, at, checkpoint, closed, opened, published, snapshot

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

WHOLE = "$replay/all/h/#"
BEHIND = (5 << 20) - 1
"""The end of record 4."""


def past(name: str, **limits: Any) -> Story:
    story = Story(name, bare=True)
    story(BrokerStarted("0.1"), LimitsApplied(LIMITS, **limits), opened("p"))
    story(published("h/1", "x", "h/2"), payloads=3)
    story(published("h/1", qos=2, pid=9), payloads=1)
    return story(Released("p", [9], [at(3)]))


def begun(story: Story, qos: int = 1, **of: Any) -> Story:
    """Open the replay, in record 5 if nothing else was written."""
    options = [of.pop("options")] if "options" in of else []
    name = of.pop("filter", WHOLE)
    start = of.pop("start", {})
    subscribed = Subscribed("s", [(name, qos)], options=options)
    return story(
        SessionOpened("s", False, False, 5 if options else 4),
        subscribed,
        ReplayOpened("s", name, start, **of),
    )


def replay(name: str, qos: int = 1, **of: Any) -> Story:
    return begun(past(name), qos, **of)


def sent(*refs: Position, pid: int = 1, qos: int = 1, topic_filter: str = WHOLE) -> Delivered:
    return Delivered("s", topic_filter, qos, [*range(pid, pid + len(refs))], [*refs])


def reached(through: Position, count: int = 0, **more: Any) -> ReplayReached:
    return ReplayReached("s", more.pop("filter", WHOLE), {"": through}, sent=count, **more)


ALL = (at(2), at(2, 2), at(3))


# ------------------------------------------------------------------------------ it is wrong


def replay_skips_a_message(name: str) -> Case:
    story = replay(name)(sent(at(2), at(3)), reached(BEHIND, 2))
    return story.breaks("replay", at(6, 2))


def replay_skips_a_message_at_qos_0(name: str) -> Case:
    return replay(name, 0)(reached(BEHIND, 2)).breaks("replay", at(6))


def replay_counts_too_many(name: str) -> Case:
    return replay(name, 0)(reached(BEHIND, 3, left_out={"expired": 1})).breaks(
        "replay", at(6), "s", ("replay", at(6), "s")
    )


def replay_names_too_few(name: str) -> Case:
    """Messages at QoS 1 that are counted, but not named."""
    story = replay(name)(sent(at(2), at(2, 2)), reached(BEHIND, 3))
    return story.breaks("replay", at(6, 2))


def replayed_twice(name: str) -> Case:
    story = replay(name)(sent(at(2), at(2, 2)), reached(at(2, 2), 2))
    story(sent(at(2, 2), pid=3), reached(BEHIND, 1))
    return story.breaks("delivered_twice", at(7))


def replayed_twice_in_a_step(name: str) -> Case:
    story = replay(name)(sent(at(2), at(2), at(3)), reached(BEHIND, 3))
    return story.breaks("delivered_twice", at(6, 1))


def replayed_in_another_order(name: str) -> Case:
    story = replay(name)(sent(at(2, 2), at(2), at(3)), reached(BEHIND, 3))
    return story.breaks("order", at(6, 1))


def replayed_before_it_took_effect(name: str) -> Case:
    """At QoS 2 a message takes its place with its PUBREL."""
    story = replay(name)(sent(at(2), at(2, 2), at(3)), reached(at(3), 3))
    return story.breaks("replay", at(6, 3), "s", ("replay", at(6, 2), "s"))


def replayed_on_another_topic(name: str) -> Case:
    story = replay(name)(sent(at(2), at(2, 1), at(3)), reached(BEHIND, 3))
    return story.breaks("no_subscription", at(6, 1))


def replayed_at_another_qos(name: str) -> Case:
    story = replay(name)(sent(at(2), at(2, 2)), sent(at(3), pid=3, qos=2), reached(BEHIND, 3))
    return story.breaks("qos", at(6, 2))


def replayed_without_a_cursor(name: str) -> Case:
    return replay(name)(sent(at(2))).breaks("replay", at(6))


def cursor_goes_back(name: str) -> Case:
    story = replay(name)(sent(*ALL), reached(BEHIND, 3))(reached(at(3)))
    return story.breaks("replay", at(7))


def cursor_beyond_the_log(name: str) -> Case:
    return replay(name)(sent(*ALL), reached(at(9), 3)).breaks("replay", at(6, 3))


def gap_without_a_cut(name: str) -> Case:
    story = replay(name)(sent(at(3)), reached(BEHIND, 1, gap={"": [at(1), at(3) - 1]}))
    return story.breaks("replay", at(6, 1))


def gap_over_what_was_read(name: str) -> Case:
    story = _cut_in_the_middle(name)
    story(reached(at(5), gap={"": [at(2), at(5) - 1]}))
    return story.breaks("replay", at(10))


def replay_not_opened(name: str) -> Case:
    story = past(name)(opened("s"), Subscribed("s", [(WHOLE, 1)]))(reached(BEHIND))
    return story.breaks("replay", at(6))


def replay_without_a_subscription(name: str) -> Case:
    return past(name)(opened("s"), ReplayOpened("s", WHOLE, {})).breaks("replay", at(5, 1))


def replay_after_its_end(name: str) -> Case:
    story = replay(name)(sent(*ALL), reached(BEHIND, 3, state="ended"))
    return story(reached(at(6))).breaks("replay", at(7))


def left_out_without_permissions(name: str) -> Case:
    story = replay(name)(sent(at(2)), reached(BEHIND, 1, left_out={"not_permitted": 2}))
    return story.breaks("replay", at(6, 1))


def left_out_for_no_reason(name: str) -> Case:
    story = replay(name)(sent(at(2)), reached(BEHIND, 1, left_out={"tired": 2}))
    return story.breaks("replay", at(6, 1))


def own_message_replayed(name: str) -> Case:
    story = begun(past(name), options=4)(sent(*ALL), reached(BEHIND, 3))
    story(published("h/4", session="s", pid=2), payloads=1)
    story(sent(at(7), pid=4), reached(at(7), 1))
    return story.breaks("no_local", at(8))


def replay_from_too_early(name: str) -> Case:
    """The messages of record 2 are older than its beginning."""
    story = past(name)
    begun(story, start_ms=story.log.time_ms - 5)
    return story(sent(*ALL), reached(BEHIND, 3)).breaks(
        "replay", at(6, 3), "s", ("replay", at(6), "s"), ("replay", at(6, 1), "s")
    )


def replay_beyond_its_end(name: str) -> Case:
    story = replay(name, until={"": at(2, 1)})
    story(sent(at(2), at(2, 2)), reached(at(2, 2), 2, state="ended"))
    return story.breaks("replay", at(6, 2), "s", ("replay", at(6, 1), "s"))


def more_than_the_last_message(name: str) -> Case:
    story = replay(name, last=True, start={"": BEHIND})(sent(*ALL), reached(BEHIND, 3))
    return story.breaks("replay", at(6, 3), "s", ("replay", at(6), "s"))


def replay_stands_still(name: str) -> Case:
    story = replay(name)(sent(*ALL), reached(BEHIND, 3, state="live"))(Acked("s", [[1, 3, 1]]))
    story(published("h/5", pid=2), payloads=1)
    story(sent(at(8), pid=4), reached(at(8), 1), time_ms=story.log.time_ms + 600_000)
    return story.breaks("progress", at(9, 1))


def replay_stands_still_to_the_end(name: str) -> Case:
    story = replay(name)(sent(*ALL), reached(BEHIND, 3, state="live"))(Acked("s", [[1, 3, 1]]))
    story(published("h/5", pid=2), payloads=1)
    story(closed(), time_ms=story.log.time_ms + 600_000)
    return story.breaks("progress", at(9))


# ------------------------------------------------------------------------------ it is right


def replayed_as_promised(name: str) -> Case:
    story = replay(name)(sent(at(2)), reached(at(2), 1))(
        sent(at(2, 2), pid=2), reached(at(2, 2), 1)
    )
    story(Acked("s", [1, 2]))(sent(at(3), pid=3), reached(BEHIND, 1, state="live"))
    story(published("h/5", pid=2), payloads=1)
    return story(sent(at(10), pid=4), reached(at(10), 1, state="live"))(closed()).keeps()


def replayed_at_qos_0_and_2(name: str) -> Case:
    """Of a granted QoS of 2, each message has its own."""
    story = past(name)(published("h/0", qos=0), payloads=1)
    begun(story, 2)
    steps = sent(at(2), at(2, 2)), sent(at(3), pid=3, qos=2), reached(at(5), 4)
    return story(*steps)(reached(at(6))).keeps()


def replayed_beside_a_subscription(name: str) -> Case:
    story = replay(name)(Subscribed("s", [("h/#", 1)]))
    ordinary = Delivered("s", "h/#", 1, [1], [at(7)])
    story(published("h/5", pid=2), ordinary, payloads=1)
    story(sent(*ALL, at(7), pid=2), reached(at(7), 4))
    return story(Acked("s", [[1, 5, 1]])).keeps()


def replayed_after_a_position(name: str) -> Case:
    return replay(name, start={"": at(2)})(sent(at(2, 2), at(3)), reached(BEHIND, 2)).keeps()


def replayed_from_a_time(name: str) -> Case:
    story = past(name)
    begun(story, start_ms=story.log.time_ms - 5)
    return story(sent(at(3)), reached(BEHIND, 1)).keeps()


def replayed_from_a_time_before_the_clock_was_set_back(name: str) -> Case:
    story = past(name)
    time_ms = story.log.time_ms
    story.log.jump(-3_600_000)
    story(published("h/6", pid=2), payloads=1)
    begun(story, start_ms=time_ms)
    return story(sent(at(3), at(6)), reached(at(6), 2)).keeps()


def replayed_up_to_a_time(name: str) -> Case:
    story = past(name)
    begun(story, until_ms=story.log.time_ms - 5)
    return story(sent(at(2), at(2, 2)), reached(at(4) - 1, 2, state="ended")).keeps()


def replayed_up_to_a_position(name: str) -> Case:
    story = replay(name, until={"": at(2, 1)})(sent(at(2)), reached(at(2, 1), 1, state="ended"))
    return story(published("h/9", pid=3), payloads=1)(closed()).keeps()


def replayed_the_last_messages(name: str) -> Case:
    story = replay(name, last=True, start={"": BEHIND})(sent(at(2, 2)), reached(at(2, 2), 1))
    story(published("h/2", pid=3), payloads=1)
    return story(sent(at(3), at(7), pid=2), reached(at(7), 2)).keeps()


def left_out_with_reasons(name: str) -> Case:
    story = begun(past(name, permissions="0123456789abcdef"))
    return story(sent(at(2)), reached(BEHIND, 1, left_out={"not_permitted": 2})).keeps()


def own_messages_left_out(name: str) -> Case:
    story = begun(past(name), options=4)(published("h/4", session="s", pid=2), payloads=1)
    return story(sent(*ALL), reached(at(6), 3, left_out={"no_local": 1})).keeps()


def replay_begun_again(name: str) -> Case:
    """Unsubscribed with messages on their way, and subscribed to again."""
    story = replay(name)(sent(*ALL), reached(BEHIND, 3))(Unsubscribed("s", [WHOLE]))
    story(Subscribed("s", [(WHOLE, 1)]), ReplayOpened("s", WHOLE, {}))
    return story(sent(*ALL, pid=4), reached(BEHIND, 3))(Acked("s", [[1, 6, 1]])).keeps()


def replay_goes_on_after_a_reconnect(name: str) -> Case:
    story = replay(name)(sent(at(2)), reached(at(2), 1))(Acked("s", [1]), closed())
    story(opened("s", resumed=True, generation=2), Subscribed("s", [(WHOLE, 1)]))
    return story(sent(at(2, 2), at(3), pid=2), reached(BEHIND, 2)).keeps()


def replay_of_copies(name: str) -> Case:
    """Messages of another log are read there."""
    story = past(name)
    story(opened(f"{LOG_SESSION}n2"), published("h/8", session=f"{LOG_SESSION}n2"), payloads=1)
    begun(story)
    return story(sent(*ALL), reached(at(5, 1), 3)).keeps()


def replay_of_several_logs(name: str) -> Case:
    step = ReplayReached("s", WHOLE, {"": BEHIND, "n2": at(7)}, sent=9)
    return replay(name, 0)(step).keeps()


def stream_by_its_name(name: str) -> Case:
    story = replay(name, filter="$stream/hall", topic_filter="h/#")
    step = sent(*ALL, topic_filter="$stream/hall")
    return story(step, reached(BEHIND, 3, filter="$stream/hall")).keeps()


def replay_that_waits(name: str) -> Case:
    """The client may not read, or has no room: nothing stands still."""
    story = replay(name)(sent(at(2)), reached(at(2), 1, state="withheld"))
    story(sent(at(2, 2), at(3), pid=2), reached(BEHIND, 2), time_ms=story.log.time_ms + 600_000)
    return story.keeps()


def dropped_on_its_way(name: str) -> Case:
    story = begun(past(name, permissions="0123456789abcdef"))(sent(*ALL), reached(BEHIND, 3))
    return story(
        MessageDropped("s", "not_permitted", 1, [at(2)], WHOLE), Acked("s", [1], reasons=[0x87])
    ).keeps()


def _cut_in_the_middle(name: str) -> Story:
    """Two messages were sent, and are carried over; the cut follows in record 9."""
    story = replay(name)(sent(at(2)), reached(at(2), 1))
    checkpoint(story, snapshot(story, "p"), snapshot(story, "s"), sessions=2, retained=0)
    story(MessagesCarried([at(2)], ["h/1"], [], 3, 0, 1, publishers=["p"]), payloads=1)
    return story(_cut(story, 7))


def gap_after_a_cut(name: str) -> Case:
    story = _cut_in_the_middle(name)
    return story(reached(at(7) - 1, gap={"": [at(2) + 1, at(7) - 1]})).keeps()


def replay_in_a_cut_log(name: str) -> Case:
    """The state of the replay comes from the checkpoint."""
    story = _cut_in_the_middle(name)
    story(reached(at(7) - 1, gap={"": [at(2) + 1, at(7) - 1]}))
    story(published("h/5", pid=2), payloads=1)(sent(at(11), pid=2), reached(at(11), 1))
    case = story.keeps()
    case.after = lambda nats: story.log.cut(nats, 7)
    return case


def replay_skips_a_message_in_a_cut_log(name: str) -> Case:
    story = _cut_in_the_middle(name)
    story(reached(at(7) - 1, gap={"": [at(2) + 1, at(7) - 1]}))
    story(published("h/5", "h/6", pid=2), payloads=2)(sent(at(11), pid=2), reached(at(11, 1), 1))
    case = story.breaks("replay", at(12, 1))
    case.after = lambda nats: story.log.cut(nats, 7)
    return case


BROKEN_REPLAYS = (
    replay_skips_a_message, replay_skips_a_message_at_qos_0, replay_counts_too_many,
    replay_names_too_few, replayed_twice, replayed_twice_in_a_step, replayed_in_another_order,
    replayed_before_it_took_effect, replayed_on_another_topic, replayed_at_another_qos,
    replayed_without_a_cursor, cursor_goes_back, cursor_beyond_the_log, gap_without_a_cut,
    gap_over_what_was_read, replay_not_opened, replay_without_a_subscription, replay_after_its_end,
    left_out_without_permissions, left_out_for_no_reason, own_message_replayed,
    replay_from_too_early, replay_beyond_its_end, more_than_the_last_message, replay_stands_still,
    replay_stands_still_to_the_end, replay_skips_a_message_in_a_cut_log,
)  # fmt: skip
KEPT_REPLAYS = (
    replayed_as_promised, replayed_at_qos_0_and_2, replayed_beside_a_subscription,
    replayed_after_a_position, replayed_from_a_time,
    replayed_from_a_time_before_the_clock_was_set_back, replayed_up_to_a_time,
    replayed_up_to_a_position, replayed_the_last_messages, left_out_with_reasons,
    own_messages_left_out, replay_begun_again, replay_goes_on_after_a_reconnect, replay_of_copies,
    replay_of_several_logs, stream_by_its_name, replay_that_waits, dropped_on_its_way,
    gap_after_a_cut, replay_in_a_cut_log,
)  # fmt: skip
