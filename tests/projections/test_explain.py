"""The story of a message: given events, then what became of it."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from eventstore.events import (
    Acked,
    Delivered,
    Event,
    MessageDropped,
    MessagePublished,
    Queued,
    Redelivered,
    Released,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Subscribed,
)
from eventstore.positions import Position, position, to_runs
from eventstore.records import GENESIS, Record
from projections.explain import Explainer, Story
from projections.turns import Turns


def record(sequence: int, *events: Event, part: int = 0, last: bool = True) -> Record:
    raw = [orjson.loads(orjson.dumps(event)) for event in events]
    return Record(
        sequence, bytes(32), GENESIS, "n", 1000 * sequence, part, last, raw, memoryview(bytes(99))
    )


def opened(session: str, *, clean: bool = False, resumed: bool = False) -> SessionOpened:
    return SessionOpened(session, resumed, clean, 4)


def published(count: int = 1, qos: int = 1, topics: Sequence[str] = ("t",)) -> MessagePublished:
    which = [at % len(topics) for at in range(count)] if len(topics) > 1 else []
    pids = to_runs(range(1, count + 1)) if qos else []
    return MessagePublished("p", qos, False, list(topics), which, pids, 1, 0, count)


def sent(refs: Sequence[Position], pid: int, queued: int = -1) -> Delivered:
    pids = to_runs(range(pid, pid + len(refs)))
    return Delivered("c", "t", 1, pids, to_runs(refs), queued=queued)


def explain(explainer: Explainer, *records: tuple[Event, ...]) -> list[Story]:
    for sequence, events in enumerate(records, 1):
        explainer.take(record(sequence, *events))
    return list(explainer.stories.values())


def topic_t(topic: str) -> bool:
    return topic == "t"


def fates(story: Story) -> list[tuple[str, str]]:
    return [(copy.session, copy.fate) for copy in story.copies]


def steps(story: Story) -> list[tuple[Position, str]]:
    return [(step.at, step.what) for copy in story.copies for step in copy.steps]


def test_each_message_of_a_column_has_its_own_story() -> None:
    refs = [position(2, index) for index in range(3)]
    stories = explain(
        Explainer(wanted=topic_t, last=2, client="c"),
        (opened("c"), Subscribed("c", [("t", 1)])),
        (published(3), sent(refs, 5)),
        (Acked("c", [5, 7]),),
    )
    assert [story.ref for story in stories] == refs[1:]
    assert [fates(story) for story in stories] == [[("c", "in_flight")], [("c", "acknowledged")]]
    assert steps(stories[1]) == [(position(2, 5), "delivered"), (position(3, 1), "acked")]
    standing = stories[0].standing
    assert standing is not None
    assert (standing.known, standing.connected, standing.filters) == (True, True, [("t", 1)])


def test_only_the_latest_on_the_topic_are_kept() -> None:
    stories = explain(
        Explainer(wanted=topic_t, last=3),
        (published(4, topics=("t", "u")),),
        (published(1, topics=("u",)),),
        (published(2),),
    )
    assert [story.ref for story in stories] == [position(1, 2), position(3, 0), position(3, 1)]


def test_an_answer_for_a_forgotten_message_says_nothing_about_a_later_one() -> None:
    (story,) = explain(
        Explainer(wanted=topic_t),
        (opened("c"), published(), sent([position(1, 1)], 1)),
        (published(),),
        (Acked("c", [1]),),
    )
    assert (story.ref, story.copies) == (position(2, 0), [])


def test_a_queued_message_is_sent_later_and_again() -> None:
    ref = position(1, 0)
    (story,) = explain(
        Explainer(ref=ref),
        (published(2), Queued("c", "t", 1, to_runs([ref, ref + 1]), 2)),
        (opened("c", resumed=True), sent([ref], 9, queued=1)),
        (Redelivered("c", [9], "ack_wait"),),
    )
    assert fates(story) == [("c", "in_flight")]
    assert [what for _, what in steps(story)] == ["queued", "delivered", "redelivered"]
    assert story.copies[0].pid == 9


def test_dropped_from_the_queue_or_at_once() -> None:
    ref = position(1, 0)
    (story,) = explain(
        Explainer(ref=ref),
        (published(), Queued("c", "t", 1, [ref], 1)),
        (MessageDropped("d", "queue_bytes", 1, [ref], "t"),),
        (MessageDropped("c", "unsubscribed", 1, [ref], "t", queued=1),),
    )
    assert fates(story) == [("c", "dropped"), ("d", "dropped")]
    assert [copy.steps[-1].detail for copy in story.copies] == ["unsubscribed", "queue_bytes"]


def test_qos_2_takes_effect_when_it_is_released() -> None:
    early = (opened("p"), published(qos=2))
    (story,) = explain(Explainer(wanted=topic_t, client="c"), early)
    assert (story.effective, story.standing) == (False, None)
    (story,) = explain(
        Explainer(wanted=topic_t, client="c"),
        early,
        (opened("c"), Subscribed("c", [("t", 2)])),
        (Released("p", [1], [position(1, 1)]),),
    )
    assert story.effective
    assert story.standing is not None
    assert story.standing.filters == [("t", 2)]
    (story,) = explain(Explainer(wanted=topic_t), early, (SessionExpired("p", "expired"),))
    assert [step.what for step in story.steps] == ["discarded"]


def test_what_a_session_held_ends_with_it() -> None:
    ref = position(1, 1)
    ends: list[tuple[bool, Event, str]] = [
        (True, SessionClosed("c", "closed"), "gone"),
        (False, SessionClosed("c", "closed"), "in_flight"),
        (False, SessionExpired("c", "expired"), "gone"),
        (False, opened("c", resumed=False), "gone"),
        (False, opened("c", resumed=True), "in_flight"),
    ]
    for clean, end, fate in ends:
        (story,) = explain(
            Explainer(ref=ref), (opened("c", clean=clean), published(), sent([ref], 1)), (end,)
        )
        assert fates(story) == [("c", fate)], end
    # the packet identifier is free again: its next use is another message
    (story,) = explain(
        Explainer(ref=ref),
        (opened("c"), published(), sent([ref], 1)),
        (opened("c"), Acked("c", [1])),
    )
    assert fates(story) == [("c", "gone")]


def test_nobody_without_a_session_stands() -> None:
    (story,) = explain(Explainer(wanted=topic_t, client="c"), (published(),))
    assert story.standing is not None
    assert not story.standing.known


def test_turns_hold_parts_back() -> None:
    turns = Turns()
    first, second = record(1, part=0, last=False), record(2, part=1)
    assert turns.take(first) == ([], [])
    assert turns.rest() == [first]
    assert turns.take(second) == ([], [first, second])
    lost, whole = record(3, part=0, last=False), record(4)
    turns.take(lost)
    assert turns.take(whole) == ([lost], [whole])


def test_turns_read_from_the_middle() -> None:
    tail, whole = record(7, part=2), record(8)
    assert Turns().take(tail) == ([tail], [])
    turns = Turns(anywhere=True)
    assert turns.take(tail) == ([], [tail])
    assert turns.take(record(9, part=1)) == ([record(9, part=1)], [])
    assert turns.take(whole) == ([], [whole])
