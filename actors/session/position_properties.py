"""The user properties with which replayed messages reach an MQTT 5 client.

They are put before those of the publisher, which could forge later ones: clients read the first.
A block is not parsed for that: its Message Expiry Interval, if it has one, is in the first bytes.
"""

from __future__ import annotations

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
from protocol.mqtt.message_properties import expiry_of
from protocol.mqtt.property_codec import encode_property
from protocol.mqtt.property_table import USER_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventstore.log.message_store import Message

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
    tail = encode_property(USER_PROPERTY, (TIME, iso(time_ms))) if time_ms is not None else b""
    if of_stream and time_ms is not None:
        tail += encode_property(USER_PROPERTY, (STREAM_TIME, str(time_ms * 1000)))
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


def _inserted(block: bytes, added: bytes) -> bytes:
    if expiry_of(block) is None:
        return added + block
    return block[:_EXPIRY_BYTES] + added + block[_EXPIRY_BYTES:]
