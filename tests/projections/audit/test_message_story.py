"""The history of a message: events given, history expected."""

from collections.abc import Iterable, Sequence

import orjson
import pytest
from harness.client_stories import ClientStories

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
    Subscribed,
)
from eventstore.format.node_events import (
    CheckpointBegun,
    CheckpointCompleted,
    MessagesCarried,
    RetainedSnapshot,
    SessionSnapshot,
)
from eventstore.format.positions import Position, position, to_runs
from eventstore.format.records import GENESIS, Record
from eventstore.format.turn_parts import TurnAssembler
from projections.past import message_search
from projections.past.message_search import LatestMessages
from projections.past.message_story import MessageStory
from projections.past.story_builder import StoryBuilder


def record(sequence: int, *events: Event, part: int = 0, last: bool = True) -> Record:
    header = orjson.dumps(events)
    raw, area = orjson.loads(header), memoryview(bytes(99))
    return Record(sequence, bytes(32), GENESIS, "n", 1000 * sequence, part, last, raw, area, header)


def opened(session: str, *, clean: bool = False, resumed: bool = False) -> SessionOpened:
    return SessionOpened(session, resumed, clean, 4)


def published(count: int = 1, qos: int = 1, topics: Sequence[str] = ("t",)) -> MessagePublished:
    which = [at % len(topics) for at in range(count)] if len(topics) > 1 else []
    pids = to_runs(range(1, count + 1)) if qos else []
    return MessagePublished("p", qos, False, list(topics), which, pids, 1, 0, count)


def sent(refs: Sequence[Position], pid: int, queued: int = -1) -> Delivered:
    pids = to_runs(range(pid, pid + len(refs)))
    return Delivered("c", "t", 1, pids, to_runs(refs), queued=queued)


def explain(explainer: StoryBuilder, *records: tuple[Event, ...]) -> list[MessageStory]:
    for sequence, events in enumerate(records, 1):
        explainer.take(record(sequence, *events))
    return list(explainer.stories.values())


def fates(story: MessageStory) -> list[tuple[str, str]]:
    return [(copy.session, copy.outcome) for copy in story.copies]


def steps(story: MessageStory) -> list[tuple[Position, str]]:
    return [(step.at, step.what) for copy in story.copies for step in copy.steps]


def test_each_message_of_a_column_has_its_own_story() -> None:
    refs = [position(2, index) for index in range(3)]
    stories = explain(
        ClientStories("c", *refs[1:]),
        (opened("c"), Subscribed("c", [("t", 1)])),
        (published(3), sent(refs, 5)),
        (Acked("c", [5, 7]),),
    )
    assert [story.ref for story in stories] == refs[1:]
    assert [fates(story) for story in stories] == [[("c", "in_flight")], [("c", "acknowledged")]]
    assert steps(stories[1]) == [(position(2, 5), "delivered"), (position(3, 1), "acked")]
    subscriber = stories[0].subscriber
    assert subscriber is not None
    assert (subscriber.known, subscriber.connected, subscriber.filters) == (True, True, [("t", 1)])


@pytest.mark.parametrize(
    ("until", "refs"),
    [
        (None, [position(1, 2), position(3, 0), position(3, 1)]),
        (position(2, 5), [position(1, 0), position(1, 2)]),
    ],
)
def test_only_the_latest_on_the_topic_are_found(
    until: Position | None, refs: list[Position]
) -> None:
    latest = LatestMessages("t".__eq__, 3, until)
    events = published(4, topics=("t", "u")), published(1, topics=("u",)), published(2)
    for sequence, event in enumerate(events, 1):
        latest.take(record(sequence, event))
    assert latest.refs() == refs


