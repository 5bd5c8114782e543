"""Framing, limits and runs, which the catalogue with single packets does not cover."""

from itertools import pairwise

import pytest
from harness.catalogue import BAD, CONNECT, GOOD, LIMIT
from harness.client_packets import bytewise
from harness.codec import decode, encode, flat
from harness.examples import examples
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.mqtt import publish_decoder
from protocol.mqtt.client_packet_encoder import encode_connect, encode_publish
from protocol.mqtt.decoder import MAX_CONNECT_SIZE, Decoder
from protocol.mqtt.encoder import PINGREQ, encode_acks
from protocol.mqtt.packets import (
    BATCH_MIN,
    Acks,
    Connect,
    ConnectCode,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Publish,
    Publishes,
    Subscribe,
    Unsubscribe,
    Will,
)
from protocol.mqtt.remaining_length import read_length

# --- values ----------------------------------------------------------------------------------

text = st.text(
    st.one_of(
        st.sampled_from("ab/$. +#"),
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    ),
    max_size=40,
)
levels = st.lists(text.map(lambda level: level.translate({43: "", 35: "", 47: ""})), min_size=1)
topic_names = levels.map("/".join).filter(bool)


@st.composite
def topic_filters(draw: st.DrawFn) -> str:
    parts = [draw(st.sampled_from(["+", level])) for level in draw(levels)]
    return "/".join([*parts, *draw(st.sampled_from([[], ["#"]]))]) or "/"


packet_ids = st.integers(1, 65535)
qos = st.integers(0, 2)
wills = st.builds(Will, topic_names, st.binary(max_size=300), qos, st.booleans())


@st.composite
def connects(draw: st.DrawFn) -> Connect:
    version = draw(st.sampled_from([3, 4]))
    clean = draw(st.booleans())
    client_id = draw(text if clean and version == 4 else text.filter(bool))
    username = draw(st.none() | text)
    password = draw(st.none() | st.binary(max_size=50))
    if version == 4 and username is None:
        password = None
    will = draw(st.none() | wills)
    return Connect(version, client_id, clean, draw(st.integers(0, 65535)), will, username, password)


@st.composite
def publishes(draw: st.DrawFn) -> Publish:
    level = draw(qos)
    return Publish(
        draw(st.sampled_from([b"t/1", b"t/2"]) | topic_names.map(str.encode)),
        draw(st.sampled_from([b"", b"m", b"x" * 124, b"x" * 125]) | st.binary(max_size=300)),
        level,
        draw(st.booleans()),
        draw(st.booleans()) if level else False,
        draw(packet_ids) if level else 0,
    )


single_acks = st.builds(
    Acks,
    st.sampled_from([PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP]),
    packet_ids.map(lambda packet_id: [packet_id]),
)
others = st.one_of(
    single_acks,
    st.builds(
        Subscribe, packet_ids, st.lists(st.tuples(topic_filters(), qos), min_size=1, max_size=5)
    ),
    st.builds(Unsubscribe, packet_ids, st.lists(topic_filters(), min_size=1, max_size=5)),
    st.builds(Pingreq),
)
packets = publishes() | others
# Packets as a client sends them: often the same many times over.
streams = st.lists(
    st.tuples(packets, st.sampled_from([1, 1, 2, 5, 20, 70])).map(lambda pair: [pair[0]] * pair[1]),
    max_size=12,
).map(lambda groups: [packet for group in groups for packet in group])


@given(connects(), streams)
@pytest.mark.slow
def test_encoded_packets_are_decoded(connect: Connect, stream: list[Packet | Publish]) -> None:
    data = encode(connect) + b"".join(map(encode, stream))
    assert decode([data], LIMIT) == ([connect, *stream], None)


@given(streams, st.lists(st.integers(0, 5000), max_size=10), st.sampled_from([b"", *BAD]))
@pytest.mark.slow
def test_the_split_of_the_input_does_not_matter(
    stream: list[Packet | Publish], cuts: list[int], last: object
) -> None:
    end = b"" if isinstance(last, bytes) else getattr(last, "raw", b"")
    data = CONNECT + b"".join(map(encode, stream)) + end
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:stop] for start, stop in pairwise(places)]
    whole, bad = decode([data], LIMIT)
    split, also_bad = decode(pieces, LIMIT)
    assert split == whole
    assert str(also_bad) == str(bad)


