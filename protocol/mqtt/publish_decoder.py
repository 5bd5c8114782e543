"""The decoder of PUBLISH and its acknowledgements, many at a time.

A publisher sends similar packets: the same first byte, the same length, a topic name of the same
length. Such packets are checked and cut by a few operations in C over the whole run, instead of by
some dozen byte codes each:

- every header byte must be the same in all packets of the run: one strided slice per header byte
  (``data[i::size]``) is compared with that byte repeated. The run is tried in steps that grow, so
  that looking ahead never costs more than a fixed multiple of the packets found;
- the columns (topic names, packet identifiers, payloads) are then cut by a ``struct`` that
  describes 64 packets at once.

Everything else goes through plain loops, in which a packet costs no function call.

These functions get whole packets at ``at``: the decoder has framed the first one, and they continue
as long as complete packets of the same kind follow. They return the offset at which they stopped.
When they raise, the content of the batch so far is valid and precedes the offending packet.
"""

import sys
from array import array
from functools import lru_cache
from struct import Struct
from typing import Any

from protocol.mqtt.packets import Acks, Publishes
from protocol.mqtt.property_codec import decode_text, malformed, violation
from protocol.mqtt.protocol_error import ProtocolError
from protocol.mqtt.remaining_length import encode_length, read_length

_AT_ONCE = (64, 16, 4, 1)
"""Numbers of packets cut by one struct."""
ALIKE = 3
"""Number of packets of one shape in a row after which a run is looked for."""
RUN = 16
"""Length of the shortest run that is faster to read at once than packet by packet."""
_KNOWN_TOPICS = 8192
_KNOWN_TOPIC_SIZE = 256

known_topics: set[bytes] = set()
"""Valid topic names, shared by all connections: at most ``_KNOWN_TOPICS`` of at most
``_KNOWN_TOPIC_SIZE`` bytes. A cache that only saves time: it may be emptied at any time.
"""


def read_publishes(
    data: bytes, at: int, body: int, stop: int, limit: int, batch: Publishes, most: int
) -> int:
    """Read the PUBLISH at ``data[at:stop]``, and similar ones that follow, into ``batch``.

    ``body`` is the offset of its variable header; ``limit`` is the largest packet allowed, in
    bytes, ``most`` the number of packets to read. Returns the offset of the first unread byte.
    Raises ``ProtocolError``.
    """
    first, end, known, identified = data[at], len(data), known_topics, batch.qos > 0
    verbatim = not identified and not batch.retain
    topics, ids, packets, payloads = batch.topics, batch.packet_ids, batch.packets, batch.payloads
    size = name_size = alike = packet_id = 0
    # Where no run is found, the search becomes rarer and rarer.
    enough = ALIKE
    while True:
        # Invariant: the packet data[at:stop] is complete.
        name = body + 2
        name_end = name + (data[body] << 8 | data[body + 1]) if stop >= name else stop + 1
        rest = name_end + 2 if identified else name_end
        if rest > stop:
            raise ProtocolError("PUBLISH ends inside its variable header", "MQTT-4.8.0-1")
        topic = data[name:name_end]
        if topic not in known:
            check_topic(topic)
        if identified:
            packet_id = data[name_end] << 8 | data[name_end + 1]
            if not packet_id:
                raise ProtocolError("PUBLISH with packet identifier 0", "MQTT-2.3.1-1")
            ids.append(packet_id)
        if verbatim:
            packets.append(data[at:stop] if data[body - 1] else _shortest(data, body, stop))
        else:
            payloads.append(data[rest:stop])
        topics.append(topic)

        if size == stop - at and name_size == name_end - name:
            alike += 1
            if alike >= enough and end - stop >= size * RUN:
                room = most - len(topics)
                count = _take_run(data, at, stop, name - at, name_size, batch, room)
                if not count:
                    enough *= 4
                stop += size * count
                alike = 0
            at = stop
        else:
            size, name_size, alike, at = stop - at, name_end - name, 1, stop

        if end - at < 2 or data[at] != first or len(topics) >= most:
            return at
        length = data[at + 1]
        body = at + 2
        if length > 127:
            framed = read_length(data, at + 1)
            if framed is None:
                return at
            length, body = framed
        stop = body + length
        if stop > end or stop - at > limit:
            return at


