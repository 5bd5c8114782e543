"""The outbox reads what is due from any cursor on: nothing is left out, and numbers stay."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playedlogs import played
from randomnode import TOPICS
from test_publications import MANY, Recorded

from eventstore.format.destination_events import Forwarded
from eventstore.format.event_parsing import Event
from eventstore.format.events import MessagePublished, Released
from eventstore.format.node_events import BrokerStopped, MessagesCarried
from eventstore.format.positions import position, to_runs
from eventstore.format.records import GENESIS, Record, decode_record, encode_record
from eventstore.format.turn_events import TurnAcked, TurnPublished, TurnReleased
from outbox import log_reader
from outbox.log_reader import DueMessages, LogPortion
from outbox.selection import Selection
from outbox.sink import OutboxMessage


class EndOfLogError(Exception):
    pass


class Source:
    """A log that no longer grows, and is cut once when it is read further than a record."""

    def __init__(self, records: Sequence[Record], carried: Record | None = None) -> None:
        self.all = list(records)
        self.begin = 1
        self._carried = carried

    async def records(
        self, first: int, last: int, *, whole_turns: bool = False
    ) -> AsyncIterator[Record]:
        assert whole_turns
        for record in self.all:
            if first <= record.sequence <= last:
                yield record

    async def some(self, sequences: Iterable[int]) -> list[Record]:
        return [record for record in self.all if record.sequence in {*sequences}]

    async def records_with(
        self, words: Sequence[bytes], progressed: Callable[[int], None]
    ) -> AsyncIterator[Record]:
        assert words == (b"MessagesCarried",)
        progressed(0)
        if self._carried is not None:
            yield self._carried

    async def reach(self, sequence: int, _seconds: float | None = None) -> int:
        last = self.all[-1].sequence if self.all else 0
        if last < sequence:
            raise EndOfLogError
        return last


def read(source: Source, filters: Sequence[str], through: int, number: int) -> list[LogPortion]:
    async def whole() -> list[LogPortion]:
        portions: list[LogPortion] = []
        due = DueMessages(source, Selection(filters), source)  # type: ignore[arg-type]
        try:
            async for portion in due.after(through, number):
                portions.append(portion)  # noqa: PERF401 - it ends with an exception
        except EndOfLogError:
            return portions
        raise AssertionError

    return asyncio.run(whole())


def messages(portions: Iterable[LogPortion]) -> list[OutboxMessage]:
    return [message for portion in portions for message in portion.messages]


@given(
    MANY,
    st.sampled_from([600, 1 << 20]),
    st.lists(st.sampled_from([*TOPICS, "#", "+"]), min_size=1, unique=True),
)
def test_every_cursor_continues_where_it_is(
    steps: list[tuple[str, str, int]], max_record: int, filters: list[str]
) -> None:
    node = played(steps, max_record, Recorded, 5)
    source = Source(
        [decode_record(one.sequence, one.data, whole_turns=True) for one in node.log.records]
    )
    selection = Selection(filters)
    expected = [
        (effect.at, effect.ref, effect.topic, effect.payload, effect.session)
        for effect in node.effects
        if effect.qos and selection.is_due(effect.topic)
    ]
    whole = messages(read(source, filters, 0, 0))
    found = [(each.at, each.position, each.topic, each.payload, each.client) for each in whole]
    assert found == expected
    assert [each.number for each in whole] == [*range(1, len(whole) + 1)]
    for index in range(0, len(whole), 3):
        cursor = whole[index]
        assert messages(read(source, filters, cursor.at, cursor.number)) == whole[index + 1 :]
    for portion in read(source, filters, 0, 0):
        left = [each for each in whole if each.at > portion.through]
        before = len(whole) - len(left)
        assert messages(read(source, filters, portion.through, before)) == left


def recorded(
    previous: bytes,
    sequence: int,
    *events: Event,
    payloads: tuple[bytes, ...] = (),
    whole: bool = False,
) -> Record:
    data = encode_record(
        previous=previous, node="n", time_ms=1000, events=[*events], payloads=payloads
    )
    return decode_record(sequence, data, whole_turns=whole)


def test_a_message_released_after_its_record_was_cut_is_read_where_it_is_repeated() -> None:
    old = position(3, 0)
    released = recorded(GENESIS, 9, Released("ann", [7], [old]))
    carried = recorded(GENESIS, 8, MessagesCarried([old], ["a"], [], 4, 0, 1), payloads=(b"kept",))
    source = Source([released], carried)
    source.begin = 8
    (message,) = messages(read(source, ["a"], position(9, 0) - 1, 4))
    assert (message.at, message.position, message.number) == (position(9, 0), old, 5)
    assert (message.payload, message.qos) == (b"kept", 2)


def test_a_released_message_that_the_log_no_longer_has_is_missing() -> None:
    source = Source([recorded(GENESIS, 9, Released("ann", [7], [position(3, 0)]))])
    source.begin = 8
    (portion,) = read(source, ["a"], position(9, 0) - 1, 4)
    assert (portion.messages, portion.missing) == ([], [(position(9, 0), 1)])


@pytest.mark.parametrize("qos", [1, 2])
def test_a_turn_is_expanded_only_where_messages_may_be_due(qos: int) -> None:
    events = (
        TurnPublished(["ann", "bob"], [], qos, ["a/1", "a/2"], [], [1, 1], 1, 0, 2),
        *(
            [TurnReleased(["ann", "bob"], [], [1, 1], to_runs([position(9, 0), position(9, 1)]))]
            if qos == 2
            else ()
        ),
        TurnAcked("Acked", ["cy", "di"], [], [1, 1]),
    )
    record = recorded(GENESIS, 9, *events, payloads=(b"x", b"y"), whole=True)
    kinds = [raw["e"] for raw in record.raw_events]
    assert messages(read(Source([record]), ["other/#"], position(9, 0) - 1, 0)) == []
    assert ([raw["e"] for raw in record.raw_events] == kinds) is (qos == 1)
    found = messages(read(Source([record]), ["a/2"], position(9, 0) - 1, 0))
    assert [(each.topic, each.payload, each.client, each.number) for each in found] == [
        ("a/2", b"y", "bob", 1)
    ]
    assert found[0].position == position(9, 1)


class Growing(Source):
    """A log that grows by a record whenever its reader has taken all others."""

    def __init__(self, records: Sequence[Record]) -> None:
        super().__init__(records)
        self.readings: list[tuple[int, int]] = []
        self._end = 0
        self._grown = asyncio.Event()

    async def grow(self) -> None:
        while self._end < len(self.all):
            self._end += 1
            self._grown.set()
            await asyncio.sleep(0)

    async def records(
        self, first: int, last: int, *, whole_turns: bool = False
    ) -> AsyncIterator[Record]:
        self.readings.append((first, last))
        async for record in super().records(first, last, whole_turns=whole_turns):
            yield record

    async def reach(self, sequence: int, _seconds: float | None = None) -> int:
        if self._end == len(self.all) < sequence:
            raise EndOfLogError
        while self._end < sequence:
            self._grown.clear()
            await self._grown.wait()
        return self._end


@pytest.mark.parametrize("due", [False, True])
async def test_what_is_not_due_is_read_in_larger_parts(
    monkeypatch: pytest.MonkeyPatch, due: bool
) -> None:
    monkeypatch.setattr(log_reader, "_UNMATCHED_PAUSE", 1.0)
    records: list[Record] = []
    for number in range(1, 41):
        event = MessagePublished("ann", 1, False, ["a"], [], [[1, 1]], 1, 0, 1)
        link = records[-1].link if records else GENESIS
        records.append(recorded(link, number, event, payloads=(b"x",)))

    source = Growing(records)
    growing = asyncio.create_task(source.grow())
    reader = DueMessages(source, Selection(["a" if due else "b"]), source)  # type: ignore[arg-type]
    with contextlib.suppress(EndOfLogError):
        async for _ in reader.after(0, 0):
            pass
    await growing
    source = source
    assert source.readings[-1][1] == 40
    if due:
        assert len(source.readings) > 5
    else:
        assert len(source.readings) <= 3


def test_a_turn_of_cursors_alone_says_so() -> None:
    cursors = recorded(GENESIS, 9, Forwarded("erp", 7))
    other = recorded(cursors.link, 10, BrokerStopped())
    portions = read(Source([cursors, other]), ["#"], position(9, 0) - 1, 0)
    assert [each.only_cursors for each in portions] == [True, False]


async def test_a_topic_that_a_user_may_not_read_is_counted_and_left_out() -> None:
    event = MessagePublished("ann", 1, False, ["a", "b"], [0, 1, 0], [1, 2, 3], 1, 0, 3)
    source = Source([recorded(GENESIS, 9, event, payloads=(b"1", b"2", b"3"))])

    selection = Selection(["#"], "b".__ne__)
    due = DueMessages(source, selection, source)  # type: ignore[arg-type]
    portion = await anext(due.after(position(9, 0) - 1, 0))
    assert [(each.number, each.payload) for each in portion.messages] == [(1, b"1"), (3, b"3")]
    assert portion.skipped == 1