@given(st.lists(st.binary(max_size=200), max_size=10), st.booleans())
def test_arbitrary_bytes_raise_nothing(pieces: list[bytes], connected: bool) -> None:
    decode([CONNECT if connected else b"", *pieces], 1000)


@given(
    streams,
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), min_size=1, max_size=3),
)
@pytest.mark.slow
def test_damaged_bytes_raise_nothing(
    stream: list[Packet | Publish], damage: list[tuple[int, int]]
) -> None:
    data = bytearray(CONNECT + b"".join(map(encode, stream)))
    for at, byte in damage:
        data[at % len(data)] = byte
    whole, bad = decode([bytes(data)], LIMIT)
    split, also_bad = decode(bytewise(bytes(data)), LIMIT)
    assert split == whole
    assert str(also_bad) == str(bad)


# --- runs ------------------------------------------------------------------------------------


def _run(count: int, level: int, *, size: int = 20, retain: bool = False) -> list[Publish]:
    return [
        Publish(
            b"run/%d" % (i % 4), b"%0*d" % (size, i), level, retain, False, i + 1 if level else 0
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 18, 19, 20, 67, 68, 131, 132, 500])
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("size", [3, 150])
def test_a_run_is_one_batch(count: int, level: int, retain: bool, size: int) -> None:
    messages = _run(count, level, size=size, retain=retain)
    decoder = Decoder(LIMIT)
    raw = [encode(message) for message in messages]
    _, batch = decoder.feed(CONNECT + b"".join(raw) + raw[0][:-1])
    assert decoder.error is None
    assert decoder.buffered == len(raw[0]) - 1
    assert isinstance(batch, Publishes)
    assert list(batch) == messages
    assert (batch.qos, batch.retain, batch.dup, len(batch)) == (level, retain, False, count)
    assert batch.packets == ([] if level or retain else raw)
    assert batch.packet_ids == ([message.packet_id for message in messages] if level else [])
    assert batch.payloads == [message.payload for message in messages]


@pytest.mark.parametrize("size", [122, 123, 16_378, 16_379, 2_097_146, 2_097_147])
def test_payloads_are_cut_out_behind_every_length_of_header(size: int) -> None:
    message = Publish(b"t/1", b"x" * size, 0, False, False, 0)
    assert decode([CONNECT + encode(message) * 2], 1 << 22) == (
        [Connect(4, "c", True, 60), message, message],
        None,
    )


@pytest.mark.parametrize("at", [0, 1, 5, 30, 60, 99])
@pytest.mark.parametrize(
    ("level", "topic", "packet_id", "statement"),
    [
        *[(level, b"run/+", 1, "MQTT-3.3.2-2") for level in (0, 1, 2)],
        *[(level, b"run/\xff", 1, "MQTT-1.5.3-1") for level in (0, 1, 2)],
        *[(level, b"run/\0", 1, "MQTT-1.5.3-2") for level in (0, 1, 2)],
        *[(level, b"run/0", 0, "MQTT-2.3.1-1") for level in (1, 2)],
    ],
)
@pytest.mark.mqtt("MQTT-3.3.2-2", "MQTT-1.5.3-1", "MQTT-1.5.3-2", "MQTT-2.3.1-1")
def test_errors_inside_a_run_are_found(
    at: int, level: int, topic: bytes, packet_id: int, statement: str
) -> None:
    messages = _run(100, level)
    raw = [encode(message) for message in messages]
    raw[at] = encode_publish(topic, b"0" * 20, level, packet_id)
    found, error = decode([CONNECT + b"".join(raw)], LIMIT)
    assert found[1:] == messages[:at]
    assert error is not None
    assert error.statement == statement


