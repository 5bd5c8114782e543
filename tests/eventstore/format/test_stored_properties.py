"""Blocks of properties in records: stored once if equal, and assigned to each message."""

from collections.abc import Sequence

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import ALL_PAYLOADS, every_event

from eventstore.format.event_json import field_values, json_object
from eventstore.format.event_parsing import Event, LogEvent, entries
from eventstore.format.events import Acked, MessagePublished, WillArmed
from eventstore.format.node_events import MessagesCarried
from eventstore.format.positions import Position, from_runs, to_runs
from eventstore.format.records import GENESIS, Record, decode_record, encode_record
from eventstore.format.stored_properties import (
    block_bounds,
    block_columns,
    expired_until,
    expires_at,
    expiries,
    expiries_of,
    expiry_runs,
    seconds_left,
)
from eventstore.format.turn_events import TurnAcked, TurnPublished
from eventstore.log.journal import Journal
from eventstore.log.message_store import MessageStore, StoredMessages
from eventstore.log.pending_record import PendingRecord

NOW_MS = 1_700_000_000_999

blocks = st.sampled_from(
    [b"", b"\1\1", b"\2\0\0\0\5", b"\2\0\0\0\5\1\1", b"\2\0\0\0\0", b"x" * 300]
)
messages = st.lists(st.tuples(blocks, st.binary(max_size=5)), min_size=1, max_size=9)


class Clock:
    def steady_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        return 1.0


