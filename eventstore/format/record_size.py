"""How large a record may be, and what must fit into one.

JetStream bounds a message in three places: the server (``max_payload``, headers included), the
stream (``max_msg_size``, the same), and the file store, which takes 32 MiB with all that it writes
around a message. The smallest of them bounds a record, and so an event with its payloads.

Every event that holds no payload fits into :data:`LEAST_RECORD` bytes, however long the names in
it are: what could grow beyond that is spread over several events. An event with the payload of
one message fits if :data:`NAMES` bytes are left beside the payload.
"""

from __future__ import annotations

from typing import Final

LEAST_RECORD: Final = 1024 * 1024
"""Bytes that a record must be able to have: the default of NATS's ``max_payload``."""

STORED_MOST: Final = 32 * 1024 * 1024
"""Bytes of the largest message that JetStream stores in a file, with all that it adds."""
_ADDED = 64
"""Bytes that it adds at most, the subject aside."""

HEADERS: Final = 256
"""Bytes of a record's NATS headers at most."""
STORED_OVERHEAD: Final = 220
"""Bytes that JetStream stores around a record, its headers included, about."""
RECORD_OVERHEAD: Final = 1024
"""Bytes that a record and its NATS headers add to its events at most."""

ENTRIES_AT_ONCE: Final = 4096
"""Entries of one event at most, where they are not bounded otherwise."""

ESCAPED: Final = 6
"""Bytes that one character of a string takes in JSON at most."""
NAME_BYTES: Final = 65_535
"""Bytes of a topic, topic filter or client identifier at most."""

NAMES: Final = 2 * ESCAPED * NAME_BYTES + 4096
"""Bytes that an event with one message takes beside its payload at most, record included."""


def largest_record(max_payload: int, subject: str, max_msg_size: int = -1, refused: int = 0) -> int:
    """Return the bytes of the largest message, headers included, that a stream takes.

    ``max_payload`` is that of the server, ``max_msg_size`` that of the stream (-1: no bound),
    ``refused`` the size of a message that was refused (0: none was): what these do not explain has
    another reason, so that half of it counts.
    """
    stored = STORED_MOST - _ADDED - len(subject)
    largest = min(max_payload, stored)
    if max_msg_size > 0:
        largest = min(largest, max_msg_size)
    return max(LEAST_RECORD, refused // 2) if 0 < refused <= largest else largest


def largest_packet(record: int) -> int:
    """Return the bytes of the largest MQTT packet for which records of ``record`` bytes have room.

    Where records are small, half of them: a packet whose names take more than the other half in
    JSON is refused when it comes.
    """
    return max(record // 2, record - NAMES)
