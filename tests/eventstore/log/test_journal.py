"""The journal over a store that acts only on command."""

from collections.abc import Callable, Iterable, Sequence

import orjson
import pytest

from eventstore.errors import EventTooLarge
from eventstore.format.events import (
    Acked,
    Delivered,
    MessagePublished,
    SessionOpened,
    Subscribed,
    Unsubscribed,
    WillArmed,
)
from eventstore.format.node_events import BrokerStarted
from eventstore.format.positions import index_of, position, sequence_of
from eventstore.format.records import GENESIS, ChainChecker, Record, decode_record
from eventstore.format.sealing import cipher_of
from eventstore.log.journal import Journal
from eventstore.log.message_store import Message, MessageStore
from eventstore.log.pending_record import GatedOutput, PendingRecord

LIMIT = 4000


class FakeStore:
    """Keeps what it is sent; :meth:`commit` is the disk."""

    def __init__(self) -> None:
        self.sent: list[PendingRecord] = []

    def send(self, record: PendingRecord) -> None:
        self.sent.append(record)

    @property
    def records(self) -> list[Record]:
        return [decode_record(one.sequence, one.data) for one in self.sent]


class FakeClock:
    now = 1000

    def steady_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000


class FakeSink:
    """Keeps what it is given, beside all others, in order."""

    def __init__(self, name: str, released: list[tuple[str, bytes]]) -> None:
        self.name = name
        self.waits_for: GatedOutput | None = None
        self.gated = 0
        self._released = released

    def write(self, data: bytes) -> None:
        self._released.append((self.name, data))


class Bench:
    """A journal with everything around it replaced."""

    def __init__(self, **options: int) -> None:
        self.store = FakeStore()
        self.clock = FakeClock()
        self.released: list[tuple[str, bytes]] = []
        self.asked: list[float] = []
        """Seconds after which the journal asked to be flushed."""
        self.a, self.b = FakeSink("a", self.released), FakeSink("b", self.released)
        self.journal = Journal(
            self.store,
            self.clock,
            node="n",
            sequence=options.pop("sequence", 0),
            link=GENESIS,
            max_record=options.pop("max_record", LIMIT),
            **options,
        )
        self.journal.on_deferred = self.asked.append

    def event(self, size: int = 0) -> int:
        """Append an event with a payload; return its sequence."""
        return sequence_of(self.journal.append(published(size), 1, [b"x" * size], size))

    def turn(self, effect: bytes, size: int = 0) -> None:
        """One turn of the loop: an event, and an effect that depends on it."""
        self.event(size)
        self.end_turn(effect)

    def end_turn(self, effect: bytes) -> None:
        """End a turn with an effect that depends on it."""
        self.journal.send_when_durable(self.a, effect)
        self.journal.end_turn()

    def sequences(self) -> list[int]:
        return [record.sequence for record in self.store.sent]

    def commit(self, *sequences: int) -> None:
        for sequence in sequences:
            self.journal.committed(sequence)

    def effects(self) -> list[bytes]:
        return [data for _, data in self.released]


def published(size: int, count: int = 1) -> MessagePublished:
    return MessagePublished("c", 1, False, ["t"], [], list(range(1, count + 1)), size, 0, count)


def shape(records: Iterable[Record]) -> list[tuple[int, int, bool, int]]:
    """(sequence, part, last, number of events) of each record."""
    return [(one.sequence, one.part, one.last, len(one.raw_events)) for one in records]


# ------------------------------------------------------------- group commit


class FakePieceSink(FakeSink):
    """A sink that takes output in pieces, as a connection does."""

    def writelines(self, pieces: Sequence[bytes]) -> None:
        self._released += [(self.name, bytes(piece[:4])) for piece in pieces]


