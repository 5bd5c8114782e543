import hashlib
import struct
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import PAYLOADS, WILL, every_event

from eventstore.errors import CorruptLog, UnknownLogFormat
from eventstore.format.event_parsing import UPCASTERS, UnknownEvent, UnreadableEvent, entries
from eventstore.format.events import Acked, MessagePublished
from eventstore.format.node_events import BrokerStarted
from eventstore.format.records import (
    GENESIS,
    MAGIC,
    ChainChecker,
    Record,
    decode_record,
    encode_record,
    link_of,
    payload_bounds,
)

EVENTS = every_event()


def record_of(*events: Any, previous: bytes = GENESIS, payloads: Any = ()) -> bytes:
    return encode_record(
        previous=previous, node="n", time_ms=1, events=events, payloads=list(payloads)
    )


@given(
    events=st.lists(st.sampled_from(EVENTS), min_size=1, max_size=6),
    payloads=st.lists(st.binary(max_size=50), max_size=4),
    previous=st.binary(min_size=32, max_size=32),
    node=st.text(max_size=8).filter(lambda text: text.isprintable()),
    time_ms=st.integers(0, 1 << 50),
    part=st.integers(0, 5),
    last=st.booleans(),
)
def test_encoded_records_are_decoded(
    events: list[Any],
    payloads: list[bytes],
    previous: bytes,
    node: str,
    time_ms: int,
    part: int,
    last: bool,
) -> None:
    data = encode_record(
        previous=previous,
        node=node,
        time_ms=time_ms,
        events=events,
        payloads=payloads,
        part=part,
        last=last,
    )
    read = decode_record(9, data)
    assert (read.sequence, read.previous, read.link) == (9, previous, link_of(data))
    assert (read.node, read.time_ms, read.part, read.last) == (node, time_ms, part, last)
    assert bytes(read.payload) == b"".join(payloads)
    found = list(read.events())
    assert [orjson.dumps(event) for _, event in found] == [orjson.dumps(event) for event in events]
    index = 0
    for (at, _), event in zip(found, events, strict=True):
        assert at == index
        index += entries(event)


WHOLE = record_of(*EVENTS, payloads=[*PAYLOADS, WILL])


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_any_changed_byte_is_detected(at: int, mask: int) -> None:
    changed = bytearray(WHOLE)
    changed[at] ^= mask
    with pytest.raises((CorruptLog, UnknownLogFormat)) as caught:
        decode_record(7, bytes(changed))
    assert "record 7" in str(caught.value)


@given(st.integers(0, len(WHOLE) - 1))
def test_any_truncation_is_detected(size: int) -> None:
    with pytest.raises(CorruptLog):
        decode_record(7, WHOLE[:size])


@given(st.binary(max_size=300))
def test_anything_else_is_refused_and_nothing_else_is_raised(data: bytes) -> None:
    for candidate in (data, MAGIC + data, MAGIC + hashlib.sha256(data).digest() + data):
        with pytest.raises(CorruptLog):
            decode_record(7, candidate)


@pytest.mark.parametrize(
    "header",
    [
        b"{}",
        b"[]",
        b"\xff",
        b'{"node":"n"}',
        b"",
        b'{"node":"n","time":1,"part":0,"last":true,"events":1}',
        b'{"node":"n","time":1,"part":0,"last":true,"events":[{},1]}',
        b'{"node":"n","time":1,"part":0,"last":true,"events":{"e":1}}',
        b'{"node":"n","time":1,"part":0,"last":true,"events":{}}',
    ],
)
def test_a_header_that_is_none_is_damage_even_with_the_right_checksum(header: bytes) -> None:
    signed = GENESIS + struct.pack(">I", len(header)) + header
    with pytest.raises(CorruptLog, match="record 7 has an invalid header"):
        decode_record(7, MAGIC + hashlib.sha256(signed).digest() + signed)


def test_a_later_format_is_not_reported_as_damage() -> None:
    with pytest.raises(UnknownLogFormat) as caught:
        decode_record(7, b"FMQ\x02" + WHOLE[4:])
    assert str(caught.value) == (
        "record 7 of the log has format 2, this foldmq reads format 1: "
        "use the foldmq that wrote it, or a later one"
    )
    assert caught.value.exit_code == 78