def test_a_long_run_with_a_needlessly_long_length_is_sent_on_in_the_short_form() -> None:
    odd = b"\x30\x85\x00\0\1tmm"
    _, batch = Decoder(LIMIT).feed(CONNECT + odd * 200)
    assert isinstance(batch, Publishes)
    assert batch.packets == [b"\x30\x05\0\1tmm"] * 200
    assert batch.payloads == [b"mm"] * 200


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 40)), max_size=20))
@example([(1, 1), (2, 40)])
def test_runs_of_packets_of_one_size_that_differ_in_the_topic(
    groups: list[tuple[int, int]],
) -> None:
    messages = [
        Publish(b"t" * width, b"x" * (4 - width), 1, False, False, 7)
        for width, count in groups
        for _ in range(count)
    ]
    assert decode([CONNECT + b"".join(map(encode, messages))], LIMIT)[0][1:] == messages


@pytest.mark.parametrize("kind", [PacketType.PUBACK, PacketType.PUBREL])
def test_acknowledgements_are_one_batch(kind: PacketType) -> None:
    ids = list(range(1, 65536))
    decoder = Decoder(LIMIT)
    packets = decoder.feed(CONNECT + encode_acks(kind, ids))
    assert packets[1:] == [Acks(kind, ids)]


@pytest.mark.mqtt("MQTT-2.3.1-1")
def test_packet_identifier_0_in_a_run_of_acknowledgements() -> None:
    found, error = decode([CONNECT + encode_acks(PacketType.PUBACK, [3, 2, 1, 0, 1])], LIMIT)
    assert found[1:] == [Acks(PacketType.PUBACK, [number]) for number in (3, 2, 1)]
    assert error is not None


def test_packets_are_not_taken_for_a_run_because_one_byte_in_each_agrees() -> None:
    messages = [
        Publish(b"t" * (1 + i % 2), b"x" * (2 - i % 2), 0, False, False, 0) for i in range(99)
    ]
    assert decode([CONNECT + b"".join(map(encode, messages))], LIMIT)[0][1:] == messages


def test_the_memory_of_topics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_decoder, "_KNOWN_TOPICS", 100)
    messages = [Publish(b"new/%04d" % i, b"", 0, False, False, 0) for i in range(1000)]
    messages.append(Publish(b"long" * 1000, b"", 0, False, False, 0))
    assert decode([CONNECT + b"".join(map(encode, messages))], LIMIT)[0][1:] == messages
    assert len(publish_decoder.known_topics) <= 100
    assert max(map(len, publish_decoder.known_topics)) <= 256


# --- framing and limits ----------------------------------------------------------------------


@pytest.mark.parametrize("body_comes", [True, False])
def test_the_limit_counts_the_whole_packet(body_comes: bool) -> None:
    fits = encode_publish(b"t", b"x" * 395)
    assert len(fits) == 401
    raw = fits if body_comes else fits[:3]
    assert decode([CONNECT, raw], 401)[1] is None
    error = decode([CONNECT, raw], 400)[1]
    assert error is not None
    assert "401" in error.text


def test_the_limit_holds_inside_a_batch() -> None:
    small = encode_publish(b"t", b"x")
    found, error = decode([CONNECT + small * 3 + encode_publish(b"t", b"x" * 400)], 400)
    assert len(found) == 4
    assert error is not None


def test_before_connect_the_limit_is_the_largest_connect() -> None:
    longest = "x" * 65535
    largest = Connect(
        3, longest, True, 0, Will(longest, longest.encode(), 0, False), longest, longest.encode()
    )
    raw = encode_connect(largest)
    assert len(raw) == MAX_CONNECT_SIZE
    decoder = Decoder(1 << 28)
    assert decoder.feed(raw) == [largest]
    big = encode_publish(b"t", b"x" * MAX_CONNECT_SIZE)
    assert flat(decoder.feed(big)) == [Publish(b"t", b"x" * MAX_CONNECT_SIZE, 0, False, False, 0)]


def test_an_oversized_packet_is_refused_before_its_body_is_kept() -> None:
    decoder = Decoder(1 << 28)
    decoder.feed(b"\x10\xff\xff\xff\x7f" + b"x" * 1000)
    assert decoder.error is not None
    assert decoder.buffered == 0


@pytest.mark.mqtt("MQTT-3.1.2-2")
@pytest.mark.parametrize("level", [0, 3, 5, 6, 0x83, 0x85, 255])
def test_of_another_level_nothing_but_the_level_is_read(level: int) -> None:
    error = decode([b"\x10\x0a\0\4MQTT" + bytes((level,)) + b"\xff\xff\xff"], LIMIT)[1]
    assert error is not None
    assert error.connack is ConnectCode.UNACCEPTABLE_PROTOCOL_VERSION


