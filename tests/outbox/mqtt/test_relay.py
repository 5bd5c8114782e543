"""Messages of another broker on their way into this one."""

from collections import Counter
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.mqtt.relay import LocalBusyError, Relay
from outbox.mqtt.topic_lines import TopicMap, parse_topic_line
from protocol.mqtt.client_packet_encoder import encode_connect, encode_publish
from protocol.mqtt.decoder import Decoder
from protocol.mqtt.decoder_v5 import PacketDecoderV5
from protocol.mqtt.encoder import encode_acks
from protocol.mqtt.loop_path import with_logs
from protocol.mqtt.packets import Connect, PacketType, Publish, Publishes
from protocol.mqtt.property_codec import MAX_PROPERTIES, encode_property
from protocol.mqtt.property_table import USER_PROPERTY
from protocol.mqtt.server_packet_decoder import SentMessage

PUBACK, PUBREC, PUBREL, PUBCOMP = (
    *(PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP),
)


def made() -> Relay:
    return Relay(TopicMap([parse_topic_line("cmd/# in 2 site1/ hq/")]), "mylog")


def message(
    topic: bytes = b"hq/cmd/a", qos: int = 2, packet_id: int = 7, block: bytes = b""
) -> SentMessage:
    return SentMessage(Publish(topic, b"x", qos, True, True, packet_id if qos else 0, block))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_passes_with_its_identifier_under_its_local_topic(qos: int) -> None:
    relay = made()
    block = with_logs(b"", "mylog")
    packet = encode_publish(b"site1/cmd/a", b"x", qos, 7, retain=True, dup=True, block=block)
    assert relay.published(message(qos=qos)) == (packet, b"")


def test_the_path_names_a_foldmq_that_a_message_comes_from() -> None:
    relay = made()
    relay.begin(0, "peer")
    for passed, path in (((), ("peer",)), (("a", "peer"), ("a", "peer")), (("a",), ("a", "peer"))):
        block = with_logs(b"", *passed) if passed else b""
        (packet, _) = relay.published(message(qos=1, block=block))
        assert packet.endswith(with_logs(b"", *path, "mylog") + b"x")
    relay.begin(0)
    (packet, _) = relay.published(message(qos=1))
    assert packet.endswith(with_logs(b"", "mylog") + b"x")


def test_a_message_without_room_for_the_path_is_dropped() -> None:
    relay = made()
    full = encode_property(USER_PROPERTY, ("k", "v")) * MAX_PROPERTIES
    assert relay.published(message(block=full)) == (b"", encode_acks(PUBREC, [7]))
    packet, answer = relay.published(message(block=full[7:]))
    assert not answer
    (publishes,) = decoded(packet)
    assert len(publishes.payloads) == 1


def decoded(packet: bytes) -> list[Publishes]:
    """Return a PUBLISH as a foldmq reads it."""
    decoder = Decoder(1 << 20, v5=partial(PacketDecoderV5, 0))
    decoder.feed(encode_connect(Connect(5, "a", True, 0)))
    return [each for each in decoder.feed(packet) if isinstance(each, Publishes)]


def test_acknowledgements_pass_with_their_identifiers() -> None:
    relay = made()
    for kind in (PUBACK, PUBREC, PUBCOMP):
        assert relay.answered(kind, [7, 9]) == encode_acks(kind, [7, 9])
    assert relay.released([7, 9]) == encode_acks(PUBREL, [7, 9])


def test_what_this_broker_never_takes_is_acknowledged() -> None:
    relay = made()
    assert relay.published(message(b"other")) == (b"", encode_acks(PUBREC, [7]))
    block = with_logs(with_logs(b"", "mylog"), "theirs")
    assert relay.published(message(qos=1, block=block)) == (b"", encode_acks(PUBACK, [7]))
    relay.begin(10)
    assert relay.published(message(qos=0)) == (b"", b"")
    assert relay.answered(PUBREC, [7, 8], [0x87, 0]) == encode_acks(PUBREC, [7, 8])
    assert relay.answered(PUBCOMP, [7], [0x92]) == encode_acks(PUBCOMP, [7])


def test_a_broker_without_room_ends_the_connections() -> None:
    with pytest.raises(LocalBusyError):
        made().answered(PUBACK, [7], [0x97])


@given(st.integers(0, 2**32))
def test_qos_2_is_taken_once_over_kills_of_all(seed: int) -> None:
    """A sender with a session, a relay that may be killed, and a broker with a session."""
    random = Random(seed)
    relay, waiting, sent, released = made(), list(range(1, 21)), set[int](), set[int]()
    received, taken = set[int](), Counter[int]()
    to_local: list[tuple[PacketType, int]] = []
    to_peer: list[tuple[PacketType, int]] = []

    def peer_sends() -> None:
        if waiting and len(sent | released) < 5:
            sent.add(waiting.pop(0))
            to_local.append((PacketType.PUBLISH, max(sent)))

    def local_reads() -> None:
        if not to_local:
            return
        kind, number = to_local.pop(0)
        if kind is PacketType.PUBLISH:
            packet, back = relay.published(message(packet_id=number))
            assert packet
            assert not back
            taken[number] += number not in received
            received.add(number)
            to_peer.append((PUBREC, number))
        else:
            assert relay.released([number]) == encode_acks(PUBREL, [number])
            received.discard(number)
            to_peer.append((PUBCOMP, number))

    def peer_reads() -> None:
        if not to_peer:
            return
        kind, number = to_peer.pop(0)
        assert relay.answered(kind, [number]) == encode_acks(kind, [number])
        if kind is PUBREC:
            sent.discard(number)
            released.add(number)
            to_local.append((PUBREL, number))
        else:
            released.discard(number)

    def kill() -> None:
        to_local.clear()
        to_peer.clear()
        to_local.extend((PUBREL, number) for number in sorted(released))
        to_local.extend((PacketType.PUBLISH, number) for number in sorted(sent))

    steps = [peer_sends, local_reads, peer_reads]
    for _ in range(200):
        random.choice([*steps, *steps, kill])()
    for _ in range(200):
        for step in steps:
            step()
    assert taken == Counter(range(1, 21))