def test_an_unknown_event_is_named_with_its_place() -> None:
    data = record_of(Acked("c", [1, 2]), {"e": "Acked", "v": 9, "session": "c", "pids": []})
    with pytest.raises(UnknownEvent, match=r"^record 7, entry 2: event 'Acked' version 9 is not"):
        list(decode_record(7, data).events())


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (
            {"e": "Acked", "v": 1, "session": "c", "pids": ["x"]},
            "event Acked, field pids.0.int = 'x': ",
        ),
        (
            {"e": "Acked", "v": 1, "session": 5, "pids": [1]},
            "event Acked, field session = 5: ",
        ),
        (
            {"e": "Delivered", "v": 1, "session": "c", "filter": "t", "qos": 1, "pids": [1]},
            "event Delivered: field refs is missing",
        ),
        (
            {"e": "SessionClosed", "v": 1, "session": "c", "reason": None},
            "event SessionClosed, field reason = None: ",
        ),
    ],
)
def test_a_field_that_is_wrong_is_named_with_its_place(event: Any, error: str) -> None:
    read = decode_record(7, record_of(Acked("c", [[1, 3, 1]]), event)).events()
    assert next(read) == (0, Acked("c", [[1, 3, 1]]))
    with pytest.raises(UnreadableEvent) as caught:
        next(read)
    assert str(caught.value).startswith(f"record 7, entry 3: {error}")
    assert type(caught.value) is UnreadableEvent


def test_old_versions_are_upcast_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def raised(raw: dict[str, Any]) -> dict[str, Any]:
        asked.append(raw)
        return {"e": "Acked", "v": 1, "session": raw["client"], "pids": [raw["pid"]]}

    monkeypatch.setitem(UPCASTERS, ("Acked", 0), raised)
    old = {"e": "Acked", "v": 0, "client": "c", "pid": 3}
    data = record_of(Acked("c", [1, 2]), old, BrokerStarted("1"))
    events = list(decode_record(7, data).events())
    assert events == [(0, Acked("c", [1, 2])), (2, Acked("c", [3])), (3, BrokerStarted("1"))]
    assert asked == [old]


@pytest.mark.parametrize(
    ("sizes", "count", "bounds"),
    [
        (4, 3, [10, 14, 18, 22]),
        (0, 3, [10, 10, 10, 10]),
        ([0, 2, 5], 3, [10, 10, 12, 17]),
        (4, 1, [10, 14]),
    ],
)
def test_bounds_of_payloads(sizes: list[int] | int, count: int, bounds: list[int]) -> None:
    event = MessagePublished("c", 1, False, ["t"], [], [], sizes, 10, count)
    assert payload_bounds(event) == bounds


def chain(count: int) -> list[Record]:
    records: list[Record] = []
    link = GENESIS
    for sequence in range(1, count + 1):
        data = record_of(BrokerStarted(str(sequence)), previous=link)
        link = link_of(data)
        records.append(decode_record(sequence, data))
    return records


def renumbered(records: list[Record]) -> list[Record]:
    """As in a log that was rewritten from these records."""
    for sequence, record in enumerate(records, 1):
        record.sequence = sequence
    return records


def check(records: list[Record]) -> None:
    checker = ChainChecker()
    for record in records:
        checker.check(record)


def test_an_unbroken_chain_passes() -> None:
    records = chain(5)
    check(records)
    tail = ChainChecker(2, records[1].link)
    for record in records[2:]:
        tail.check(record)
    assert (tail.sequence, tail.link) == (5, records[4].link)


def test_a_lost_record_is_detected() -> None:
    records = chain(5)
    del records[2]
    with pytest.raises(CorruptLog, match="record 3 is missing or cannot be read") as caught:
        check(records)
    assert caught.value.sequence == 3
    assert "records up to 2 are intact" in str(caught.value)
    assert "foldmq salvage --data-dir DIR --to NEWDIR" in str(caught.value)


@pytest.mark.parametrize(
    ("order", "where"),
    [
        ([0, 1, 3, 4], 3),
        ([0, 1, 1, 2], 3),
        ([0, 2, 1, 3], 2),
        ([1, 0, 2], 1),
        ([0, 0], 2),
    ],
    ids=["lost", "repeated", "swapped", "first swapped", "first repeated"],
)
def test_reordered_records_are_detected(order: list[int], where: int) -> None:
    made = chain(5)
    records = [decode_record(1, record_bytes(made[at])) for at in order]
    with pytest.raises(CorruptLog) as caught:
        check(renumbered(records))
    assert caught.value.sequence == where


def record_bytes(record: Record) -> bytes:
    data = record_of(BrokerStarted(str(record.sequence)), previous=record.previous)
    assert link_of(data) == record.link
    return data


def test_a_log_that_begins_in_the_middle_is_detected() -> None:
    with pytest.raises(CorruptLog) as caught:
        check(chain(3)[1:])
    assert caught.value.sequence == 1
    assert "no record before it" in str(caught.value)
