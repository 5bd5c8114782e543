import hashlib
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import PAYLOADS, WILL, every_event, salvage_events

from eventstore.errors import CorruptLog, UnknownLogFormat
from eventstore.format import json_dictionary, records
from eventstore.format.event_parsing import UPCASTERS, UnknownEvent, UnreadableEvent, entries
from eventstore.format.events import Acked, MessagePublished
from eventstore.format.json_dictionary import DICTIONARY
from eventstore.format.node_events import BrokerStarted
from eventstore.format.records import (
    GENESIS,
    ChainChecker,
    Record,
    decode_record,
    encode_record,
    format_of,
    is_intact,
    link_of,
    mentions,
    message_id,
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
    destinations=st.lists(st.tuples(st.integers(0, 65535), st.integers(0, 1 << 63)), max_size=3),
    record_format=st.sampled_from((1, 2)),
)
def test_encoded_records_are_decoded(
    events: list[Any],
    payloads: list[bytes],
    previous: bytes,
    node: str,
    time_ms: int,
    part: int,
    last: bool,
    destinations: list[tuple[int, int]],
    record_format: int,
) -> None:
    data = encode_record(
        previous=previous,
        node=node,
        time_ms=time_ms,
        events=events,
        payloads=payloads,
        part=part,
        last=last,
        destinations=destinations,
        record_format=record_format,
    )
    read = decode_record(9, data)
    assert (data[3], format_of(data)) == (record_format, record_format)
    if destinations and record_format == 2:
        parts = struct.iter_unpack(">HQ", data[79 : 79 + 10 * len(destinations)])
        assert (data[68] & 4, [*parts]) == (4, destinations)
    assert orjson.loads(read.header)["node"] == node
    assert (read.sequence, read.previous, read.link) == (9, previous, link_of(data))
    assert (read.node, read.time_ms, read.part, read.last) == (node, time_ms, part, last)
    assert bytes(read.payload) == b"".join(payloads)
    found = list(read.events())
    assert [orjson.dumps(event) for _, event in found] == [orjson.dumps(event) for event in events]
    index = 0
    for (at, _), event in zip(found, events, strict=True):
        assert at == index
        index += entries(event)


def signed(version: int, rest: bytes, previous: bytes = GENESIS) -> bytes:
    """A record with a correct checksum."""
    covered = previous + rest
    return b"FMQ%c" % version + hashlib.sha256(covered).digest() + covered


WHOLE = record_of(*EVENTS, payloads=[*PAYLOADS, WILL])
JSON = decode_record(1, WHOLE).header


def of_format(record_format: int, *events: Any, **more: Any) -> bytes:
    return encode_record(
        previous=GENESIS, node="n", time_ms=1, events=events, payloads=[],
        record_format=record_format, **more,
    )  # fmt: skip


BYTES = {
    "format 1": of_format(1, *EVENTS[:8]),
    "deflated": of_format(2, *EVENTS[:8]),
    "plain": of_format(2, EVENTS[0]),
    "with destinations": of_format(2, *EVENTS[:8], destinations=[(3, 1 << 40), (7, 0)]),
}


@pytest.mark.parametrize("kind", BYTES)
def test_each_changed_bit_is_detected(kind: str) -> None:
    for bit in range(8 * len(BYTES[kind])):
        changed = bytearray(BYTES[kind])
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptLog, UnknownLogFormat)) as caught:
            decode_record(7, bytes(changed))
        assert "record 7" in str(caught.value)


@pytest.mark.parametrize("kind", BYTES)
def test_any_truncation_is_detected(kind: str) -> None:
    for size in range(len(BYTES[kind])):
        with pytest.raises(CorruptLog):
            decode_record(7, BYTES[kind][:size])


def test_json_is_deflated_where_it_is_worth_it() -> None:
    sizes = {kind: len(data) for kind, data in BYTES.items()}
    assert sizes["deflated"] < sizes["format 1"] / 2
    assert sizes["with destinations"] == sizes["deflated"] + 2 + 2 * 10
    for events in ([Acked("c", [1])], [Acked("c", [[n, 2, 3] for n in range(4000)])]):
        assert b'"e":"Acked"' in of_format(2, *events)


@pytest.mark.plain
def test_json_that_does_not_get_smaller_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    storing = zlib.compressobj(0, zlib.DEFLATED, -12)
    monkeypatch.setattr(records, "_DEFLATE", storing)
    data = of_format(2, *EVENTS[:8])
    assert (data[68], decode_record(1, data).header in data) == (0x80, True)