def test_large_output_is_not_joined_where_the_sink_takes_pieces() -> None:
    bench = Bench()
    sink = FakePieceSink("c", bench.released)
    payload = b"pay!" * 8192
    bench.event(3)
    bench.journal.send_when_durable(sink, b"ack1")
    size = bench.journal.send_pieces_when_durable(sink, [b"head", payload])
    bench.journal.send_pieces_when_durable(bench.a, [b"head", payload])
    bench.journal.end_turn()
    assert size == len(payload) + 4
    assert (sink.gated, bench.a.gated) == (size + 4, size)
    assert bench.released == []
    bench.commit(1)
    assert bench.released == [
        ("c", b"ack1"),
        ("c", b"head"),
        ("c", b"pay!"),
        ("a", b"head" + payload),
    ]
    assert (sink.gated, bench.a.gated, bench.journal.gated) == (0, 0, 0)


def test_the_events_of_a_turn_are_one_record() -> None:
    bench = Bench()
    for _ in range(3):
        bench.event()
    assert bench.store.sent == []
    bench.end_turn(b"ack")
    assert shape(bench.store.records) == [(1, 0, True, 3)]


def test_turns_gather_while_records_are_on_their_way() -> None:
    bench = Bench(max_inflight=2, parallel_from=0)
    for number in range(6):
        bench.turn(b"%d" % number)
    assert shape(bench.store.records) == [(1, 0, True, 1), (2, 0, True, 1)]
    bench.commit(1)
    assert shape(bench.store.records)[2:] == [(3, 0, True, 4)]
    bench.commit(2, 3)
    assert bench.effects() == [b"%d" % number for number in range(6)]
    assert bench.journal.idle


def test_small_turns_wait_for_the_current_sync_and_share_the_next() -> None:
    bench = Bench(max_inflight=2, parallel_from=2000)
    for number in range(4):
        bench.turn(b"%d" % number)
    assert shape(bench.store.records) == [(1, 0, True, 1)]
    bench.turn(b"4", size=1000)
    assert shape(bench.store.records)[1:] == [(2, 0, True, 4)]
    bench.commit(1, 2)
    assert bench.effects() == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize(("size", "sent_first"), [(10, True), (2000, False)])
def test_a_small_record_is_sent_before_output_is_written(size: int, sent_first: bool) -> None:
    bench = Bench(max_inflight=1, parallel_from=1000, max_record=100_000)
    sent_before: list[list[int]] = []

    class WatchingSink(FakeSink):
        def write(self, data: bytes) -> None:
            super().write(data)
            sent_before.append(bench.sequences())

    bench.a = WatchingSink("a", bench.released)
    bench.turn(b"1")
    bench.turn(b"2", size)
    bench.turn(b"3", size)
    bench.commit(1)
    assert sent_before == [[1, 2] if sent_first else [1]]
    assert (bench.sequences(), bench.effects()) == ([1, 2], [b"1"])
    bench.commit(2)
    assert bench.effects() == [b"1", b"2", b"3"]


def test_records_continue_the_chain() -> None:
    bench = Bench(max_inflight=9, parallel_from=0, sequence=40)
    for number in range(5):
        bench.turn(b"%d" % number)
    checker = ChainChecker(40, GENESIS)
    for record in bench.store.records:
        checker.check(record)
    assert checker.sequence == 45
    assert bench.journal.durable == 40
    bench.commit(45)
    assert (bench.journal.durable, bench.journal.durable_link) == (45, checker.link)


def test_positions_are_those_under_which_the_entries_are_found() -> None:
    bench = Bench()
    journal = bench.journal
    places = [
        journal.append(BrokerStarted("x")),
        journal.append(published(2, 3), 3, [b"aa", b"bb", b"cc"], 6),
        journal.append(WillArmed("c", "w", 0, False, 2, 0), 1, [b"ww"], 2),
        journal.append(published(1, 2), 2, [b"d", b"e"], 2),
    ]
    bench.end_turn(b"ack")
    assert [(sequence_of(at), index_of(at)) for at in places] == [(1, 0), (1, 1), (1, 4), (1, 5)]
    (record,) = bench.store.records
    assert [index for index, _ in record.events()] == [0, 1, 4, 5]
    assert bytes(record.payload) == b"aabbccwwde"