@pytest.mark.parametrize(
    ("raw", "version"),
    [(b"\x10\x0d\0\4MQTT\x84\2\0\x3c\0\1c", 4), (b"\x10\x0f\0\6MQIsdp\x83\2\0\x3c\0\1c", 3)],
)
def test_a_bridge_has_the_level_of_other_clients(raw: bytes, version: int) -> None:
    (connect,), error = decode([raw], LIMIT)
    assert error is None
    assert isinstance(connect, Connect)
    assert (connect.version, connect.bridge) == (version, True)


@pytest.mark.mqtt("MQTT-3.14.4-2")
def test_bytes_after_disconnect_are_ignored() -> None:
    decoder = Decoder(LIMIT)
    assert decoder.feed(CONNECT + b"\xe0\x00" + b"\x00\x00\x30")[1:] == [Disconnect()]
    assert decoder.feed(PINGREQ) == []
    assert decoder.error is None
    assert decoder.buffered == 0


def test_a_large_packet_in_pieces_is_kept_once() -> None:
    raw = encode_publish(b"t", b"x" * (1 << 20), 1, 9)
    decoder = Decoder(1 << 21)
    decoder.feed(CONNECT)
    for at in range(0, len(raw) - 1, 65_536):
        assert decoder.feed(raw[at : min(at + 65_536, len(raw) - 1)]) == []
    assert decoder.buffered == len(raw) - 1
    (batch,) = decoder.feed(raw[-1:] + PINGREQ[:1])
    assert isinstance(batch, Publishes)
    assert batch.payloads == [b"x" * (1 << 20)]
    assert decoder.buffered == 1
    assert decoder.feed(PINGREQ[1:]) == [Pingreq()]


@pytest.mark.plain
def test_nothing_is_parsed_again_while_a_packet_is_incomplete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    def counted(data: bytes, at: int) -> tuple[int, int] | None:
        nonlocal looks
        looks += 1
        return read_length(data, at)

    monkeypatch.setattr("protocol.mqtt.decoder.read_length", counted)
    decode([CONNECT, *bytewise(encode_publish(b"t", b"x" * 50_000))], LIMIT)
    assert looks == 5  # the packet with its first to fourth byte, the whole packet


@examples(3)
@given(st.lists(st.sampled_from([*GOOD, *BAD]), max_size=8))
def test_any_sequence_of_the_catalogue_stops_at_the_first_violation(
    entries: list[object],
) -> None:
    chosen = [entry for entry in entries if getattr(entry, "after", None) == CONNECT]
    raw = b"".join(getattr(entry, "raw", b"") for entry in chosen)
    expected: list[object] = []
    failed = False
    for entry in chosen:
        packet = getattr(entry, "packet", None)
        failed = packet is None
        if failed:
            break
        expected.append(packet)
        if isinstance(packet, Disconnect):
            break
    found, error = decode([CONNECT + raw], LIMIT)
    assert found[1:] == expected
    assert (error is not None) == failed


def test_an_error_discards_the_buffer() -> None:
    decoder = Decoder(LIMIT)
    decoder.feed(CONNECT + b"\x00" + bytes(1000))
    assert decoder.error is not None
    assert decoder.error.__traceback__ is None
    assert decoder.error.__context__ is None


# A bound on the packets of one call.


def _publish(payload: bytes, packet_id: int = 0) -> bytes:
    qos = 1 if packet_id else 0
    return encode_publish(b"t", payload, qos, packet_id)


def test_a_bounded_call_leaves_the_rest_for_the_next_one() -> None:
    raw = b"".join(_publish(b"%d" % number, number + 1) for number in range(100))
    decoder = Decoder(LIMIT, at_once=80)
    decoder.feed(CONNECT)
    got = flat(decoder.feed(raw + PINGREQ))
    assert [one.payload for one in got] == [b"%d" % number for number in range(10)]
    calls = 1
    while decoder.more:
        calls += 1
        got += flat(decoder.feed(b""))
    assert calls == 11
    assert [getattr(one, "payload", None) for one in got[:-1]] == [b"%d" % n for n in range(100)]
    assert got[-1] == Pingreq()


