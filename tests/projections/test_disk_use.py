"""The bytes of a log by topic and by client: they add up, and belong where they should."""

import pytest
from harness.logs import LogBuilder
from hypothesis import given
from hypothesis import strategies as st

from eventstore.errors import CorruptLog
from eventstore.format.event_parsing import UnknownEvent
from eventstore.format.events import (
    Acked,
    Delivered,
    MessageDropped,
    MessagePublished,
    Queued,
    SessionOpened,
    WillArmed,
)
from eventstore.format.node_events import BrokerStarted, MessagesCarried, RetainedSnapshot
from eventstore.format.records import decode_record
from eventstore.format.turn_events import TurnAcked, TurnDelivered, TurnPublished
from projections.past import disk_use
from projections.past.disk_use import DiskUse, sizes_by_levels


def used(log: LogBuilder) -> DiskUse:
    use = DiskUse()
    for sequence, data in enumerate(log.records, 1):
        use.take(decode_record(sequence, data), len(data))
    return use


def test_each_part_of_a_record_belongs_to_a_topic_and_to_a_client() -> None:
    log = LogBuilder("n1")
    log.record(BrokerStarted("1"))
    first = log.record(
        MessagePublished("p", 1, False, ["a/b", "c"], [0, 1, 0], [[1, 3, 1]], [100, 7, 200], 0, 3),
        payloads=[bytes(307)],
    )
    log.record(
        Delivered("s", "#", 1, [1, 2], [log.at(first, 0), log.at(first, 1)]),
        Acked("s", [1, 2]),
    )
    use = used(log)
    sizes = list(map(len, log.records))
    message = (sizes[1] - 307) / 3
    assert use.bytes == sum(sizes) == use.topics.total() == use.clients.total()
    assert use.topics["a/b"] == pytest.approx(300 + 2 * message + sizes[2] / 4, abs=3)
    assert use.topics["c"] == pytest.approx(7 + message + sizes[2] / 4, abs=3)
    assert use.topics[None] == pytest.approx(sizes[0] + sizes[2] / 2, abs=3)
    assert use.clients == {None: sizes[0], "p": sizes[1], "s": sizes[2]}


def test_repeated_messages_belong_to_their_publishers() -> None:
    log = LogBuilder("n1")
    log.record(
        MessagesCarried(
            [5, 6], ["x", "y"], [0, 1], [50, 60], 0, 2, publishers=["p", ""], publisher_of=[1, 0]
        ),
        RetainedSnapshot(["r/1", "r/2"], [1, 1], [7, 8], 10, 110, 2, publishers=["q"]),
        RetainedSnapshot(["w"], [2], [9], 5, 130, 1, "s"),
        Queued("s", "#", 1, [6, 7], 3),
        WillArmed("s", "will", 1, False, 9, 135),
        MessageDropped("s", "queue_messages", 1, [5]),
        payloads=[bytes(144)],
    )
    use = used(log)
    assert use.topics.total() == use.clients.total() == use.bytes
    share = (use.bytes - 144) / 9
    assert use.clients["p"] == pytest.approx(60 + share, abs=9)
    assert use.clients["q"] == pytest.approx(20 + 2 * share, abs=9)
    assert use.clients["s"] == pytest.approx(5 + 9 + 5 * share, abs=9)
    assert use.clients[None] == pytest.approx(50 + share, abs=9)
    assert use.topics["y"] == pytest.approx(60 + 2 * share, abs=9)
    assert use.topics["r/1"] == pytest.approx(10 + 2 * share, abs=9)


def test_turns_count_as_their_events() -> None:
    log = LogBuilder("n1")
    log.record(
        TurnPublished(["a", "b"], [], 1, ["t", "u"], [], [1, 2], [30, 40], 0, 2),
        TurnDelivered(["c", "d"], ["#", "#"], [], 1, [1, 2], [log.at(1, 0), log.at(1, 1)]),
        TurnAcked("Acked", ["c", "d"], [], [1, 2]),
        payloads=[bytes(70)],
    )
    use = used(log)
    share = (use.bytes - 70) / 6
    assert use.topics["t"] == pytest.approx(30 + 2 * share, abs=6)
    assert use.clients["d"] == pytest.approx(2 * share, abs=6)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), max_size=20))
def test_parts_add_up_whatever_is_merged(messages: list[tuple[str, int]]) -> None:
    log = LogBuilder("n1")
    for topic, size in messages:
        log.record(
            MessagePublished("p", 1, False, [topic], [], [1], size, 0, 1),
            SessionOpened(topic, False, True, 4),
            payloads=[bytes(size)],
        )
    whole = used(log)
    parts = DiskUse()
    for sequence, data in enumerate(log.records, 1):
        one = DiskUse()
        one.take(decode_record(sequence, data), len(data))
        parts = parts.merged(one)
    assert (parts.topics, parts.clients) == (whole.topics, whole.clients)
    assert parts.bytes == whole.topics.total() == sum(map(len, log.records))


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_use, "MAX_NAMES", 2)
    log = LogBuilder("n1")
    for name in "abcd":
        log.record(SessionOpened(name, False, True, 4))
    use = used(log)
    assert set(use.clients) == {"a", "b", None}
    assert use.clients.total() == use.bytes


def test_an_event_that_does_not_fit_is_named() -> None:
    log = LogBuilder("n1")
    log.record(MessagePublished("p", 1, False, [], [3], [1], 1, 0, 1), payloads=[b"x"])
    with pytest.raises(CorruptLog, match="record 1 contains an inconsistent event"):
        used(log)


def test_topics_by_their_first_levels() -> None:
    found = sizes_by_levels({"a/b/c": 1, "a/b/d": 2, "a/b": 4, "a": 8, None: 16, "/x": 32}, 2)
    assert found == {"a/b/#": 3, "a/b": 4, "a": 8, None: 16, "/x": 32}
    assert sizes_by_levels({"a/b": 1, "a": 2}, 1) == {"a/#": 1, "a": 2}


@pytest.mark.parametrize(
    "later", [{"e": "MessagePublished", "v": 2, "session": "c"}, {"e": "Teleported", "v": 1}]
)
def test_events_of_a_later_foldmq_are_not_counted(later: dict[str, object]) -> None:
    log = LogBuilder("n1")
    log.record(BrokerStarted("1"))
    log.record(later)
    with pytest.raises(UnknownEvent, match="record 2, entry 0"):
        used(log)