def test_effects_without_events_leave_at_the_end_of_the_turn() -> None:
    bench = Bench()
    bench.journal.send_when_durable(bench.a, b"x")
    assert bench.released == []
    bench.journal.end_turn()
    assert bench.released == [("a", b"x")]
    assert bench.store.sent == []


def test_statistics() -> None:
    bench = Bench()
    bench.journal.append(published(1, 3), 3, [b"abc"], 3)
    bench.turn(b"x")
    stats = bench.journal.stats
    assert stats.records == 0
    bench.commit(1)
    assert (stats.records, stats.events, stats.entries) == (1, 2, 4)
    assert (stats.bytes, stats.released) == (len(bench.store.sent[0].data), 1)


# --------------------------------------------------- events without waiting output


def test_events_without_waiting_output_go_with_the_next_record() -> None:
    bench = Bench()
    bench.event()
    bench.journal.end_turn()
    bench.event()
    bench.journal.end_turn()
    assert (bench.store.sent, bench.asked) == ([], [0.01])
    assert not bench.journal.idle
    bench.turn(b"ack")
    assert shape(bench.store.records) == [(1, 0, True, 3)]


def test_events_without_waiting_output_are_written_on_flush() -> None:
    bench = Bench()
    bench.event()
    bench.journal.end_turn()
    bench.journal.flush_deferred()
    assert shape(bench.store.records) == [(1, 0, True, 1)]
    bench.event()
    bench.journal.end_turn()
    assert bench.asked == [0.01, 0.01], "asked again for what came after"
    bench.journal.flush()
    bench.commit(1, 2)
    assert bench.journal.idle


def acknowledge(bench: Bench, pid: int) -> None:
    """A turn that takes an acknowledgement of a client."""
    bench.journal.append(Acked("c", [pid]))
    bench.journal.end_turn()


def test_acknowledgements_stay_in_memory_for_longer_than_other_events() -> None:
    bench = Bench()
    bench.journal.ack_delay = 1.0
    acknowledge(bench, 1)
    bench.clock.now += 400
    acknowledge(bench, 2)
    assert bench.asked == [1.0]
    bench.event()
    bench.journal.end_turn()
    assert bench.asked == [1.0, 0.01]
    bench.journal.flush_deferred()
    assert shape(bench.store.records) == [(1, 0, True, 3)]


def test_acknowledgements_get_a_record_when_the_first_has_waited_for_the_delay() -> None:
    bench = Bench()
    bench.journal.ack_delay = 1.0
    acknowledge(bench, 1)
    bench.clock.now += 400
    bench.turn(b"x")
    bench.commit(1)
    bench.clock.now += 200
    acknowledge(bench, 2)
    bench.clock.now += 400
    acknowledge(bench, 3)
    bench.journal.flush_deferred()
    assert bench.sequences() == [1]
    assert bench.asked == [1.0, pytest.approx(0.6)]
    bench.clock.now += 600
    bench.journal.flush_deferred()
    assert shape(bench.store.records)[1:] == [(2, 0, True, 2)]


@pytest.mark.parametrize("delayed_ms", [5, 900, 1500])
def test_a_record_has_the_time_of_its_first_event_that_is_no_acknowledgement(
    delayed_ms: int,
) -> None:
    bench = Bench()
    bench.journal.ack_delay = 2.0
    acknowledge(bench, 1)
    bench.clock.now += delayed_ms
    assert bench.journal.event_ms() == bench.clock.now
    bench.turn(b"x")
    assert bench.journal.steady_ms == bench.clock.now
    assert [one.steady_ms for one in bench.store.records] == [1000 + delayed_ms]
    assert shape(bench.store.records) == [(1, 0, True, 2)]
    bench.clock.now += 100
    bench.commit(1)
    assert bench.journal.stats.commit.sum == pytest.approx(0.1)


def test_a_record_of_acknowledgements_keeps_the_time_of_another_event_in_it() -> None:
    bench = Bench(max_inflight=1)
    bench.turn(b"x")
    bench.event()
    bench.journal.end_turn()
    bench.clock.now += 300
    acknowledge(bench, 1)
    bench.turn(b"y")
    bench.commit(1)
    assert [one.steady_ms for one in bench.store.records] == [1000, 1000]


