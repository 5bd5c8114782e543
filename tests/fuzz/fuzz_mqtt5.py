"""Fuzzes the decoder as a client at level 5: no input raises, however it is cut.

Decoded packets are also encoded again, and must be decoded as equal ones. Blocks of messages must
be readable by a server's reader, and in the order that the broker relies on.
"""

import random
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "fuzz")]

from damage import check_many, damage, run_script

from protocol.mqtt.client_packet_encoder import encode_publish
from protocol.mqtt.decoder import Decoder
from protocol.mqtt.decoder_v5 import PacketDecoderV5
from protocol.mqtt.message_properties import (
    decode_message_properties,
    expiry_of,
    read_publish_properties,
)
from protocol.mqtt.packets import (
    Acks,
    Packet,
    Publishes,
)
from protocol.mqtt.publish_encoder_v5 import PacketVariant, TopicAliasMode, prepare_publishes
from protocol.mqtt.server_packet_decoder import SentMessage, read_server_packets

CONNECT = b"\x10\x0e\0\4MQTT\5\2\0\x3c\0\0\1c"
SEEDS = [
    CONNECT,
    b"\x10\x12\0\4MQTT\5\2\0\x3c\4\x15\0\1m\0\1c",
    (
        b"\x10\x33\0\4MQTT\5\xee\0\x3c\x05\x11\0\0\0\x09\0\1c\x11\x18\0\0\0\5\2\0\0\0\x0a\x26\0\1a\0\1b"
        b"\0\1w\0\3bye\0\1u\0\1p"
    ),
    b"\x30\x06\0\1t\0mm",
    b"\x30\x0d\0\1t\7\1\0\2\0\0\0\x09mm",
    b"\x31\x0c\0\1t\7\x26\0\1k\0\1vm",
    b"\x32\x0b\0\1t\0\1\3\x23\0\1mm",
    b"\x32\x0a\0\0\0\1\3\x23\0\1mm",
    (
        b"\x34\x2a\0\1t\0\1\x23\2\0\0\0\x3c\1\1\3\0\3t/x\x08\0\1r\x09\0\2\0\1\x26\0\1k\0\1v"
        b"\x26\0\1a\0\0m"
    ),
    b"\x40\2\0\1",
    b"\x40\3\0\1\x10",
    b"\x50\4\0\1\0\0",
    b"\x62\x0e\0\1\x92\x0a\x1f\0\2no\x26\0\0\0\0",
    b"\x82\x0d\0\1\0\0\1#\x2d\0\3a/+\2",
    b"\x82\x11\0\1\x0a\x0b\xac\2\x26\0\1k\0\1v\0\1t\0",
    b"\x82\x10\0\1\0\0\x0a$share/g/#\1",
    b"\xa2\x13\0\1\0\0\1#\0\x0b$share/g/+/",
    b"\xc0\0",
    b"\xf0\x0b\x18\x09\x15\0\1m\x16\0\2\0\1",
    b"\xe0\0",
    b"\xe0\x12\x80\x10\x11\0\0\0\0\x1f\0\1x\x26\0\1k\0\1v",
]
LIMIT = 100_000


def decoder() -> Decoder:
    """Make a decoder for clients of all levels."""
    return Decoder(LIMIT, v5=partial(PacketDecoderV5, 5))


def flat(packets: list[Packet]) -> list[object]:
    """One item per packet, however the packets were put into batches."""
    items: list[object] = []
    for packet in packets:
        if isinstance(packet, Publishes):
            items += packet
        elif isinstance(packet, Acks):
            reasons = packet.reasons or [0] * len(packet)
            items += zip([packet.kind] * len(packet), packet.packet_ids, reasons, strict=True)
        else:
            items.append(packet)
    return items


def check(data: bytes) -> int:
    """Decode ``data`` whole and in pieces; raises if they differ, gives the number of packets."""
    whole = decoder()
    batches = whole.feed(data)
    expected = flat(batches)
    for step in (1, 7):
        pieces = decoder()
        found: list[object] = []
        for at in range(0, len(data), step):
            found += flat(pieces.feed(data[at : at + step]))
        if found != expected or str(pieces.error) != str(whole.error):
            raise AssertionError(f"pieces of {step} bytes decode to something else")
        if pieces.level != whole.level:
            raise AssertionError("pieces are of another level")
    if whole.error is not None and whole.feed(CONNECT):
        raise AssertionError("packets after an error")
    if whole.level == 5:
        for batch in batches:
            if isinstance(batch, Publishes):
                check_messages(batch)
    return len(expected)


def check_messages(batch: Publishes) -> None:
    """Write what was read, as a client and as a server would, and read it again."""
    for message in batch:
        known = read_publish_properties(message.block)
        said = decode_message_properties(message.block)
        if known.block != message.block or known.alias or said.expiry != expiry_of(message.block):
            raise AssertionError("a block is not in its order")
    raw = b"".join(
        encode_publish(
            one.topic,
            one.payload,
            one.qos,
            one.packet_id,
            retain=one.retain,
            dup=one.dup,
            block=one.block,
        )
        for one in batch
    )
    again = decoder()
    if flat(again.feed(CONNECT + raw))[1:] != list(batch) or again.error is not None:
        raise AssertionError("what is written is not what was read")
    numbers = {topic: index + 1 for index, topic in enumerate(dict.fromkeys(batch.topics))}
    variant = PacketVariant(batch.qos, 5, batch.retain, (1, 300), 0, TopicAliasMode.SET)
    outgoing = prepare_publishes(batch.topics, batch.payloads, batch.blocks or (), variant, numbers)
    raw = outgoing.render(batch.packet_ids)
    sent = [packet for packet, _ in read_server_packets(raw, v5=True)]
    for one, message in zip(sent, batch, strict=True):
        if not isinstance(one, SentMessage) or one.identifiers != (1, 300):
            raise AssertionError("a message lost its identifiers")
        if one.publish != message._replace(dup=False) or one.alias != numbers[message.topic]:
            raise AssertionError("a message is not sent as it came")


def one(data: bytes) -> None:
    """Decode ``data`` behind a CONNECT, and as it is; raises if there is a defect."""
    check(data)
    check(CONNECT + data)


def damaged(rng: random.Random) -> bytes:
    """Legal packets, often many alike, with a few bytes changed, added or taken away."""
    data = bytearray(rng.choice(SEEDS[:2]) if rng.random() < 0.9 else b"")
    for _ in range(rng.randrange(1, 8)):
        data += rng.choice(SEEDS[3:-2] if rng.random() < 0.95 else SEEDS) * rng.choice(
            (1, 1, 3, 30, 90)
        )
    return damage(rng, data)


def run(iterations: int, seed: int) -> int:
    """Check ``iterations`` inputs; the same seed gives the same inputs. Gives the packets seen."""
    return check_many(damaged, check, iterations, seed)


if __name__ == "__main__":
    run_script(run, sys.argv[1:])
