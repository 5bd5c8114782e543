"""The bounds on the size of a record.

JetStream limits the size of a message in three places: the server (``max_payload``, headers
included), the stream (``max_msg_size``, likewise), and the file store, which accepts 32 MiB
including its overhead. The smallest of them limits a record, and so an event with its payloads.

Every event without a payload fits into :data:`MIN_RECORD` bytes, however long its names are:
lists that could grow beyond that are split over several events. An event with the payload of one
message fits if :data:`NAMES` bytes are left beside the payload.
"""

from __future__ import annotations

from typing import Final

MIN_RECORD: Final = 1024 * 1024
"""The least that the limit of a record may be, in bytes: the default of NATS's ``max_payload``."""

STORED_MAX: Final = 32 * 1024 * 1024
"""Bytes of the largest message that JetStream stores in a file, overhead included."""
_ADDED = 64
"""Largest overhead of the file store in bytes, the subject aside."""

HEADERS: Final = 256
"""Largest size of a record's NATS headers in bytes."""
STORED_OVERHEAD: Final = 160
"""Approximate number of bytes that JetStream stores around a record, its headers included."""
RECORD_OVERHEAD: Final = 1024
"""Largest number of bytes that a record and its NATS headers add to its events."""

ENTRIES_AT_ONCE: Final = 4096
"""Largest number of entries of one event, where there is no other bound."""

ESCAPED: Final = 6
"""Largest number of bytes that one character of a string takes in JSON."""
NAME_BYTES: Final = 65_535
"""Largest size of a topic, topic filter or client identifier in bytes."""

NAMES: Final = 2 * ESCAPED * NAME_BYTES + 4096
"""Largest number of bytes of an event with one message, without its payload, record included."""


def largest_record(max_payload: int, subject: str, max_msg_size: int = -1, refused: int = 0) -> int:
    """Return the size in bytes of the largest message, headers included, that a stream accepts.

    ``max_payload`` is the limit of the server, ``max_msg_size`` that of the stream (-1: none),
    ``refused`` the size of a refused message (0: none). If neither limit explains the refusal, an
    unknown limit is assumed, and the result is half of ``refused``.
    """
    stored = STORED_MAX - _ADDED - len(subject)
    largest = min(max_payload, stored)
    if max_msg_size > 0:
        largest = min(largest, max_msg_size)
    return max(MIN_RECORD, refused // 2) if 0 < refused <= largest else largest


def largest_packet(record: int) -> int:
    """Return the size of the largest MQTT packet that fits into records of ``record`` bytes.

    If records are small, it is half a record: a packet whose names take more than the other half in
    JSON is refused on arrival.
    """
    return max(record // 2, record - NAMES)
