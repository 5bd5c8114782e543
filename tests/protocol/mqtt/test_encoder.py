"""The packets of a server, byte for byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.mqtt import encoder
from protocol.mqtt.client_packet_encoder import encode_publish
from protocol.mqtt.encoder import (
    PID_BYTES,
    PublishEncoder,
    encode_acks,
    encode_connack,
    encode_suback,
    encode_unsuback,
    publish_head,
)
from protocol.mqtt.packets import ConnectCode, PacketType, Publishes
from protocol.mqtt.protocol_error import ProtocolError
from protocol.mqtt.remaining_length import MAX_REMAINING_LENGTH, encode_length, read_length


@pytest.mark.mqtt("MQTT-3.2.2-4")
def test_connack() -> None:
    assert encode_connack(ConnectCode.ACCEPTED) == b"\x20\x02\x00\x00"
    assert encode_connack(ConnectCode.ACCEPTED, session_present=True) == b"\x20\x02\x01\x00"
    assert (
        encode_connack(ConnectCode.ACCEPTED, session_present=True, version=3) == b"\x20\x02\x00\x00"
    )
    for code in list(ConnectCode)[1:]:
        assert encode_connack(code, session_present=True) == bytes((0x20, 2, 0, code))


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        (PacketType.PUBACK, 0x40),
        (PacketType.PUBREC, 0x50),
        (PacketType.PUBREL, 0x62),
        (PacketType.PUBCOMP, 0x70),
    ],
)
@pytest.mark.parametrize("ids", [[], [1], [65535], [1, 258], range(1, 1000)])
@pytest.mark.mqtt("MQTT-3.6.1-1")
def test_acks(kind: PacketType, first: int, ids: list[int]) -> None:
    assert encode_acks(kind, ids) == b"".join(bytes((first, 2, n >> 8, n & 255)) for n in ids)


def test_acks_of_another_type_or_number() -> None:
    with pytest.raises(KeyError):
        encode_acks(PacketType.CONNACK, [1])
    for wrong in ([65536], [1, 65536]):
        with pytest.raises((OverflowError, IndexError)):
            encode_acks(PacketType.PUBACK, wrong)


def test_suback_and_unsuback() -> None:
    assert (
        encode_suback(258, [0, 1, 2, encoder.SUBSCRIBE_FAILURE])
        == b"\x90\x06\x01\x02\x00\x01\x02\x80"
    )
    assert encode_suback(1, [1] * 126) == b"\x90\x80\x01\x00\x01" + b"\x01" * 126
    assert encode_unsuback(258) == b"\xb0\x02\x01\x02"
    assert encoder.PINGRESP == b"\xd0\x00"


@pytest.mark.parametrize(
    ("length", "encoded"),
    [
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (16_383, b"\xff\x7f"),
        (16_384, b"\x80\x80\x01"),
        (2_097_151, b"\xff\xff\x7f"),
        (2_097_152, b"\x80\x80\x80\x01"),
        (268_435_455, b"\xff\xff\xff\x7f"),
    ],
)
def test_remaining_length(length: int, encoded: bytes) -> None:
    assert encode_length(length) == encoded
    assert read_length(b"\x30" + encoded + b"\x80", 1) == (length, 1 + len(encoded))
    for size in range(len(encoded)):
        assert read_length(encoded[:size], 0) is None


def test_remaining_length_out_of_range() -> None:
    with pytest.raises(ValueError, match="268435456"):
        encode_length(MAX_REMAINING_LENGTH + 1)
    with pytest.raises(ProtocolError, match="four bytes"):
        read_length(b"\x80\x80\x80\x80", 0)


messages = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"a/b", b"x" * 200]),
        st.sampled_from([b"", b"m", b"y" * 121]) | st.binary(max_size=150),
        st.integers(1, 65535),
    ),
    max_size=30,
)


@given(
    messages, st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 9), st.integers(0, 35)
)
@pytest.mark.mqtt("MQTT-3.3.1-1")
def test_outgoing_is_every_message_in_order(
    batch: list[tuple[bytes, bytes, int]],
    qos: int,
    retain: bool,
    dup: bool,
    start: int,
    stop: int,
) -> None:
    outgoing = PublishEncoder([b[0] for b in batch], [b[1] for b in batch], qos, retain=retain)
    raw = [
        encode_publish(topic, payload, qos, number, retain=retain, dup=dup and qos > 0)
        for topic, payload, number in batch
    ]
    ids = [b[2] for b in batch]
    assert len(outgoing) == len(batch)
    # Twice: the second time comes from what the first has kept.
    assert outgoing.render(ids, dup=dup) == b"".join(raw)
    assert outgoing.render(ids, dup=dup) == b"".join(raw)
    assert outgoing.render(ids[start:stop], start, stop, dup=dup) == b"".join(raw[start:stop])
    assert outgoing.render(ids[start:], start, dup=dup) == b"".join(raw[start:])


@pytest.mark.parametrize(("start", "stop"), [(0, 2), (1, 3), (1, 2), (2, None), (0, 9), (3, 3)])
def test_as_many_as_the_window_takes(start: int, stop: int | None) -> None:
    raw = [encode_publish(b"t", b"%d" % number, 1, number) for number in (7, 8, 9)]
    outgoing = PublishEncoder([b"t"] * 3, [b"7", b"8", b"9"], 1)
    assert outgoing.render([7, 8, 9][start:stop], start, stop) == b"".join(raw[start:stop])


@pytest.mark.mqtt("MQTT-3.3.1-2")
@given(
    st.integers(0, 2),
    st.sampled_from([b"t", b"hall/door", b"x" * 300]),
    st.binary(max_size=400),
    st.integers(1, 65_535),
)
def test_the_head_of_one_publish_is_that_of_a_batch(
    qos: int, topic: bytes, payload: bytes, pid: int
) -> None:
    number = PID_BYTES[pid] if qos else b""
    for _ in range(2):  # made, and remembered
        single = publish_head(qos, topic, len(payload)) + number + payload
        assert single == PublishEncoder([topic], [payload], qos).render([pid] if qos else ())


def test_heads_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[tuple[int, bytes, int], bytes] = {}
    monkeypatch.setattr(encoder, "_known_heads", known)
    monkeypatch.setattr(encoder, "_KNOWN_HEADS", 10)
    for size in range(35):
        publish_head(1, b"t", size)
        publish_head(1, b"t" * 257, size)
        assert len(known) <= 10
        assert all(len(topic) == 1 for _, topic, _ in known)


def test_there_is_no_dup_at_qos_0() -> None:
    assert PublishEncoder([b"t"], [b"m"], 0).render(dup=True) == b"\x30\x04\0\1tm"


def test_verbatim() -> None:
    packets = [b"\x30\x04\0\1tm", b"\x30\x03\0\1t"]
    outgoing = PublishEncoder.verbatim(packets)
    assert len(outgoing) == 2
    assert outgoing.render() == b"".join(packets)
    assert outgoing.render(start=1) == packets[1]
    assert outgoing.render(stop=1) == packets[0]
    assert outgoing.render((), 0, 0) == b""


def test_outgoing_that_does_not_fit_together() -> None:
    with pytest.raises(ValueError, match="1 payloads for 2 topics"):
        PublishEncoder([b"a", b"b"], [b""], 0)
    with pytest.raises(ValueError, match="2 packet identifiers for 1 messages"):
        PublishEncoder([b"a"], [b""], 1).render([1, 2])
    with pytest.raises(ValueError, match="0 packet identifiers for 1 messages"):
        PublishEncoder([b"a"], [b""], 2).render()


def test_publishes_compare_by_value() -> None:
    one, other = Publishes(0), Publishes(0, retain=True)
    assert one == other
    one.topics.append(b"t")
    one.packets.append(b"\x30\x04\0\1tm")
    other.topics.append(b"t")
    other.payloads.append(b"m")
    assert one != other
    assert one != [*one]
    assert "topic=b't'" in repr(one)
