"""The user properties with which replayed messages reach an MQTT 5 client.

They are put before those of the publisher, which could forge later ones: clients read the first.
A block is not parsed for that: its Message Expiry Interval, if it has one, is in the first bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final

from eventstore.display import iso
from eventstore.format.positions import (
    INDEX_BITS,
    MAX_INDEX,
    Position,
    format_position,
    index_of,
    sequence_of,
)
from protocol.mqtt.encoder import PID_BYTES, packet_heads
from protocol.mqtt.message_properties import expiry_of
from protocol.mqtt.property_codec import encode_property
from protocol.mqtt.property_table import USER_PROPERTY
from protocol.mqtt.publish_encoder_v5 import encode_identifiers
from protocol.mqtt.remaining_length import encode_length

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eventstore.log.message_store import Message
    from protocol.mqtt.publish_encoder_v5 import PacketVariant

POSITION: Final = "foldmq-position"
"""Where the message took effect: a replay that begins there goes on with the next one."""
TIME: Final = "foldmq-time"
"""When it was recorded, in UTC."""
STREAM_TIME: Final = "ts"
"""The same as Unix time in microseconds, as in ``stream-offset``; for ``$stream`` only."""
RESUME: Final = "foldmq-resume"
"""With several logs: how far each was read; a replay that begins there goes on."""
GAP: Final = "foldmq-gap"
"""First and last position of a part of the log that was removed before it was read."""
_EXPIRY_BYTES: Final = 5
_HEAD: Final = encode_property(USER_PROPERTY, (POSITION, ""))[:-1]
"""A position up to its length, which is below 256."""
_INDICES: Final = [b"%d" % index for index in range(4096)]
"""The text of the indices of most positions."""


def point_text(at: Position) -> str:
    """Return a position as text; ``12`` is the end of record 12."""
    return str(sequence_of(at)) if index_of(at) == MAX_INDEX else format_position(at)


def with_position(message: Message, at: Position) -> Message:
    """Return a message that is sent again with its position."""
    (block,) = position_blocks((at,), None, (message.block,))
    return message._replace(block=block)


def position_blocks(
    positions: Sequence[Position],
    time_ms: int | None,
    blocks: Sequence[bytes] = (),
    gap: str = "",
    *,
    of_stream: bool = False,
    label: str = "",
    rest: str = "",
) -> list[bytes]:
    """Return the property blocks of messages with their positions.

    ``time_ms`` is the time of all of them, None if it is not known; ``blocks`` are their own
    properties, empty if none has any. ``gap`` comes before the first one. ``of_stream``: the
    subscription is a ``$stream``. With several logs ``label`` is the beginning of the positions,
    such as ``p0:``, and ``rest`` how far the other logs were read, such as ``,p1:7.0``.
    """
    tail = _time_properties(time_ms, of_stream=of_stream) if time_ms is not None else b""
    if label:
        texts = [label + format_position(at) for at in positions]
        added = [
            encode_property(USER_PROPERTY, (POSITION, text))
            + encode_property(USER_PROPERTY, (RESUME, text + rest))
            + tail
            for text in texts
        ]
    else:
        added = [
            b"%b%c%b%b" % (_HEAD, len(text), text, tail)
            for text in [b"%d.%d" % (at >> INDEX_BITS, at & MAX_INDEX) for at in positions]
        ]
    if gap:
        added[0] += encode_property(USER_PROPERTY, (GAP, gap))
    return list(map(_inserted, blocks, added)) if blocks else added


def encode_with_positions(
    topics: Sequence[bytes],
    payloads: Sequence[bytes],
    positions: Sequence[Position],
    time_ms: int,
    variant: PacketVariant,
    packet_ids: Sequence[int] = (),
    *,
    of_stream: bool = False,
) -> bytes:
    """Encode messages of one record without other properties, for a client of MQTT 5.

    The packets are those of messages with :func:`position_blocks`, in less time: in a record only
    the indices of positions differ, and there are few lengths of them. ``positions`` ascend;
    ``packet_ids`` has one packet identifier for each message at QoS 1 and 2.
    """
    qos, sequence = variant.qos, positions[0] >> INDEX_BITS
    first = 0x30 | qos << 1 | variant.retain
    tail = _time_properties(time_ms, of_stream=of_stream) + encode_identifiers(variant)
    record, number = sequence << INDEX_BITS, b"%d." % sequence
    pieces: list[Iterable[bytes]] = []
    begin, count = 0, len(positions)
    while begin < count:
        index = positions[begin] - record
        digits = len(str(index))
        end = bisect_left(positions, record + int(10**digits), begin)
        head = b"%b%c%b" % (_HEAD, len(number) + digits, number)
        properties = encode_length(len(head) + digits + len(tail)) + head
        contents = payloads[begin:end]
        extra = len(properties) + digits + len(tail) + (2 if qos else 0)
        heads = packet_heads(topics[begin:end], list(map(len, contents)), first, extra)
        if positions[end - 1] - record < min(len(_INDICES), index + end - begin):
            indices = _INDICES[index : index + end - begin]
        else:
            indices = [b"%d" % (at - record) for at in positions[begin:end]]
        same, tails = repeat(properties, end - begin), repeat(tail, end - begin)
        if qos:
            ids = map(PID_BYTES.__getitem__, packet_ids[begin:end])
            packets = zip(heads, ids, same, indices, tails, contents, strict=True)
            pieces.append(chain.from_iterable(packets))
        else:
            plain = zip(heads, same, indices, tails, contents, strict=True)
            pieces.append(chain.from_iterable(plain))
        begin = end
    return b"".join(chain.from_iterable(pieces))


def _time_properties(time_ms: int, *, of_stream: bool) -> bytes:
    """Encode the properties that say when messages were recorded."""
    encoded = encode_property(USER_PROPERTY, (TIME, iso(time_ms)))
    if of_stream:
        encoded += encode_property(USER_PROPERTY, (STREAM_TIME, str(time_ms * 1000)))
    return encoded


def _inserted(block: bytes, added: bytes) -> bytes:
    if expiry_of(block) is None:
        return added + block
    return block[:_EXPIRY_BYTES] + added + block[_EXPIRY_BYTES:]