def test_new_bytes_come_after_the_remaining_ones() -> None:
    raw = b"".join(_publish(b"%d" % number) for number in range(10))
    decoder = Decoder(LIMIT, at_once=4)
    decoder.feed(CONNECT)
    got = flat(decoder.feed(raw[:50]))
    for part in (raw[50:], b"", b"", b""):
        got += flat(decoder.feed(part))
    assert [one.payload for one in got] == [b"%d" % number for number in range(10)]
    assert not decoder.more


def test_a_violation_behind_the_bound_is_found_when_it_is_reached() -> None:
    decoder = Decoder(LIMIT, at_once=1)
    decoder.feed(CONNECT)
    assert len(decoder.feed(PINGREQ + PINGREQ + b"\x00\x00")) == 1
    assert decoder.error is None
    assert decoder.feed(b"") == [Pingreq()]
    assert decoder.feed(b"") == []
    assert decoder.error is not None


@pytest.mark.parametrize("kind", [0x40, 0x50, 0x62, 0x70])
def test_acknowledgements_are_bounded_too(kind: int) -> None:
    raw = b"".join(bytes((kind, 2, 0, number)) for number in range(1, 101))
    decoder = Decoder(LIMIT, at_once=30)
    decoder.feed(CONNECT)
    found = [*decoder.feed(raw)]
    while decoder.more:
        found += decoder.feed(b"")
    assert [len(one.packet_ids) for one in found] == [30, 30, 30, 10]
    assert [pid for one in found for pid in one.packet_ids] == list(range(1, 101))


def test_packets_of_changing_kinds_count_for_more() -> None:
    """Each batch of similar packets is worked on by itself: a turn could take 30 ms otherwise."""
    pair = encode_publish(b"t", b"", 2, 7) + bytes((0x62, 2, 0, 7))
    decoder = Decoder(LIMIT, at_once=3 * 2 * BATCH_MIN)
    decoder.feed(CONNECT)
    found = decoder.feed(pair * 100)
    assert len(found) == 6
    while decoder.more:
        some = decoder.feed(b"")
        assert len(some) <= 6
        found += some
    assert len(found) == 200


def test_packets_with_topic_filters_count_for_more() -> None:
    """2,000 SUBSCRIBE packets in one turn took 60 ms."""
    decoder = Decoder(LIMIT, at_once=5 * BATCH_MIN)
    decoder.feed(CONNECT)
    raw = encode(Subscribe(7, [("a", 1)])) + encode(Unsubscribe(8, ["a"]))
    calls = [len(decoder.feed(raw * 20))]
    while decoder.more:
        calls.append(len(decoder.feed(b"")))
    assert calls == [5, 5, 5, 5, 5, 5, 5, 5]


@pytest.mark.parametrize("kind", ["subscribe", "unsubscribe"])
def test_the_filters_of_a_large_packet_are_read_in_parts(kind: str) -> None:
    names = [f"f/{number}" for number in range(1000)]
    packet = Subscribe(7, [(name, 1) for name in names]) if kind == "subscribe" else None
    raw = encode(packet or Unsubscribe(7, names))
    decoder = Decoder(LIMIT * 100, at_once=64)
    decoder.feed(CONNECT)
    got = decoder.feed(raw)
    calls = 1
    while not got:
        assert decoder.more
        got = decoder.feed(PINGREQ if calls == 1 else b"")
        calls += 1
    assert calls == 63
    assert got[0] == (packet or Unsubscribe(7, names))
    assert [*got[1:], *decoder.feed(b"")] == [Pingreq()]
    assert not decoder.more


def test_a_bad_filter_at_the_end_of_a_large_packet_is_found_there() -> None:
    raw = encode(Subscribe(7, [(f"f/{number}", 1) for number in range(1000)]))[:-1] + b"\x03"
    decoder = Decoder(LIMIT * 100, at_once=64)
    decoder.feed(CONNECT)
    calls = 0
    while decoder.error is None:
        calls += 1
        assert decoder.feed(raw if calls == 1 else b"") == []
    assert calls == 63
    assert decoder.error.statement == "MQTT-3.8.3-4"
