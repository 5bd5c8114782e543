"""Divides messages among records, which are bounded in size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore.format.record_size import ESCAPED
from eventstore.log.journal import ENTRY_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.mqtt.packets import Publishes


def split_for_records(packet: Publishes, limit: int) -> list[Publishes]:
    """Return a packet in parts that take at most ``limit`` bytes of a record, without names.

    Each part has at least one message.
    """
    payloads, topics = packet.payloads, packet.topics
    count = len(payloads)
    blocks: Sequence[bytes] = packet.blocks or ()
    size = sum(map(len, payloads)) + ESCAPED * sum(map(len, topics)) + ENTRY_BYTES * count
    size += sum(map(len, blocks))
    if count <= 1 or size <= limit:
        return [packet] if count else []
    parts: list[range] = []
    begin = total = 0
    for at, payload in enumerate(payloads):
        need = len(payload) + ESCAPED * len(topics[at]) + ENTRY_BYTES
        if blocks:
            need += len(blocks[at])
        total += need
        if total > limit and at > begin:
            parts.append(range(begin, at))
            begin, total = at, need
    parts.append(range(begin, count))
    return [packet.select(part) for part in parts]