def read_acks(data: bytes, at: int, batch: Acks, most: int = sys.maxsize) -> int:
    """Read the four-byte acknowledgement at ``at``, and similar ones that follow, into ``batch``.

    At most ``most``. Returns the offset of the first unread byte. Raises ``ProtocolError``.
    """
    head = data[at : at + 2]
    count = 1
    if data[at + 4 : at + 6] == head:
        count = max(1, count_alike(data, at, 4, head, most))
    if count == 1:
        ids = [data[at + 2] << 8 | data[at + 3]]
    else:
        halves = array("H", data[at : at + 4 * count])
        if sys.byteorder == "little":
            halves.byteswap()
        ids = halves[1::2].tolist()
    if not all(ids):
        batch.packet_ids += ids[: ids.index(0)]
        raise ProtocolError(f"{batch.kind.name} with packet identifier 0", "MQTT-2.3.1-1")
    batch.packet_ids += ids
    return at + 4 * count


def check_topic(topic: bytes, *, v5: bool = False) -> None:
    """Raise ``ProtocolError`` unless ``topic`` is a legal topic name; remember it if it is."""
    if not topic:
        if v5:
            raise violation("PUBLISH: empty topic name and no topic alias", "MQTT-4.7.3-1")
        raise malformed("PUBLISH: empty topic name", "MQTT-4.7.3-1")
    if b"+" in topic or b"#" in topic:
        raise malformed("PUBLISH: topic name contains a wildcard", "MQTT-3.3.2-2")
    decode_text(topic, "PUBLISH: topic name", "MQTT-1.5.4-1" if v5 else "MQTT-1.5.3-1")
    if len(topic) <= _KNOWN_TOPIC_SIZE:
        if len(known_topics) >= _KNOWN_TOPICS:
            known_topics.clear()
        known_topics.add(topic)


def count_alike(data: bytes, at: int, size: int, head: bytes, most: int = sys.maxsize) -> int:
    """Count the packets of ``size`` bytes, each beginning with ``head``, that follow from ``at``.

    At most ``most``. Takes time proportional to the packets counted, not to ``most`` or the length
    of ``data``.
    """
    available = min(most, (len(data) - at) // size)
    found, step = 0, 8
    while found < available:
        step = min(step * 4, available - found)
        start = at + found * size
        end = start + step * size
        good = step
        for index, byte in enumerate(head):
            column = data[start + index : end : size]
            if column != bytes((byte,)) * step:
                good = min(good, step - len(column.lstrip(bytes((byte,)))))
        found += good
        if good < step:
            break
    return found


def _take_run(
    data: bytes, at: int, stop: int, offset: int, length: int, batch: Publishes, most: int
) -> int:
    """Append the packets that follow ``data[at:stop]`` and are similar to it to ``batch``.

    At most ``most``. Its topic name of ``length`` bytes begins at ``offset``. Returns the number of
    packets taken: 0 when they are too few, or when the plain loop has to check each: one of them is
    illegal, or their Remaining Length has redundant bytes.
    """
    size, head = stop - at, data[at : at + offset]
    count = count_alike(data, stop, size, head, most)
    if count < RUN or not head[-3]:
        return 0
    run = data[stop : stop + size * count]
    shape, after = f"{offset}x{length}s", size - offset - length
    ids: list[int] = []
    packets: list[bytes] = []
    payloads: list[bytes] = []
    if batch.qos:
        topics, ids, payloads = cut_columns(run, f"{shape}H{after - 2}s", 3)
    elif batch.retain:
        topics, payloads = cut_columns(run, f"{shape}{after}s", 2)
    else:
        (topics,) = cut_columns(run, f"{shape}{after}x", 1)
        (packets,) = cut_columns(run, f"{size}s", 1)
    if not all(ids):
        return 0
    try:
        for topic in set(topics).difference(known_topics):
            check_topic(topic)
    except ProtocolError:
        return 0
    batch.topics += topics
    batch.packet_ids += ids
    if batch.qos or batch.retain:
        batch.payloads.extend(payloads)
    batch.packets += packets
    return count


def _shortest(data: bytes, body: int, stop: int) -> bytes:
    """Return a PUBLISH without the redundant bytes of its Remaining Length.

    The standard lets clients send these; foldmq forwards the packet in the form that every client
    expects.
    """
    return b"\x30" + encode_length(stop - body) + data[body:stop]


def cut_columns(run: bytes, shape: str, width: int) -> list[list[Any]]:
    """Cut a run of packets of one ``shape``, in struct's terms, into its ``width`` columns."""
    columns: list[list[Any]] = [[] for _ in range(width)]
    at, left = 0, len(run) // _struct(shape, 1).size
    for count in _AT_ONCE:
        if left < count:
            continue
        cut = _struct(shape, count)
        for _ in range(left // count):
            fields = cut.unpack_from(run, at)
            at += cut.size
            if width == 1:
                columns[0] += fields
                continue
            for index, column in enumerate(columns):
                column += fields[index::width]
        left %= count
    return columns


@lru_cache(maxsize=1024)
def _struct(shape: str, count: int) -> Struct:
    return Struct(">" + shape * count)