@pytest.mark.parametrize("count", [1, 10, 500])
def test_the_latest_of_many_are_seldom_sorted(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    sizes: list[int] = []

    def counted(items: Iterable[Position]) -> list[Position]:
        ordered = sorted(items)
        sizes.append(len(ordered))
        return ordered

    monkeypatch.setattr(message_search, "sorted", counted, raising=False)
    latest, messages = LatestMessages("t".__eq__, count, None), 500
    for sequence in range(1, messages + 1):
        latest.take(record(sequence, published()))
        assert len(latest.stories) <= 2 * count + 1
    assert latest.refs() == [
        position(sequence, 0) for sequence in range(messages + 1 - count, messages + 1)
    ]
    assert sum(sizes) <= 4 * messages


def test_a_message_that_is_not_among_the_latest_any_more_is_not_followed() -> None:
    latest = LatestMessages("t".__eq__, 1, None)
    refs = [position(1, 1), position(2, 0), position(3, 0), position(4, 0)]
    for sequence, events in enumerate(
        (
            (opened("c"), published(), sent([refs[0]], 1)),
            (published(qos=2),),
            (published(), sent([refs[2]], 2)),
            (published(), sent([refs[3]], 3), Acked("c", [1])),
        ),
        1,
    ):
        latest.take(record(sequence, *events))
    assert latest.refs() == refs[3:]
    assert [latest.follows([ref]) for ref in refs] == [False, False, False, True]
    latest.take(record(5, SessionExpired("p", "expired"), Acked("c", [2, 3])))
    (story,) = latest.stories.values()
    assert steps(story) == [(position(4, 1), "delivered"), (position(5, 2), "acked")]
    assert not list(latest.awaited())


def test_an_answer_for_an_earlier_message_does_not_count_for_a_later_one() -> None:
    (story,) = explain(
        StoryBuilder([position(2, 0)]),
        (opened("c"), published(), sent([position(1, 1)], 1)),
        (published(),),
        (Acked("c", [1]),),
    )
    assert (story.ref, story.copies) == (position(2, 0), [])


def test_a_queued_message_is_sent_later_and_again() -> None:
    ref = position(1, 0)
    (story,) = explain(
        StoryBuilder([ref]),
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
        StoryBuilder([ref]),
        (published(), Queued("c", "t", 1, [ref], 1)),
        (MessageDropped("d", "queue_bytes", 1, [ref], "t"),),
        (MessageDropped("c", "unsubscribed", 1, [ref], "t", queued=1),),
    )
    assert fates(story) == [("c", "dropped"), ("d", "dropped")]
    assert [copy.steps[-1].detail for copy in story.copies] == ["unsubscribed", "queue_bytes"]


def test_qos_2_takes_effect_when_it_is_released() -> None:
    early = (opened("p"), published(qos=2))
    (story,) = explain(ClientStories("c", position(1, 1)), early)
    assert (story.effective, story.subscriber) == (False, None)
    (story,) = explain(
        ClientStories("c", position(1, 1)),
        early,
        (opened("c"), Subscribed("c", [("t", 2)])),
        (Released("p", [1], [position(1, 1)]),),
    )
    assert story.effective
    assert story.subscriber is not None
    assert story.subscriber.filters == [("t", 2)]
    (story,) = explain(StoryBuilder([position(1, 1)]), early, (SessionExpired("p", "expired"),))
    assert [step.what for step in story.steps] == ["discarded"]


def test_deliveries_end_with_their_session() -> None:
    ref = position(1, 1)
    ends: list[tuple[bool, Event, str]] = [
        (True, SessionClosed("c", "closed"), "gone"),
        (False, SessionClosed("c", "closed"), "in_flight"),
        (False, SessionExpired("c", "expired"), "gone"),
        (False, opened("c", resumed=False), "gone"),
        (False, opened("c", resumed=True), "in_flight"),
    ]
    for clean, end, outcome in ends:
        (story,) = explain(
            StoryBuilder([ref]),
            (opened("c", clean=clean), published(), sent([ref], 1)),
            (end,),
        )
        assert fates(story) == [("c", outcome)], end
    # the packet identifier is free again: its next use is another message
    (story,) = explain(
        StoryBuilder([ref]),
        (opened("c"), published(), sent([ref], 1)),
        (opened("c"), Acked("c", [1])),
    )
    assert fates(story) == [("c", "gone")]


def test_a_client_without_a_session() -> None:
    (story,) = explain(ClientStories("c", position(1, 0)), (published(),))
    assert story.subscriber is not None
    assert not story.subscriber.known


def test_turns_hold_parts_back() -> None:
    turns = TurnAssembler()
    first, second = record(1, part=0, last=False), record(2, part=1)
    assert turns.take(first) == ([], [])
    assert turns.rest() == [first]
    assert turns.take(second) == ([], [first, second])
    lost, whole = record(3, part=0, last=False), record(4)
    turns.take(lost)
    assert turns.take(whole) == ([lost], [whole])


def test_turns_read_from_the_middle() -> None:
    tail, whole = record(7, part=2), record(8)
    assert TurnAssembler().take(tail) == ([tail], [])
    turns = TurnAssembler(anywhere=True)
    assert turns.take(tail) == ([], [tail])
    assert turns.take(record(9, part=1)) == ([record(9, part=1)], [])
    assert turns.take(whole) == ([], [whole])


# ------------------------------------------------------------- from before a log that was cut

BEGIN = 100
OLD = [position(5, index) for index in range(4)]
"""Messages from before the beginning."""


def from_begin(explainer: StoryBuilder, *records: tuple[Event, ...]) -> list[MessageStory]:
    """The stories of a log that begins with record 100; repeated messages are read first."""
    made = [record(sequence, *events) for sequence, events in enumerate(records, BEGIN)]
    for one in made:
        explainer.look_ahead(one)
    for one in made:
        explainer.take(one)
    return [story for story in explainer.stories.values() if story.known]


def latest_from_begin(count: int, *records: tuple[Event, ...]) -> list[Position]:
    """The positions of the latest messages on t in a log that begins with record 100."""
    made = [record(sequence, *events) for sequence, events in enumerate(records, BEGIN)]
    latest = LatestMessages("t".__eq__, count, None, BEGIN)
    for one in made:
        latest.look_ahead(one)
    for one in made:
        latest.take(one)
    return latest.refs()


def carried(*refs: Position, topics: Sequence[str] = ("t",)) -> MessagesCarried:
    which = [at % len(topics) for at in range(len(refs))] if len(topics) > 1 else []
    return MessagesCarried(to_runs(refs), list(topics), which, 1, 0, len(refs))


def holding(session: str = "c", **fields: object) -> SessionSnapshot:
    return SessionSnapshot(session, {"generation": 1, "subscriptions": [["t", 1]], **fields})


COMPLETED = CheckpointCompleted(1, position(BEGIN, 0), 1, 0)


def test_a_message_from_before_that_is_carried() -> None:
    (story,) = from_begin(
        ClientStories("c", OLD[0], begin=BEGIN),
        (CheckpointBegun(1), holding(queues=[[0, 1, [OLD[0] << 3 | 1]]]), COMPLETED),
        (sent([OLD[0]], 7, queued=1),),
        (carried(OLD[0]),),
        (Acked("c", [7]),),
    )
    assert (story.ref, story.topic, story.size, story.before) == (OLD[0], "t", 1, BEGIN)
    assert (story.session, story.qos, story.subscriber) == (None, None, None)
    assert story.effective
    assert [step.what for step in story.steps] == ["carried"]
    assert fates(story) == [("c", "acknowledged")]
    assert [step.what for step in story.copies[0].steps] == ["held", "delivered", "acked"]


def test_copies_that_a_checkpoint_found_on_their_way() -> None:
    sent_ms = 5
    (story,) = from_begin(
        StoryBuilder([OLD[0]], BEGIN),
        (
            CheckpointBegun(1),
            holding("a", inflight=[[0, 1, sent_ms, [3], [OLD[0]]]]),
            holding("b", releasing=[[0, 2, sent_ms, [4], [OLD[0]]]]),
            holding("d", inflight=[[0, 1, sent_ms, [3], [OLD[1]]]], clean=True),
            holding("e", queues=[[0, 1, [OLD[0] << 3 | 5]]], clean=True),
            COMPLETED,
        ),
        (Received("a", [3]), Completed("b", [4]), SessionClosed("e", "closed")),
    )
    assert story.topic is None
    assert fates(story) == [("a", "releasing"), ("b", "acknowledged"), ("e", "gone")]
    assert [copy.qos for copy in story.copies] == [1, 2, 1]
    assert [copy.retain for copy in story.copies] == [False, False, True]


def test_a_later_checkpoint_adds_nothing() -> None:
    first = (CheckpointBegun(1), holding(queues=[[0, 1, [OLD[0] << 3 | 1]]]), COMPLETED)
    (story,) = from_begin(StoryBuilder([OLD[0]], BEGIN), first, first)
    assert [step.what for copy in story.copies for step in copy.steps] == ["held"]


def test_a_message_from_before_whose_pubrel_comes_after() -> None:
    repeated = RetainedSnapshot(["t"], [2], [OLD[0]], 1, 0, 1, "p")
    begun = (CheckpointBegun(1), holding("p", inbound=[[[9], [OLD[0]]]]), repeated, holding("c"))
    explainer = ClientStories("c", OLD[0], begin=BEGIN)
    (story,) = from_begin(explainer, (*begun, COMPLETED))
    assert (story.session, story.qos, story.effective) == ("p", 2, False)
    explainer.take(record(BEGIN + 1, Released("p", [9], [OLD[0]]), sent([OLD[0]], 1)))
    assert (story.effective, story.pid) == (True, 9)
    assert story.subscriber is not None
    assert story.subscriber.filters == [("t", 1)]
    assert fates(story) == [("c", "in_flight")]


def test_a_retained_message_is_followed_from_place_to_place() -> None:
    """From its publication through checkpoints, and back from any of its positions."""
    retained = MessagePublished("p", 1, True, ["t"], [], [1], 1, 0, 1)
    first, second = position(2, 1), position(3, 1)
    log: list[tuple[Event, ...]] = [
        (retained,),
        (CheckpointBegun(1), RetainedSnapshot(["t"], [1], [position(1, 0)], 1, 0, 1)),
        (CheckpointBegun(2), RetainedSnapshot(["t"], [1], [first], 1, 0, 1)),
        (Delivered("c", "t", 1, [4], [second], retain=True), Acked("c", [4])),
    ]
    (story,) = explain(StoryBuilder([position(1, 0)]), *log)
    assert (story.ref, story.before, story.session) == (position(1, 0), 0, "p")
    assert [(step.at, step.what) for step in story.steps] == [
        (first, "repeated"),
        (second, "repeated"),
    ]
    assert fates(story) == [("c", "acknowledged")]


def test_a_retained_message_whose_publication_was_cut_off() -> None:
    snapshot = RetainedSnapshot(["t", "u"], [1, 0], [OLD[0], OLD[1]], 1, 0, 2)
    (story,) = from_begin(
        StoryBuilder([OLD[0]], BEGIN),
        (CheckpointBegun(1), snapshot, COMPLETED),
        (Delivered("c", "t", 1, [4], [position(BEGIN, 1)], retain=True),),
    )
    assert (story.ref, story.topic, story.qos, story.retain) == (OLD[0], "t", 1, True)
    assert fates(story) == [("c", "in_flight")]


def test_the_latest_messages_are_followed_whether_from_before_or_not() -> None:
    refs = latest_from_begin(
        2,
        (CheckpointBegun(1), RetainedSnapshot(["t"], [1], [OLD[1]], 1, 0, 1), COMPLETED),
        (carried(OLD[3], OLD[0], OLD[2], topics=("t", "u")),),
        (published(1),),
    )
    assert refs == [OLD[3], position(BEGIN + 2, 0)]


def test_the_latest_from_before_are_followed_from_the_beginning() -> None:
    """Also in records before the one that repeats them with their topic."""
    repeated = RetainedSnapshot(["t"], [2], [OLD[0]], 1, 0, 1, "p")
    latest = LatestMessages("t".__eq__, 1, None, BEGIN)
    from_begin(
        latest, (CheckpointBegun(1), holding("p", inbound=[[[9], [OLD[0]]]]), repeated, COMPLETED)
    )
    (story,) = latest.stories.values()
    assert (story.ref, story.topic, story.pid, story.effective) == (OLD[0], "t", 9, False)


def test_a_will_that_waits_is_no_message() -> None:
    refs = latest_from_begin(
        5,
        (CheckpointBegun(1), holding(will=["t", 1, False, OLD[1]]), COMPLETED),
        (carried(OLD[0], OLD[1]),),
    )
    assert refs == [OLD[0]]


def test_a_message_without_receivers_is_unknown_after_a_cut() -> None:
    builder = StoryBuilder([OLD[0]], BEGIN)
    assert from_begin(builder, (CheckpointBegun(1), COMPLETED)) == []


def test_how_a_session_stood_is_not_known_before_it_is_repeated() -> None:
    explainer = ClientStories("c", position(BEGIN, 0), position(BEGIN + 2, 0), begin=BEGIN)
    stories = from_begin(explainer, (published(),), (CheckpointBegun(1), holding()), (published(),))
    assert stories[0].subscriber is None
    assert stories[1].subscriber is not None