def test_acknowledgements_that_end_a_turn_of_several_records_do_not_wait() -> None:
    bench = Bench()
    bench.journal.ack_delay = 1.0
    bench.event(LIMIT - 600)
    acknowledge(bench, 1)
    assert shape(bench.store.records) == [(1, 0, False, 1)]
    assert bench.asked == [0.01]


def test_flush_waits_for_its_place_in_flight() -> None:
    bench = Bench(max_inflight=1)
    bench.turn(b"0")
    bench.event()
    bench.journal.end_turn()
    bench.journal.flush()
    assert bench.sequences() == [1]
    bench.commit(1)
    assert bench.sequences() == [1, 2]
    bench.commit(2)
    assert bench.journal.idle


# ------------------------------------------------------------------ the gate


def test_nothing_leaves_before_its_record_is_on_disk() -> None:
    bench = Bench(max_inflight=3)
    for number in range(3):
        bench.turn(b"%d" % number)
    assert bench.released == []
    bench.commit(1)
    assert bench.effects() == [b"0"]
    bench.commit(3)
    assert bench.effects() == [b"0", b"1", b"2"]


def test_effects_leave_in_the_order_in_which_they_were_given() -> None:
    bench = Bench(max_inflight=1)
    bench.event()
    for sink, data in [(bench.a, b"1"), (bench.b, b"2"), (bench.a, b"3"), (bench.b, b"4")]:
        bench.journal.send_when_durable(sink, data)
    bench.journal.end_turn()
    bench.turn(b"5")
    bench.journal.send_when_durable(bench.b, b"6")
    bench.journal.end_turn()
    bench.commit(1, 2)
    for sink in "ab":
        data = b"".join(data for name, data in bench.released if name == sink)
        assert data == {"a": b"135", "b": b"246"}[sink]


def test_effects_of_a_turn_without_events_wait_for_earlier_turns() -> None:
    """They may tell what those events say: an answer to a repeated PUBREL, for one."""
    bench = Bench(max_inflight=1)
    bench.turn(b"1")
    bench.end_turn(b"2")
    bench.event()
    bench.journal.end_turn()
    bench.end_turn(b"3")
    assert bench.released == []
    bench.commit(1)
    assert bench.effects() == [b"1", b"2"]
    assert bench.sequences() == [1, 2]
    bench.commit(2)
    assert bench.effects() == [b"1", b"2", b"3"]


def test_a_commit_out_of_the_blue_changes_nothing() -> None:
    bench = Bench(sequence=7)
    for sequence in (0, 7, 8, 10_000):
        bench.commit(sequence)
    assert bench.journal.durable == 7
    bench.turn(b"x")
    bench.commit(7)
    assert bench.released == []
    bench.commit(8, 8, 3)
    assert bench.effects() == [b"x"]
    assert bench.journal.durable == 8


def test_an_open_record_is_not_taken_for_committed() -> None:
    bench = Bench(max_inflight=1)
    bench.turn(b"1")
    bench.turn(b"2")
    bench.commit(5)
    assert bench.effects() == [b"1"]
    assert bench.journal.durable == 1


def test_records_in_flight_are_sent_again_in_order() -> None:
    bench = Bench(max_inflight=2, parallel_from=0)
    for number in range(4):
        bench.turn(b"%d" % number)
    first = list(bench.store.sent)
    bench.store.sent.clear()
    bench.journal.resend()
    assert bench.store.sent == first
    assert [record.sequence for record in bench.journal.pending] == [1, 2]


# ------------------------------------------------------------ held back sinks


