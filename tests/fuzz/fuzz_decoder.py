"""Fuzzes the decoder: no input raises, and the pieces in which it arrives do not matter.

    python tests/fuzz/fuzz_decoder.py [ITERATIONS [SEED]]

Run this way, the inputs are sequences of legal packets, damaged in a few places. ``run.py decoder``
lets coverage guide it. An input that fails is printed, to be added to the catalogue in
tests/protocol.
"""

import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "fuzz")]

from damage import check_many, damage, run_script

from protocol.mqtt.decoder import Decoder
from protocol.mqtt.packets import (
    Acks,
    Packet,
    Publishes,
)

CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01c"
SEEDS = [
    CONNECT,
    b"\x10\x1f\x00\x04MQTT\x04\xf6\x00\x3c\x00\x01c\x00\x03w/t\x00\x03bye\x00\x01u\x00\x02\x00\xff",
    b"\x10\x0f\x00\x06MQIsdp\x03\x02\x00\x3c\x00\x01c",
    b"\x30\x05\x00\x01tmm",
    b"\x31\x04\x00\x01tm",
    b"\x32\x06\x00\x01t\x00\x01m",
    b"\x3c\x06\x00\x01t\x00\x01m",
    b"\x40\x02\x01\x02",
    b"\x62\x02\x00\x01",
    b"\x82\x0e\x00\x01\x00\x01#\x00\x00\x05a/+/b\x02",
    b"\xa2\x09\x00\x01\x00\x01#\x00\x02a/",
    b"\xc0\x00",
    b"\xe0\x00",
]
LIMIT = 100_000


def flat(packets: list[Packet]) -> list[object]:
    """One item per packet, however the packets were put into batches."""
    items: list[object] = []
    for packet in packets:
        if isinstance(packet, Publishes):
            items += packet
        elif isinstance(packet, Acks):
            items += [(packet.kind, packet_id) for packet_id in packet.packet_ids]
        else:
            items.append(packet)
    return items


def check(data: bytes) -> int:
    """Decode ``data`` whole and in pieces; raises if they differ, gives the number of packets."""
    whole = Decoder(LIMIT)
    expected = flat(whole.feed(data))
    for step in (1, 7):
        pieces = Decoder(LIMIT)
        found: list[object] = []
        for at in range(0, len(data), step):
            found += flat(pieces.feed(data[at : at + step]))
        if found != expected or str(pieces.error) != str(whole.error):
            raise AssertionError(f"pieces of {step} bytes decode to something else")
    if whole.error is not None and whole.feed(CONNECT):
        raise AssertionError("packets after an error")
    return len(expected)


def one(data: bytes) -> None:
    """Decode ``data``; raises if there is a defect."""
    check(data)


def damaged(rng: random.Random) -> bytes:
    """Legal packets, often many alike, with a few bytes changed, added or taken away."""
    data = bytearray(CONNECT if rng.random() < 0.9 else b"")
    for _ in range(rng.randrange(1, 8)):
        data += rng.choice(SEEDS[3:] if rng.random() < 0.9 else SEEDS) * rng.choice(
            (1, 1, 3, 30, 90)
        )
    return damage(rng, data)


def run(iterations: int, seed: int) -> int:
    """Check ``iterations`` inputs; the same seed gives the same inputs. Gives the packets seen."""
    return check_many(damaged, check, iterations, seed)


if __name__ == "__main__":
    run_script(run, sys.argv[1:])
