"""The catalogue, decoded whole, byte by byte, cut everywhere and two at once; and encoded."""

from collections.abc import Sequence

import pytest
from codec_helpers import decode, encode
from harness.catalogue import BAD, CONNECT, CONNECT_3_1, GOOD, LIMIT, Bad, Good
from harness.client_packets import bytewise

from protocol.mqtt.connect_decoder import parse_connect
from protocol.mqtt.packets import Acks, Connect, Disconnect, Packet, PacketType, Publish

_MAX_CUTS = 200


def _cases(entries: Sequence[Good | Bad]) -> list[object]:
    return [
        pytest.param(
            entry,
            id=entry.name,
            marks=[pytest.mark.mqtt(entry.statement)] if entry.statement else [],
        )
        for entry in entries
    ]


AFTER_CONNECT = [entry for entry in GOOD if entry.after == CONNECT]


def _before(entry: Good | Bad) -> list[Connect]:
    return [parse_connect(entry.after[2:])] if entry.after else []


def _cuts(raw: bytes) -> list[list[bytes]]:
    """The packet whole, byte by byte, and in two at every position (near both ends if long)."""
    positions = range(1, len(raw))
    near = [at for at in positions if at < _MAX_CUTS or at > len(raw) - _MAX_CUTS]
    return [[raw], bytewise(raw), *([raw[:at], raw[at:]] for at in near)]


def test_the_names_are_distinct() -> None:
    names = [*(entry.name for entry in GOOD), *(entry.name for entry in BAD)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("entry", _cases(GOOD))
def test_good(entry: Good) -> None:
    for pieces in _cuts(entry.raw):
        packets, error = decode([entry.after, *pieces], LIMIT)
        assert error is None
        assert packets == [*_before(entry), entry.packet]


@pytest.mark.parametrize("entry", _cases([entry for entry in GOOD if entry.shortest]))
def test_valid_packets_equal_the_output_of_the_encoder(entry: Good) -> None:
    assert encode(entry.packet) == entry.raw


@pytest.mark.parametrize(
    "first",
    _cases([entry for entry in AFTER_CONNECT if not isinstance(entry.packet, Disconnect)]),
)
def test_good_two_at_once(first: Good) -> None:
    for second in AFTER_CONNECT:
        packets, error = decode([CONNECT + first.raw + second.raw], LIMIT)
        assert error is None
        assert packets[1:] == [first.packet, second.packet]


@pytest.mark.parametrize("entry", _cases(BAD))
def test_bad(entry: Bad) -> None:
    for pieces in _cuts(entry.raw):
        packets, error = decode([entry.after, *pieces, b"\xc0\x00", CONNECT], LIMIT)
        assert packets == _before(entry)
        assert error is not None
        assert (error.statement, error.connack) == (entry.statement, entry.connack)
        assert entry.statement in str(error)
        assert error.text in str(error)


@pytest.mark.mqtt("MQTT-4.8.0-1")
@pytest.mark.parametrize("entry", _cases([entry for entry in BAD if entry.after == CONNECT]))
def test_bad_loses_nothing_before_it(entry: Bad) -> None:
    before: list[Packet | Publish] = [
        Publish(b"t", b"m", 0, False, False, 0),
        Publish(b"t", b"m", 1, False, False, 1),
        Acks(PacketType.PUBACK, [5]),
    ]
    raw = b"".join(map(encode, before))
    packets, error = decode([CONNECT + raw + entry.raw], LIMIT)
    assert packets == [*_before(entry), *before]
    assert error is not None
    assert error.statement == entry.statement


@pytest.mark.mqtt("MQTT-3.6.1-1", "MQTT-3.8.1-1", "MQTT-3.10.1-1")
@pytest.mark.parametrize("raw", [b"\x6a\x02\0\1", b"\x8a\x06\0\1\0\1t\0", b"\xaa\x05\0\1\0\1t"])
def test_dup_on_other_packets_is_only_for_3_1(raw: bytes) -> None:
    assert decode([CONNECT_3_1 + raw], LIMIT)[1] is None
    assert decode([CONNECT + raw], LIMIT)[1] is not None
