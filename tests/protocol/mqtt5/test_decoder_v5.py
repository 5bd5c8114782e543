"""Framing, runs, aliases and limits at level 5, which the catalogue does not cover."""

from itertools import pairwise

import pytest
from harness.catalogue_v5 import ALIASES, BAD5, CONNECT5, GOOD5, LIMIT
from harness.codec import decode_v5, decoder_v5, encode_v5, flat
from hypothesis import given
from hypothesis import strategies as st

from protocol.mqtt.client_packet_encoder import encode_publish
from protocol.mqtt.encoder import PINGREQ
from protocol.mqtt.message_properties import known_properties, read_publish_properties
from protocol.mqtt.packets import (
    Acks,
    Auth,
    Connect,
    ConnectProperties,
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
from protocol.mqtt.property_codec import encode_properties, encode_property
from protocol.mqtt.protocol_error import ProtocolError
from protocol.mqtt.publish_decoder import TopicAliases
from protocol.mqtt.reason_codes import FROM_CLIENTS, ReasonCode

ACKS = [PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP]

# --- values ----------------------------------------------------------------------------------

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
names = text.map(lambda name: name.translate({43: "", 35: ""})).filter(bool)
filters = names.filter(lambda name: not name.startswith("$share/")) | st.sampled_from(
    ["#", "+/a", "$share/g/+", "$share/g/$share/x"]
)
users = st.lists(st.tuples(text, text), max_size=3).map(tuple)
numbers = st.integers(0, 0xFFFFFFFF)
pids = st.integers(1, 65_535)
blocks = st.builds(
    lambda values, user: read_publish_properties(encode_properties(values, user)).block,
    st.fixed_dictionaries(
        {},
        optional={
            1: st.integers(0, 1),
            2: numbers,
            3: text,
            8: names,
            9: st.binary(max_size=200),
        },
    ),
    users,
)


@st.composite
def connects(draw: st.DrawFn) -> Connect:
    method = draw(st.none() | text)
    properties = ConnectProperties(
        draw(numbers),
        draw(pids),
        draw(numbers),
        draw(st.integers(0, 65_535)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(users),
        method,
        draw(st.none() | st.binary(max_size=20)) if method is not None else None,
    )
    wills = st.builds(Will, names, st.binary(), st.integers(0, 2), st.booleans(), numbers, blocks)
    return Connect(
        5,
        draw(text),
        draw(st.booleans()),
        draw(st.integers(0, 65_535)),
        draw(st.none() | wills),
        draw(st.none() | text),
        draw(st.none() | st.binary(max_size=20)),
        properties,
    )


@st.composite
def publishes(draw: st.DrawFn) -> Publish:
    level = draw(st.integers(0, 2))
    return Publish(
        draw(st.sampled_from([b"t/1", b"t/2"]) | names.map(str.encode)),
        draw(st.sampled_from([b"", b"m", b"x" * 124]) | st.binary(max_size=300)),
        level,
        draw(st.booleans()),
        draw(st.booleans()) if level else False,
        draw(pids) if level else 0,
        draw(st.sampled_from([b"", b"", b"\1\1", b"\2\0\0\0\1"]) | blocks),
    )


@st.composite
def single_acks(draw: st.DrawFn) -> Acks:
    kind = draw(st.sampled_from(ACKS))
    reason = draw(st.just(0) | st.sampled_from(sorted(FROM_CLIENTS[kind])))
    return Acks(kind, [draw(pids)], [reason] if reason else ())


@st.composite
def subscribes(draw: st.DrawFn) -> Subscribe:
    chosen = draw(st.lists(filters, min_size=1, max_size=5))
    options = [
        draw(st.sampled_from([0, 0x08, 0x10, 0x28]))
        | (0 if one.startswith("$share/") else draw(st.sampled_from([0, 4])))
        for one in chosen
    ]
    return Subscribe(
        draw(pids),
        [(one, draw(st.integers(0, 2))) for one in chosen],
        options,
        draw(st.integers(0, 268_435_455)),
        draw(users),
    )


packets = st.one_of(
    publishes(),
    publishes(),
    single_acks(),
    subscribes(),
    st.builds(Unsubscribe, pids, st.lists(filters, min_size=1, max_size=5), users),
    st.builds(Pingreq),
    st.builds(
        Auth,
        st.sampled_from([0x18, 0x19]),
        st.just("m"),
        st.none() | st.binary(max_size=9),
        st.none() | text,
        users,
    ),
)
# Packets as a client sends them: often the same many times over.
streams = st.lists(
    st.tuples(packets, st.sampled_from([1, 1, 2, 5, 20, 70])).map(lambda pair: [pair[0]] * pair[1]),
    max_size=10,
).map(lambda groups: [packet for group in groups for packet in group])
ends = st.none() | st.builds(
    Disconnect,
    st.sampled_from(sorted(FROM_CLIENTS[PacketType.DISCONNECT])),
    st.none() | numbers,
    st.none() | text,
    users,
)
CONNECT_M = b"\x10\x12\0\4MQTT\5\2\0\x3c\4\x15\0\1m\0\1c"


@given(connects())
def test_a_connect_is_read_as_it_was_written(connect: Connect) -> None:
    assert decode_v5([encode_v5(connect)], LIMIT) == ([connect], None)


@given(streams, ends)
@pytest.mark.slow
def test_encoded_packets_are_decoded(
    stream: list[Packet | Publish], end: Disconnect | None
) -> None:
    expected = [*stream, *([end] if end else [])]
    found, error = decode_v5([CONNECT_M + b"".join(map(encode_v5, expected))], LIMIT)
    assert error is None
    assert found[1:] == expected


@given(streams, st.lists(st.integers(0, 5000), max_size=10), st.sampled_from([b"", *BAD5]))
@pytest.mark.slow
def test_it_does_not_matter_how_the_network_cuts(
    stream: list[Packet | Publish], cuts: list[int], last: object
) -> None:
    end = b"" if isinstance(last, bytes) else getattr(last, "raw", b"")
    data = CONNECT_M + b"".join(map(encode_v5, stream)) + end
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    whole, bad = decode_v5([data], LIMIT)
    split, also_bad = decode_v5([data[start:stop] for start, stop in pairwise(places)], LIMIT)
    assert split == whole
    assert str(also_bad) == str(bad)


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_arbitrary_bytes_raise_nothing(pieces: list[bytes]) -> None:
    decode_v5([CONNECT5, *pieces], 1000)


@given(streams, st.integers(1, 200))
@pytest.mark.slow
def test_a_bound_on_the_work_of_a_call_changes_nothing(
    stream: list[Packet | Publish], at_once: int
) -> None:
    data = CONNECT_M + b"".join(map(encode_v5, stream))
    decoder = decoder_v5(LIMIT, at_once=at_once)
    found = decoder.feed(data)
    while decoder.more:
        found += decoder.feed(b"")
    assert decoder.error is None
    assert flat(found)[1:] == stream


# --- runs ------------------------------------------------------------------------------------


def _run(count: int, level: int, block: bytes = b"", *, retain: bool = False) -> list[Publish]:
    return [
        Publish(
            b"run/%d" % (i % 4), b"%09d" % i, level, retain, False, i + 1 if level else 0, block
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 18, 19, 20, 67, 68, 131, 500])
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("size", [0, 2, 130, 17_000])
def test_a_run_is_one_batch(count: int, level: int, retain: bool, size: int) -> None:
    if size > 1000 and count > 20:
        count = 21
    block = b"" if not size else b"\1\1" if size == 2 else encode_property(9, bytes(size - 3))
    messages = _run(count, level, block, retain=retain)
    raw = [encode_v5(message) for message in messages]
    decoder = decoder_v5(1 << 20)
    _, batch = decoder.feed(CONNECT5 + b"".join(raw) + raw[0][:-1])
    assert decoder.error is None
    assert decoder.buffered == len(raw[0]) - 1
    assert isinstance(batch, Publishes)
    assert list(batch) == messages
    assert batch.packets == ([] if level or retain else raw)
    assert batch.blocks == ([block] * count if block else [])
    assert batch.payloads == [message.payload for message in messages]


def test_blocks_that_differ_in_a_run() -> None:
    messages = [
        one._replace(block=encode_property(2, index % 7)) for index, one in enumerate(_run(300, 1))
    ]
    _, batch = decoder_v5(LIMIT).feed(CONNECT5 + b"".join(map(encode_v5, messages)))
    assert isinstance(batch, Publishes)
    assert list(batch) == messages


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("every", [2, 3, 50])
def test_messages_with_and_without_properties_are_one_batch(level: int, every: int) -> None:
    messages = [
        one if index % every else one._replace(block=b"\2\0\0\0\x09")
        for index, one in enumerate(_run(200, level))
    ]
    for stream in (messages, messages[1:]):
        _, batch = decoder_v5(LIMIT).feed(CONNECT5 + b"".join(map(encode_v5, stream)))
        assert isinstance(batch, Publishes)
        assert list(batch) == stream


@pytest.mark.parametrize("at", [0, 1, 5, 30, 60, 99])
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize(
    ("topic", "block", "statement"),
    [
        (b"run/+", b"\1\1", "MQTT-3.3.2-2"),
        (b"run/\xff", b"\1\1", "MQTT-1.5.4-1"),
        (b"run/\0", b"\1\1", "MQTT-1.5.4-2"),
        (b"run/0", b"\1\2", "MQTT-4.13.1-1"),
        (b"run/0", b"\x0b\1", "MQTT-3.3.4-6"),
    ],
)
def test_errors_inside_a_run_are_found(
    at: int, level: int, topic: bytes, block: bytes, statement: str
) -> None:
    messages = _run(100, level, b"\1\1")
    raw = [encode_v5(message) for message in messages]
    raw[at] = encode_publish(topic, b"0" * 9, level, at + 1, block=block)
    found, error = decode_v5([CONNECT5 + b"".join(raw)], LIMIT)
    assert found[1:] == messages[:at]
    assert error is not None
    assert error.statement == statement


@pytest.mark.parametrize(
    "packet",
    [
        Publish(b"t", b"", 0, False, False, 0, b"\x26\0\0\0\0" * 8_000),
        Publish(b"t", b"", 1, False, False, 1, b"\x26\0\0\0\0" * 8_000),
        Subscribe(1, [("t", 0)], [0], 0, (("", ""),) * 8_000),
        Auth(0x18, "m", None, None, (("", ""),) * 8_000),
    ],
    ids=["publish", "publish-QoS-1", "subscribe", "auth"],
)
def test_large_blocks_count_for_the_work_they_are(packet: Packet | Publish) -> None:
    decoder = decoder_v5(1 << 20, at_once=4096)
    decoder.feed(CONNECT_M)
    found = decoder.feed(encode_v5(packet) * 20)
    calls = 1
    while decoder.more:
        calls += 1
        found += decoder.feed(b"")
    assert decoder.error is None
    assert calls >= 10
    if isinstance(packet, (Auth, Subscribe)):
        packet.user = ()  # too many to be kept
    assert flat(found) == [packet] * 20


def test_small_blocks_that_are_not_known_count_as_well() -> None:
    """Each of the packets has user properties of its own, which are read."""
    pairs = b"\x26\0\0\0\0" * 98
    blocks = [pairs + b"\x26\0\x04%04d\0\0" % number for number in range(200)]
    sent = [encode_publish(b"t", b"", 0, block=block) for block in blocks]
    for chosen, calls in ((sent, 10), (sent[:1] * 200, 1)):
        known_properties.clear()
        decoder = decoder_v5(1 << 20, at_once=1024)
        decoder.feed(CONNECT_M)
        found, parts = decoder.feed(b"".join(chosen)), 1
        while decoder.more:
            parts += 1
            found += decoder.feed(b"")
        assert decoder.error is None
        assert len(flat(found)) == 200
        assert parts >= calls
        assert parts == 1 or calls > 1


# --- topic aliases ---------------------------------------------------------------------------


def _aliased(topic: bytes, alias: int, number: int, qos: int, more: bytes = b"") -> bytes:
    return encode_publish(
        topic, b"%03d" % number, qos, number + 1, block=more + encode_property(0x23, alias)
    )


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("count", [1, 5, 100])
@pytest.mark.parametrize("more", [b"", b"\1\1"])
def test_an_alias_is_replaced_by_its_topic(qos: int, count: int, more: bytes) -> None:
    raw = encode_publish(b"plain", b"x", qos, 1, block=b"") + b"".join(
        _aliased(b"a/%d" % alias, alias, alias, qos, more) for alias in range(1, ALIASES + 1)
    )
    raw += b"".join(
        _aliased(b"", number % ALIASES + 1, number, qos, more) for number in range(count)
    )
    _, batch = decoder_v5(LIMIT).feed(CONNECT5 + raw)
    assert isinstance(batch, Publishes)
    assert batch.packets == []
    assert batch.topics == [
        b"plain",
        *(b"a/%d" % alias for alias in range(1, ALIASES + 1)),
        *(b"a/%d" % (number % ALIASES + 1) for number in range(count)),
    ]
    assert batch.blocks == ([b"", *[more] * (ALIASES + count)] if more else [])
    assert batch.payloads[-1] == b"%03d" % (count - 1)
    assert len(batch.payloads) == len(batch)


def test_an_alias_is_redefined_inside_a_run() -> None:
    raw = b"".join(
        _aliased(b"x%d" % number, 1, number, 0) + _aliased(b"", 1, number, 0) * 30
        for number in range(5)
    )
    _, *batches = decoder_v5(LIMIT).feed(CONNECT5 + raw)
    topics = [one.topic for one in flat(batches) if isinstance(one, Publish)]
    assert topics == [b"x%d" % number for number in range(5) for _ in range(31)]


def test_an_unknown_alias_inside_a_run_is_found() -> None:
    good = _aliased(b"x", 1, 0, 1) + _aliased(b"", 1, 1, 1) * 50
    found, error = decode_v5([CONNECT5 + good + _aliased(b"", 2, 2, 1) + good], LIMIT)
    assert len(found) == 52
    assert error is not None
    assert error.reason is ReasonCode.PROTOCOL_ERROR


def test_aliases_end_with_their_connection() -> None:
    decoder_v5(LIMIT).feed(CONNECT5 + _aliased(b"x", 1, 0, 0))
    assert decode_v5([CONNECT5 + _aliased(b"", 1, 0, 0)], LIMIT)[1] is not None


def test_the_table_of_aliases_is_limited() -> None:
    aliases = TopicAliases(2)
    aliases.resolve(1, b"abc")
    aliases.resolve(2, b"de")
    aliases.resolve(1, b"f")
    assert aliases.size == 3
    assert aliases.resolve(1, b"") == b"f"
    with pytest.raises(ProtocolError):
        aliases.resolve(3, b"x")


# --- acknowledgements ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ACKS)
@pytest.mark.parametrize("tail", [b"", b"\0", b"\0\0"])
def test_acknowledgements_are_one_batch(kind: PacketType, tail: bytes) -> None:
    first = bytes((kind << 4 | (2 if kind is PacketType.PUBREL else 0), 2 + len(tail)))
    ids = list(range(1, 65_536, 7))
    raw = b"".join(first + number.to_bytes(2, "big") + tail for number in ids)
    assert decoder_v5(LIMIT).feed(CONNECT5 + raw)[1:] == [Acks(kind, ids)]


@pytest.mark.parametrize("tail", [b"", b"\0"])
def test_reasons_in_a_run_of_acknowledgements(tail: bytes) -> None:
    reasons = [0, 0x97, 0, 0x10] * 20
    first = bytes((0x40, 3 + len(tail)))
    raw = b"".join(first + bytes((0, index + 1, why)) + tail for index, why in enumerate(reasons))
    assert decoder_v5(LIMIT).feed(CONNECT5 + raw)[1:] == [
        Acks(PacketType.PUBACK, list(range(1, 81)), reasons)
    ]
    for bad, statement in ((b"\0\5\x92", "MQTT-3.4.2-1"), (b"\0\0\0", "MQTT-2.2.1-5")):
        found, error = decode_v5([CONNECT5 + raw + first + bad + tail + raw], LIMIT)
        assert len(found) == 81
        assert error is not None
        assert error.statement == statement


def test_an_acknowledgement_with_properties_ends_a_run() -> None:
    short, long = b"\x40\4\0\1\0\0", b"\x40\x0b\0\2\x10\7\x26\0\1k\0\1v"
    found, error = decode_v5([CONNECT5 + short * 30 + long + short * 30], LIMIT)
    assert error is None
    assert [one.packet_ids for one in found[1:] if isinstance(one, Acks)] == (
        [[1]] * 30 + [[2]] + [[1]] * 30
    )


# --- limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["subscribe", "unsubscribe"])
def test_the_filters_of_a_large_packet_are_read_in_parts(kind: str) -> None:
    names = [f"$share/g/{number}" if number % 3 else f"f/{number}" for number in range(1000)]
    packet: Subscribe | Unsubscribe = Unsubscribe(7, names)
    if kind == "subscribe":
        packet = Subscribe(7, [(name, 1) for name in names], [0x10] * 1000, 9)
    decoder = decoder_v5(LIMIT * 100, at_once=64)
    decoder.feed(CONNECT5)
    got, calls = decoder.feed(encode_v5(packet)), 1
    while not got:
        assert decoder.more
        got = decoder.feed(PINGREQ if calls == 1 else b"")
        calls += 1
    assert calls == 63
    assert got[0] == packet
    assert [*got[1:], *decoder.feed(b"")] == [Pingreq()]


@given(st.lists(st.sampled_from([*GOOD5, *BAD5]), max_size=8))
def test_any_sequence_of_the_catalogue_stops_at_the_first_violation(
    entries: list[object],
) -> None:
    chosen = [entry for entry in entries if getattr(entry, "after", None) == CONNECT5]
    expected: list[object] = []
    failed = False
    for entry in chosen:
        packet = getattr(entry, "packet", None)
        failed = packet is None
        # An alias that one packet set makes another legal.
        if failed and "unknown alias" in getattr(entry, "name", ""):
            return
        if failed:
            break
        expected.append(packet)
        if isinstance(packet, Disconnect):
            break
    raw = b"".join(getattr(entry, "raw", b"") for entry in chosen)
    found, error = decode_v5([CONNECT5 + raw], LIMIT)
    assert found[1:] == expected
    assert (error is not None) == failed