def compressed(header: bytes, size: int, tail: bytes = b"") -> bytes:
    """What a record of format 2 has behind its links, if its JSON is deflated like this."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_DEFAULT_STRATEGY, DICTIONARY)
    stored = deflate.compress(header) + deflate.flush() + tail
    return struct.pack(">BII", 0x81, len(stored), size) + stored


def test_deflated_json_of_any_encoder_is_read() -> None:
    assert decode_record(7, signed(2, compressed(JSON, len(JSON)))).header == JSON


@pytest.mark.parametrize("size", [0, 1, len(JSON) - 1, len(JSON) + 1, (1 << 32) - 1])
def test_deflated_json_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(CorruptLog, match="invalid header"):
        decode_record(7, signed(2, compressed(JSON, size)))


@pytest.mark.parametrize("claim", [100, 64 << 20, 256 << 20])
def test_a_bomb_is_refused_before_it_is_inflated(claim: int) -> None:
    data = signed(2, compressed(bytes(256 << 20), claim))
    tracemalloc.start()
    with pytest.raises(CorruptLog, match="invalid header"):
        decode_record(7, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < min(claim, 64 << 20) * 2.5 + (1 << 20)


@pytest.mark.parametrize("tail", [b"\0", b"more"])
def test_bytes_behind_deflated_json_are_refused(tail: bytes) -> None:
    with pytest.raises(CorruptLog, match="invalid header"):
        decode_record(7, signed(2, compressed(JSON, len(JSON), tail)))


def test_deflated_json_that_is_cut_off_is_refused() -> None:
    whole = compressed(JSON, len(JSON))
    for size in range(9, len(whole)):
        lengths = struct.pack(">BII", 0x81, size - 9, len(JSON))
        with pytest.raises(CorruptLog, match="invalid header"):
            decode_record(7, signed(2, lengths + whole[9:size]))


@pytest.mark.parametrize("count", [1, 2, 0xFFFF])
def test_destinations_that_are_missing_are_refused(count: int) -> None:
    with pytest.raises(CorruptLog, match="invalid header"):
        decode_record(7, signed(2, struct.pack(">BIIH", 0x84, 2, 2, count)))


@pytest.mark.parametrize("flags", [0x82, 0x90, 0xA0, 0xC1])
def test_flags_of_a_later_foldmq_are_not_reported_as_damage(flags: int) -> None:
    rest = struct.pack(">BII", flags, len(JSON), len(JSON)) + JSON
    with pytest.raises(UnknownLogFormat, match="use the foldmq that wrote it, or a later one"):
        decode_record(7, signed(2, rest))


def test_one_format_is_not_taken_for_the_other() -> None:
    for kind, version in (("format 1", 2), ("deflated", 1), ("plain", 1)):
        data = bytearray(BYTES[kind])
        data[3] = version
        assert is_intact(bytes(data))
        with pytest.raises(CorruptLog, match="has the version of another format"):
            decode_record(7, bytes(data))


def test_a_record_that_joins_the_chain_is_never_deflated() -> None:
    (salvaged,) = [event for event in salvage_events() if event.e == "LogSalvaged" and event.link]
    for record_format in (1, 2):
        data = of_format(record_format, salvaged)
        assert b'"e":"LogSalvaged"' in data
        assert link_of(data).hex() == decode_record(1, data).link.hex() == salvaged.link


def test_words_are_found_in_deflated_json() -> None:
    for data in BYTES.values():
        assert mentions(data, [b"nothing", b'"BrokerStarted"'])
        assert not mentions(data, [b'"Nothing"'])
    assert mentions(signed(2, compressed(JSON, 5)), [b'"Nothing"'])


def test_message_ids_are_short_and_differ() -> None:
    links = [link_of(data) for data in BYTES.values()]
    assert {len(message_id(link)) for link in links} == {22}
    assert len({message_id(link) for link in links}) == len(links)


def test_another_dictionary_is_not_loaded() -> None:
    source = Path(json_dictionary.__file__).read_text("utf-8")
    exec(compile(source, "same", "exec"), {})
    with pytest.raises(ImportError, match="was changed"):
        exec(compile(source.replace('"qos":1', '"qos":2', 1), "changed", "exec"), {})


@given(st.binary(max_size=300))
def test_anything_else_is_refused_and_nothing_else_is_raised(data: bytes) -> None:
    signed = hashlib.sha256(data).digest() + data
    for candidate in (data, b"FMQ\x01" + data, b"FMQ\x01" + signed, b"FMQ\x02" + signed):
        with pytest.raises((CorruptLog, UnknownLogFormat)):
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
    size = len(header)
    for version, lengths in (
        (1, struct.pack(">I", size)),
        (2, struct.pack(">BII", 128, size, size)),
    ):
        with pytest.raises(CorruptLog, match="record 7 has an invalid header"):
            decode_record(7, signed(version, lengths + header))


def test_a_later_format_is_not_reported_as_damage() -> None:
    with pytest.raises(UnknownLogFormat) as caught:
        decode_record(7, b"FMQ\x03" + WHOLE[4:])
    assert str(caught.value) == (
        "record 7 of the log has format 3, this foldmq reads formats 1 to 2: "
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
