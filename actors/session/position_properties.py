"""The user properties with which replayed messages reach an MQTT 5 client.

They are put before those of the publisher, which could forge later ones: clients read the first.
A block is not parsed for that: its Message Expiry Interval, if it has one, is in the first bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eventstore.display import iso
from eventstore.format.positions import MAX_INDEX, Position, format_position, index_of, sequence_of
from protocol.mqtt.message_properties import expiry_of
from protocol.mqtt.property_codec import encode_property
from protocol.mqtt.property_table import USER_PROPERTY

if TYPE_CHECKING:
    from eventstore.log.message_store import Message

POSITION: Final = "foldmq-position"
"""Where the message took effect: a replay that begins there goes on with the next one."""
TIME: Final = "foldmq-time"
"""When it was recorded, in UTC."""
GAP: Final = "foldmq-gap"
"""First and last position of a part of the log that was removed before it was read."""
_EXPIRY_BYTES: Final = 5


def point_text(at: Position) -> str:
    """Return a position as text; ``12`` is the end of record 12."""
    return str(sequence_of(at)) if index_of(at) == MAX_INDEX else format_position(at)


def with_position(
    message: Message,
    at: Position,
    time_ms: int | None = None,
    gap: tuple[Position, Position] | None = None,
) -> Message:
    """Return a message with its position, its time, and the gap before it, as far as known."""
    added = encode_property(USER_PROPERTY, (POSITION, format_position(at)))
    if time_ms is not None:
        added += encode_property(USER_PROPERTY, (TIME, iso(time_ms)))
    if gap is not None:
        text = f"{format_position(gap[0])}..{point_text(gap[1])}"
        added += encode_property(USER_PROPERTY, (GAP, text))
    block = message.block
    if expiry_of(block) is None:
        return message._replace(block=added + block)
    return message._replace(block=block[:_EXPIRY_BYTES] + added + block[_EXPIRY_BYTES:])
