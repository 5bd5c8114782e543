"""The packets of a server are decoded as they were encoded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.mqtt.client_packet_encoder import encode_publish
from protocol.mqtt.encoder import (
    PINGRESP,
    encode_acks,
    encode_connack,
    encode_suback,
    encode_unsuback,
)
from protocol.mqtt.packets import Acks, ConnectCode, PacketType, Publish
from protocol.mqtt.server_packet_decoder import (
    Answer,
    SentMessage,
    ServerPacket,
    count_server_packets,
    read_server_packets,
)

PIDS = st.integers(1, 65_535)
ACK_KINDS = st.sampled_from(
    [PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP]
)


@st.composite
def publishes(draw: st.DrawFn) -> tuple[bytes, ServerPacket]:
    topic = draw(st.text("ab/é", min_size=1, max_size=300)).encode()
    payload = draw(st.binary(max_size=300))
    qos, retain = draw(st.integers(0, 2)), draw(st.booleans())
    dup = bool(qos) and draw(st.booleans())
    pid = draw(PIDS) if qos else 0
    raw = encode_publish(topic, payload, qos, pid, retain=retain, dup=dup)
    return raw, SentMessage(Publish(topic, payload, qos, retain, dup, pid))


@st.composite
def acknowledgements(draw: st.DrawFn) -> tuple[bytes, ServerPacket]:
    kind, pids = draw(ACK_KINDS), draw(st.lists(PIDS, min_size=1, max_size=40))
    return encode_acks(kind, pids), Acks(kind, pids)


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, ServerPacket]:
    pid, codes = draw(PIDS), draw(st.lists(st.sampled_from([0, 1, 2, 0x80]), min_size=1))
    code, present = draw(st.sampled_from(ConnectCode)), draw(st.booleans())
    return draw(
        st.sampled_from(
            [
                (
                    encode_connack(code, session_present=present),
                    Answer(PacketType.CONNACK, code, session_present=present and not code),
                ),
                (
                    encode_suback(pid, codes),
                    Answer(PacketType.SUBACK, packet_id=pid, codes=bytes(codes)),
                ),
                (encode_unsuback(pid), Answer(PacketType.UNSUBACK, packet_id=pid)),
                (PINGRESP, Answer(PacketType.PINGRESP)),
            ]
        )
    )


def merged(packets: list[ServerPacket]) -> list[ServerPacket]:
    """Neighbouring acknowledgements of one type are one."""
    found: list[ServerPacket] = []
    for packet in packets:
        last = found[-1] if found else None
        if isinstance(packet, Acks) and isinstance(last, Acks) and last.kind is packet.kind:
            found[-1] = Acks(last.kind, [*last.packet_ids, *packet.packet_ids])
        else:
            found.append(packet)
    return found


def single(packets: list[ServerPacket]) -> int:
    return sum(len(packet) if isinstance(packet, Acks) else 1 for packet in packets)


@given(st.lists(st.one_of(publishes(), acknowledgements(), answers()), max_size=12))
def test_encoded_packets_are_read_back(sent: list[tuple[bytes, ServerPacket]]) -> None:
    data = b"".join(raw for raw, _ in sent)
    read = list(read_server_packets(data, v5=False))
    packets = [packet for _, packet in sent]
    assert [packet for packet, _ in read] == merged(packets)
    assert [stop for _, stop in read] == sorted(stop for _, stop in read)
    assert (read[-1][1] if read else 0) == len(data)
    assert count_server_packets(data, 0, 10_000) == single(packets)


def test_packets_are_read_on_request() -> None:
    data = encode_publish(b"a", b"x") + b"\xff broken"
    reading = read_server_packets(data, v5=False)
    publish = Publish(b"a", b"x", 0, retain=False, dup=False, packet_id=0)
    assert next(reading)[0] == SentMessage(publish)
    with pytest.raises(ValueError, match=r"byte|PacketType"):
        next(reading)


@pytest.mark.parametrize(
    "data", [b"\x30", b"\x30\x05\x00", b"\x10\x00", b"\x00\x00", b"\xe0\x00", b"\x82\x02\x00\x01"]
)
def test_packets_of_clients_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"whole|server|valid"):
        list(read_server_packets(data, v5=False))


def test_of_many_packets_only_some_are_counted() -> None:
    data = PINGRESP * 50
    assert count_server_packets(data, 0, 50) == 50
    assert count_server_packets(data, 0, 10) == 11
    assert count_server_packets(data, 80, 50) == 10
    assert count_server_packets(data, len(data), 50) == 0
    with pytest.raises(ValueError, match="no whole packet"):
        count_server_packets(b"\x30", 0, 5)