def test_output_leaves_although_the_next_record_cannot_be_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record that it waited for is on disk; later output is released as well."""

    def send(_record: PendingRecord) -> None:
        raise RuntimeError("trapped")

    bench = Bench()
    bench.turn(b"1")
    bench.turn(b"2")
    with monkeypatch.context() as patched:
        patched.setattr(bench.store, "send", send)
        with pytest.raises(RuntimeError):
            bench.commit(1)
    assert bench.effects() == [b"1"]
    bench.journal.resend()
    bench.commit(2)
    assert bench.effects() == [b"1", b"2"]


def test_a_free_sink_gets_unlogged_output_at_once() -> None:
    bench = Bench()
    bench.turn(b"1")
    bench.journal.send_unlogged(bench.a, b"free")
    assert bench.effects() == [b"free"]


def test_a_held_sink_gets_unlogged_output_after_its_effects() -> None:
    bench = Bench(max_inflight=1)
    bench.event()
    bench.journal.send_when_durable(bench.a, b"connack ")
    bench.journal.order_behind(bench.a)
    bench.journal.send_unlogged(bench.a, b"early ")
    bench.journal.send_unlogged(bench.b, b"other")
    bench.journal.end_turn()
    bench.journal.send_unlogged(bench.a, b"late")
    assert bench.released == [("b", b"other")]
    bench.commit(1)
    assert bench.released[1:] == [("a", b"connack early late")]
    bench.journal.send_unlogged(bench.a, b"free")
    assert bench.released[2:] == [("a", b"free")]


def test_a_sink_held_twice_is_held_until_the_second_is_there() -> None:
    bench = Bench(max_inflight=1)
    for answer in (b"suback1", b"suback2"):
        bench.event()
        bench.journal.send_when_durable(bench.a, answer)
        bench.journal.order_behind(bench.a)
        bench.journal.end_turn()
    bench.journal.send_unlogged(bench.a, b" free")
    bench.commit(1)
    assert bench.effects() == [b"suback1"]
    bench.commit(2)
    assert bench.effects() == [b"suback1", b"suback2 free"]
    assert bench.a.waits_for is None


def test_a_hold_without_effects_of_its_own_ends_as_well() -> None:
    bench = Bench()
    bench.event()
    bench.journal.order_behind(bench.a)
    bench.journal.end_turn()
    bench.journal.flush()
    bench.commit(1)
    assert bench.released == []
    assert bench.a.waits_for is None


# ------------------------------------------- turns that do not fit one record


def test_a_turn_over_several_records_is_released_with_its_last_part() -> None:
    bench = Bench(max_inflight=9)
    journal = bench.journal
    journal.send_when_durable(bench.a, b"first ")
    for _ in range(5):
        bench.event(1500)
    bench.end_turn(b"last")
    assert shape(bench.store.records) == [
        (1, 0, False, 2),
        (2, 1, False, 2),
        (3, 2, True, 1),
    ]
    bench.commit(1, 2)
    assert bench.released == []
    bench.commit(3)
    assert bench.effects() == [b"first last"]


def test_a_record_has_a_bounded_number_of_events() -> None:
    """A message to ten thousand offline sessions is as many events; they were encoded at once."""
    bench = Bench(max_inflight=99, max_record=1 << 24)
    for _ in range(10_000):
        bench.event()
    bench.end_turn(b"ack")
    records = shape(bench.store.records)
    assert records == [*((at + 1, at, False, 1024) for at in range(9)), (10, 9, True, 784)]
    bench.commit(1, 9)
    assert bench.effects() == []
    bench.commit(10)
    assert bench.effects() == [b"ack"]


def test_part_numbers_restart_in_each_turn() -> None:
    bench = Bench(max_inflight=9)
    for number in range(2):
        for _ in range(3):
            bench.event(1500)
        bench.end_turn(b"%d" % number)
    assert shape(bench.store.records) == [
        (1, 0, False, 2),
        (2, 1, True, 1),
        (3, 0, False, 2),
        (4, 1, True, 1),
    ]


def test_earlier_turns_in_a_part_that_is_not_the_last_wait_as_well() -> None:
    """A crash would make that part void, and them with it."""
    bench = Bench(max_inflight=1)
    bench.turn(b"0")
    bench.turn(b"earlier")
    for _ in range(3):
        bench.event(1500)
    bench.end_turn(b"later")
    bench.commit(1)
    assert bench.effects() == [b"0"]
    bench.commit(2)
    assert shape(bench.store.records)[1:] == [(2, 0, False, 2), (3, 1, True, 2)]
    assert bench.effects() == [b"0"]
    bench.commit(3)
    assert bench.effects() == [b"0", b"earlier", b"later"]


def test_turns_are_released_steadily_under_constant_overload() -> None:
    """Without a record that ends with a turn, all would wait until the load is over."""
    bench = Bench(max_inflight=1, max_pending=1 << 30)
    sent = 0
    for number in range(400):
        bench.turn(b"%d" % number, 900)
        if number % 8 == 7 and len(bench.store.sent) > sent:
            bench.commit(bench.store.sent[-1].sequence)
            sent += 1
    assert all(record.last for record in bench.store.records)
    assert len(bench.released) > 50


def test_offsets_and_positions_restart_in_each_record() -> None:
    bench = Bench(max_inflight=9)
    bodies = [b"%d" % number * 1500 for number in range(5)]
    places = [bench.journal.append(published(len(body)), 1, [body], len(body)) for body in bodies]
    bench.end_turn(b"ack")
    held = MessageStore(1 << 20)
    for record in bench.store.records:
        held.add_record(record)
    assert [sequence_of(at) for at in places] == [1, 1, 2, 2, 3]
    expected = [Message(b"t", body, publisher="c") for body in bodies]
    assert [held.get(at) for at in places] == expected


def test_an_event_larger_than_a_record_gets_one_of_its_own() -> None:
    bench = Bench(max_inflight=9)
    bench.event(10)
    bench.event(3 * LIMIT)
    bench.event(10)
    bench.end_turn(b"ack")
    assert [(one.part, one.last, len(one.payload)) for one in bench.store.records] == [
        (0, False, 10),
        (1, False, 3 * LIMIT),
        (2, True, 10),
    ]
    bench.commit(3)
    assert bench.effects() == [b"ack"]


# ------------------------------------------------------- the size of a record

LONG = "\x01" * 1000
"""Six times as long in JSON."""


@pytest.mark.parametrize(
    "event",
    [
        SessionOpened(LONG, False, False, 4, user=LONG),
        Subscribed("c", [(LONG, 1)] * 2),
        Unsubscribed(LONG, [LONG]),
        Delivered(LONG, LONG, 1, [1], [1 << 40]),
        Acked(LONG, [1]),
        MessagePublished(LONG, 1, False, [LONG], [], [1], 0, 0, 1),
        WillArmed(LONG, LONG, 1, False, 0, 0),
    ],
    ids=lambda event: event.e,
)
def test_text_counts_as_much_as_it_takes_in_json(event: Subscribed) -> None:
    bench = Bench(max_record=30_000, max_inflight=99)
    for _ in range(20):
        bench.journal.append(event)
    bench.end_turn(b"ack")
    assert max(len(one.data) for one in bench.store.sent) <= 30_000 + 500
    assert sum(len(one.raw_events) for one in bench.store.records) == 20


def test_an_event_that_the_store_cannot_take_is_refused_and_leaves_no_trace() -> None:
    bench = Bench()
    bench.journal.max_event = 5000
    bench.event(100)
    event = Subscribed("c", [(LONG, 1)])
    with pytest.raises(EventTooLarge, match=r"a Subscribed event of 60.. bytes") as caught:
        bench.journal.append(event)
    assert caught.value.exit_code == 69
    with pytest.raises(EventTooLarge):
        bench.event(5000)
    bench.end_turn(b"ack")
    (record,) = bench.store.records
    assert [event.e for _, event in record.events()] == ["MessagePublished"]
    assert len(record.payload) == 100


def test_an_event_is_measured_before_it_is_refused() -> None:
    """The bound for its text is six times what ordinary text takes."""
    bench = Bench()
    bench.journal.max_event = 5000
    at = bench.journal.append(MessagePublished("c", 1, False, ["t" * 4000], [], [1], 0, 0, 1))
    assert at == position(1, 0)


def test_what_a_record_says_of_sealed_parts_counts() -> None:
    bench = Bench()
    bench.journal.cipher = cipher_of(lambda _: bytes(32))
    bench.journal.max_event = 5000
    parts = [b"x" * 20] * 100
    event = MessagePublished("c", 1, False, ["t"], [0] * 100, [[1, 100, 1]], 20, 0, 100)
    with pytest.raises(EventTooLarge):  # 2,000 bytes, and 3,200 about them
        bench.journal.append(event, 100, parts, 2000, [7] * 100)
    bench.journal.max_event = 6000
    bench.journal.append(event, 100, parts, 2000, [7] * 100)
    room = [bench.journal.has_room(size, "c", "t") for size in (5550, 5570)]
    assert room == [True, False]
    single = MessagePublished("c", 1, False, ["t"], [], [1], 5450, 100, 1, blocks=[100])
    bench.journal.append(single, 1, [b"x" * 100, b"x" * 5450], 5550, [7, 7])


def test_a_record_holds_no_more_bytes_than_reckoned() -> None:
    bench = Bench(max_record=20_000, max_inflight=99)
    for number in range(300):
        pids = [(7 * number * at) % 65535 + 1 for at in range(1, 6)]
        refs = [position(1 << 42, (number * at) % 1000) for at in range(1, 6)]
        bench.journal.append(Delivered("client", "a/b/#", 1, pids, refs), 5)
    bench.end_turn(b"ack")
    assert max(len(one.data) for one in bench.store.sent) <= 20_000
    assert all(orjson.dumps(one.raw_events) for one in bench.store.records)


# --------------------------------------------------------------- congestion


def test_congestion_and_relief() -> None:
    relieved: list[int] = []
    bench = Bench(max_inflight=1, max_record=1 << 20, max_pending=10_000)
    bench.journal.on_input_resumed = lambda: relieved.append(bench.journal.durable)
    bench.turn(b"0", 4000)
    assert not bench.journal.congested
    bench.turn(b"1", 4000)
    bench.turn(b"2", 4000)
    assert bench.journal.congested
    bench.commit(1)
    assert relieved == [], "more than half of what may wait still waits"
    bench.commit(2)
    assert relieved == [2]
    bench.turn(b"3")
    bench.commit(3)
    assert relieved == [2], "told once"


def test_relief_is_reported_only_on_request() -> None:
    relieved: list[int] = []
    bench = Bench(max_inflight=1, max_pending=1000)
    bench.journal.on_input_resumed = lambda: relieved.append(1)
    bench.turn(b"0", 4000)
    bench.commit(1)
    assert relieved == []


# ------------------------------------------------------------- turns that are cut


def test_a_split_turn_ends_no_record() -> None:
    bench = Bench()
    bench.turn(b"first")
    bench.event()  # of a turn that continues in the next iteration of the event loop
    bench.journal.split_turn()
    assert bench.journal.last_closed is None
    bench.commit(1)
    bench.journal.flush()
    assert shape(bench.store.records) == [(1, 0, True, 1)]
    bench.event()
    bench.end_turn(b"second")
    assert shape(bench.store.records) == [(1, 0, True, 1), (2, 0, True, 2)]
    assert bench.effects() == [b"first"]
    bench.commit(2)
    assert bench.effects() == [b"first", b"second"]


def test_effects_leave_in_order_a_few_at_a_time() -> None:
    bench = Bench()
    soon: list[Callable[[], None]] = []
    bench.journal.call_soon = soon.append
    bench.journal.released_at_once = 1
    bench.event()
    bench.journal.send_when_durable(bench.a, b"one a")
    bench.journal.send_when_durable(bench.b, b"one b")
    bench.journal.end_turn()
    bench.turn(b"two a")
    bench.commit(1, 2)
    bench.journal.end_turn()
    assert bench.effects() == [b"one a"]
    assert not bench.journal.idle
    # What depends on nothing that is still to come goes behind what leaves already.
    bench.end_turn(b"three a")
    while soon:
        soon.pop(0)()
    assert bench.effects() == [b"one a", b"one b", b"two a", b"three a"]
    assert bench.journal.gated == 0
    assert bench.journal.idle