class Log:
    """A journal that keeps its records."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.journal = Journal(
            self, Clock(), node="n", sequence=0, link=GENESIS, max_record=1 << 20
        )

    def send(self, record: PendingRecord) -> None:
        self.records.append(decode_record(record.sequence, record.data))

    def append(self, event: LogEvent, payloads: Sequence[bytes] = ()) -> Position:
        size = sum(map(len, payloads))
        return self.journal.append(event, entries(event), payloads, size)

    def record(self) -> Record:
        self.journal.end_turn()
        self.journal.flush()
        (record,) = self.records
        return record


def published(some: list[tuple[bytes, bytes]]) -> tuple[MessagePublished, list[bytes]]:
    """A publication of these messages, and what it puts into the payload area."""
    distinct, sizes, block_of = block_columns([block for block, _ in some])
    event = MessagePublished("c", 1, False, ["t"], [], to_runs(range(1, len(some) + 1)),
                             [len(payload) for _, payload in some], 0, len(some),
                             blocks=sizes, block_of=block_of)  # fmt: skip
    return event, [*distinct, *(payload for _, payload in some)]


@given(st.lists(messages, min_size=1, max_size=3))
def test_each_message_has_its_block_and_payload_when_it_is_read(
    batches: list[list[tuple[bytes, bytes]]],
) -> None:
    log = Log()
    for some in batches:
        event, pieces = published(some)
        assert sum(event.blocks) == sum(map(len, {block for block, _ in some}))
        log.append(event, pieces)
    record = log.record()
    for (_, event), some in zip(record.events(), batches, strict=True):
        assert isinstance(event, MessagePublished)
        found = record.blocks(event) or [b""] * len(some)
        assert [*zip(found, record.payloads(event), strict=True)] == some
        assert record.pieces(event) == published(some)[1]


@given(messages)
def test_the_store_returns_blocks_and_when_they_expire(some: list[tuple[bytes, bytes]]) -> None:
    log = Log()
    first = log.append(*published(some))
    store = MessageStore(1 << 20)
    store.add_record(log.record())
    found = [store.get(first + at) for at in range(len(some))]
    assert [(one.block, one.payload) for one in found if one is not None] == some
    assert [one.expires for one in found if one is not None] == [
        expires_at(block, NOW_MS) for block, _ in some
    ]
    by_hand = [block for block, _ in some]
    kept = MessageStore(1 << 20)
    columns = [b"t"] * len(some), [payload for _, payload in some]
    expires = expiries(by_hand, NOW_MS)
    kept.add(StoredMessages(first, *columns, 0, by_hand, expires, publishers=("c",)))
    assert [kept.get(first + at) for at in range(len(some))] == found


@given(messages)
def test_carried_messages_expire_when_they_would_have(some: list[tuple[bytes, bytes]]) -> None:
    by_hand = [block for block, _ in some]
    distinct, sizes, block_of = block_columns(by_hand)
    expires = expiries(by_hand, 5_000)
    refs = [at << 20 for at in range(1, len(some) + 1)]
    log = Log()
    event = MessagesCarried(
        to_runs(refs), ["t"], [], [len(one) for _, one in some], 0, len(some),
        blocks=sizes, block_of=block_of, expires=expiry_runs(expires),
    )  # fmt: skip
    log.append(event, [*distinct, *(payload for _, payload in some)])
    store = MessageStore(1 << 20)
    store.add_record(log.record())
    found = [store.get(ref) for ref in refs]
    assert [(one.block, one.payload, one.expires) for one in found if one is not None] == [
        (block, payload, expires_at(block, 5_000)) for block, payload in some
    ]


@given(st.lists(st.integers(0, 3) | st.integers(1 << 30, 1 << 33)))
def test_expiries_are_read_as_they_were(expires: list[int]) -> None:
    read = expiries_of(expiry_runs(expires), len(expires))
    assert read == (expires if any(expires) else [])


@pytest.mark.parametrize(
    ("block", "expires"),
    [(b"", 0), (b"\1\1", 0), (b"\2\0\0\0\0", 1_700_000_000), (b"\2\0\0\1\0\1\1", 1_700_000_256)],
)
def test_a_message_expires_counted_from_its_record(block: bytes, expires: int) -> None:
    assert expires_at(block, NOW_MS) == expires


names = st.sampled_from(["c", "d", "ä"])
turns = st.lists(st.tuples(names, names, blocks, st.binary(max_size=5)), min_size=1, max_size=12)


@given(turns)
def test_publications_of_a_turn_have_the_blocks_they_had(
    rows: list[tuple[str, str, bytes, bytes]],
) -> None:
    sessions, topics = (list(dict.fromkeys(row[at] for row in rows)) for at in (0, 1))
    distinct, sizes, block_of = block_columns([row[2] for row in rows])
    event = TurnPublished(
        sessions, [sessions.index(row[0]) for row in rows], 1,
        topics, [topics.index(row[1]) for row in rows],
        list(range(1, len(rows) + 1)), [len(row[3]) for row in rows], 0, len(rows),
        blocks=sizes, block_of=block_of,
    )  # fmt: skip
    log = Log()
    log.append(*published([(b"before", b"it")]))
    log.append(event, [*distinct, *(row[3] for row in rows)])
    record = log.record()
    found = []
    for at, one in list(record.events())[1:]:
        assert isinstance(one, MessagePublished)
        assert at == 1 + len(found)
        each = [one.topics[at] for at in one.which] or one.topics * one.count
        held = record.blocks(one) or [b""] * one.count
        assert len(set(one.blocks_at)) == len(one.blocks_at) == len(one.blocks)
        assert len(one.blocks) <= one.count
        found += [
            (one.session, topic, block, payload)
            for topic, block, payload in zip(each, held, record.payloads(one), strict=True)
        ]
    assert found == rows


@given(st.lists(st.tuples(names, st.sampled_from([0, 0, 0x10, 0x87])), min_size=1, max_size=9))
def test_acknowledgements_of_a_turn_have_the_reasons_they_had(rows: list[tuple[str, int]]) -> None:
    sessions = list(dict.fromkeys(row[0] for row in rows))
    codes = [row[1] for row in rows]
    event = TurnAcked(
        "Acked", sessions, [sessions.index(row[0]) for row in rows],
        list(range(1, len(rows) + 1)), reasons=codes if any(codes) else [],
    )  # fmt: skip
    log = Log()
    log.append(event)
    found = []
    for _, one in log.record().events():
        assert isinstance(one, Acked)
        some = from_runs(one.reasons) or [0] * entries(one)
        found += [(one.session, code) for code in some]
    assert found == rows


def test_a_will_has_its_block_before_its_payload() -> None:
    log = Log()
    will = WillArmed("c", "t", 1, False, 4, 0, delay=5, blocks=[2])
    at = log.append(will, [b"\1\1", b"gone"])
    assert (will.at, block_bounds(will)) == (2, [(0, 2)])
    store = MessageStore(1 << 20)
    store.add_record(log.record())
    found = store.get(at)
    assert found is not None
    assert (found.payload, found.block, found.expires) == (b"gone", b"\1\1", 0)


@pytest.mark.parametrize("event", every_event(), ids=lambda event: event.e)
def test_added_fields_are_written_only_if_they_differ_from_their_defaults(event: Event) -> None:
    usual = orjson.loads(orjson.dumps(event))
    names = list(usual)
    later = names[names.index("v") + 1 :]
    raw = orjson.loads(orjson.dumps(json_object(event)))
    assert list(field_values(event)) == list(raw)
    assert {**usual, **raw} == usual
    assert usual.keys() - raw.keys() <= {*later}
    plain = type(event)(**{name: getattr(event, name) for name in names if name not in later})
    assert list(orjson.loads(orjson.dumps(json_object(plain)))) == names[: names.index("v") + 1]


def test_the_samples_lie_within_their_payloads() -> None:
    area = b"".join(ALL_PAYLOADS)
    data = encode_record(
        previous=GENESIS, node="n", time_ms=1, events=every_event(), payloads=ALL_PAYLOADS
    )
    record = decode_record(1, data)
    held = [record.pieces(event) for _, event in record.events() if hasattr(event, "block_of")]
    assert [b"".join(pieces) for pieces in held[-3:]] == [area[11:26], area[32:47], area[47:]]


@given(
    published=st.integers(10**9, 10**13), waited=st.integers(0, 5_000), seconds=st.integers(1, 4)
)
def test_a_message_expires_at_most_half_a_second_early_or_late(
    published: int, waited: int, seconds: int
) -> None:
    expires = expires_at(b"\2" + seconds.to_bytes(4, "big"), published)
    has_expired = expires <= expired_until(published + waited)
    if not has_expired:
        left = seconds_left(seconds, expires, published + waited)
        assert 1 <= left <= seconds
        assert left >= seconds - waited // 1000 - 1
    assert seconds_left(0, published // 1000, published) == 0
    if waited <= seconds * 1000 - 500:
        assert not has_expired
    if waited >= seconds * 1000 + 500:
        assert has_expired
