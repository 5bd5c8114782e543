"""The decoder of PUBLISH (section 3.3) and its acknowledgements, many at a time.

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

MQTT 5 has two additions: property blocks, and topics that are given by a topic alias. The packets
of a run also have the same Property Length; their blocks are cut with the other columns, and each
distinct one is read once. Where no message of a batch has properties, it has no blocks. From the
first alias on a batch is not verbatim, so that its payloads are cut out: an alias belongs to one
connection and is never forwarded.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any

from protocol.mqtt.field_reader import read_frame
from protocol.mqtt.message_properties import (
    ReceivedProperties,
    known_properties,
    read_publish_properties,
)
from protocol.mqtt.packets import Acks, Publishes
from protocol.mqtt.property_codec import (
    BYTES_A_PACKET,
    LARGE_PROPERTIES,
    decode_text,
    find_properties,
    malformed,
    violation,
)
from protocol.mqtt.protocol_error import ProtocolError
from protocol.mqtt.reason_codes import ReasonCode
from protocol.mqtt.remaining_length import encode_length, read_length

_AT_ONCE = (64, 16, 4, 1)
"""Numbers of packets cut by one struct."""
_ALIKE = 3
"""Number of packets of one shape in a row after which a run is looked for."""
_RUN = 16
"""Length of the shortest run that is faster to read at once than packet by packet."""
_KNOWN_TOPICS = 8192
_KNOWN_TOPIC_SIZE = 256

known_topics: set[bytes] = set()
"""Valid topic names, shared by all connections: at most ``_KNOWN_TOPICS`` of at most
``_KNOWN_TOPIC_SIZE`` bytes. A cache that only saves time: it may be emptied at any time.
"""


class TopicAliases:
    """The topics of one connection's topic aliases, in one direction."""

    __slots__ = ("maximum", "topics")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.topics: dict[int, bytes] = {}

    @property
    def size(self) -> int:
        """Size of the stored topics in bytes."""
        return sum(map(len, self.topics.values()))

    def resolve(self, alias: int, topic: bytes) -> bytes:
        """Return the topic of an alias; a topic in the packet replaces it from now on.

        Raises ``ProtocolError``.
        """
        if alias > self.maximum:
            raise violation(
                f"PUBLISH: topic alias is {alias}, at most {self.maximum} are accepted",
                "MQTT-3.3.2-9",
                ReasonCode.TOPIC_ALIAS_INVALID,
            )
        if topic:
            if topic not in known_topics:
                check_topic(topic, v5=True)
            self.topics[alias] = topic
            return topic
        known_topic = self.topics.get(alias)
        if known_topic is None:
            raise violation(f"PUBLISH: topic alias {alias} stands for no topic yet")
        return known_topic


def read_publishes(
    data: bytes,
    at: int,
    body: int,
    stop: int,
    limit: int,
    batch: Publishes,
    most: int,
    aliases: TopicAliases | None = None,
) -> tuple[int, int]:
    """Read the PUBLISH at ``data[at:stop]``, and similar ones that follow, into ``batch``.

    ``body`` is the offset of its variable header; ``limit`` is the largest packet allowed, in
    bytes, ``most`` the number of packets to read: one with a large block counts as several.
    ``aliases`` is None before MQTT 5. Returns the offset of the first unread byte, and the number
    of packets that could still have been read. Raises ``ProtocolError``.
    """
    first, end, known, identified = data[at], len(data), known_topics, batch.qos > 0
    verbatim = not identified and not batch.retain
    topics, ids, packets, payloads = batch.topics, batch.packet_ids, batch.packets, batch.payloads
    columns: _Columns | None = None
    v5 = aliases is not None
    no_properties = 1 if v5 else 0
    batch.blocks = [] if v5 else None
    size = name_size = alike = packet_id = 0
    # Where no run is found, the search becomes rarer and rarer.
    enough = _ALIKE
    while True:
        # Invariant: the packet data[at:stop] is complete.
        name = body + 2
        name_end = name + (data[body] << 8 | data[body + 1]) if stop >= name else stop + 1
        mark = name_end + 2 if identified else name_end
        payload_at = mark + no_properties
        if payload_at > stop:
            statement = "MQTT-4.13.1-1" if v5 else "MQTT-4.8.0-1"
            raise malformed("PUBLISH ends inside its variable header", statement)
        if identified and not (packet_id := data[name_end] << 8 | data[name_end + 1]):
            raise _no_identifier(v5=v5)
        if aliases is not None and (columns is not None or data[mark]):
            columns = columns or _Columns(batch, aliases)
            payload_at = columns.add(data, at, name, name_end, mark, stop)
            most -= columns.work
        else:
            topic = data[name:name_end]
            if topic not in known:
                check_topic(topic, v5=v5)
            if not verbatim:
                payloads.append(data[payload_at:stop])
            else:
                packets.append(data[at:stop] if data[body - 1] else _shortest(data, body, stop))
            topics.append(topic)
        if identified:
            ids.append(packet_id)

        if size == stop - at and name_size == name_end - name:
            alike += 1
            if alike >= enough and end - stop >= size * _RUN:
                parts = at, name, name_end, mark, payload_at, stop
                count = _take_run(data, parts, batch, columns, most - len(topics), aliases)
                if not count:
                    enough *= 4
                stop += size * count
                alike = 0
            at = stop
        else:
            size, name_size, alike, at = stop - at, name_end - name, 1, stop

        if end - at < 2 or data[at] != first or len(topics) >= most:
            return at, most - len(topics)
        length = data[at + 1]
        body = at + 2
        if length > 127:
            framed = read_frame(data, at + 1) if v5 else read_length(data, at + 1)
            length, body = framed or (end, end)
        stop = body + length
        if stop > end or stop - at > limit:
            return at, most - len(topics)


def _no_identifier(*, v5: bool) -> ProtocolError:
    text = "PUBLISH with packet identifier 0"
    return violation(text, "MQTT-2.2.1-3") if v5 else malformed(text, "MQTT-2.3.1-1")


class _Columns:
    """The columns of a batch with a message that has properties."""

    __slots__ = ("aliases", "batch", "blocks", "verbatim", "with_blocks", "work")

    def __init__(self, batch: Publishes, aliases: TopicAliases) -> None:
        self.batch = batch
        self.aliases = aliases
        self.blocks: list[bytes] = []
        self.work = 0
        """Additional work of the last packet, counted in packets, because its block was not
        cached."""
        self.with_blocks = False
        self.verbatim = not batch.qos and not batch.retain

    def add(self, data: bytes, at: int, name: int, name_end: int, mark: int, stop: int) -> int:
        """Append all fields of a packet except the identifier; return the offset of its payload.

        Raises ``ProtocolError``.
        """
        batch, topic, size = self.batch, data[name:name_end], data[mark]
        begin, payload_at = mark + 1, mark + 1 + size
        if size > 127 or payload_at > stop:
            begin, payload_at = find_properties(data, mark, stop, "PUBLISH")
        raw = data[begin:payload_at]
        properties = known_properties.get(raw)
        self.work = 0
        if properties is None:
            properties = read_publish_properties(raw)
            self.work = len(raw) // BYTES_A_PACKET
        if properties.alias:
            topic = self.aliases.resolve(properties.alias, topic)
            if self.verbatim:
                self._end_verbatim()
        elif topic not in known_topics:
            check_topic(topic, v5=True)
        if self.with_blocks:
            self.blocks.append(properties.block)
        elif properties.block:
            self.blocks = batch.blocks = [b""] * len(batch.topics)
            self.with_blocks = True
            self.blocks.append(properties.block)
        if self.verbatim:
            batch.packets.append(data[at:stop])
        else:
            batch.payloads.append(data[payload_at:stop])
        batch.topics.append(topic)
        return payload_at

    def _end_verbatim(self) -> None:
        """Stop keeping whole packets, because one of them has an alias."""
        self.batch.payloads  # noqa: B018 (cuts them out of the packets so far)
        self.batch.packets.clear()
        self.verbatim = False


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
    count, step = 0, 8
    while count < available:
        step = min(step * 4, available - count)
        start = at + count * size
        end = start + step * size
        good = step
        for index, byte in enumerate(head):
            column = data[start + index : end : size]
            if column != bytes((byte,)) * step:
                good = min(good, step - len(column.lstrip(bytes((byte,)))))
        count += good
        if good < step:
            break
    return count


@lru_cache(maxsize=256)
def _format(
    head: int,
    name: int,
    length: int,
    block: int,
    payload: int,
    identified: bool,
    payloads: bool,
) -> tuple[str, int]:
    """Return the format, in struct's terms, that cuts packets whose parts have these sizes.

    The second value is the number of fields: topic, packet identifier if there is one, properties
    if there are some, and the payload if ``payloads``.
    """
    parts = [
        f"{head}x{name}s",
        "H" if identified else "",
        f"{length}x",
        f"{block}s" if block else "",
        f"{payload}s" if payloads else f"{payload}x",
    ]
    return "".join(parts), 1 + identified + (block > 0) + payloads


def _take_run(
    data: bytes,
    parts: tuple[int, int, int, int, int, int],
    batch: Publishes,
    columns: _Columns | None,
    most: int,
    aliases: TopicAliases | None,
) -> int:
    """Append the packets that follow one and are similar to it, up to ``most``.

    ``parts`` are the offsets of its parts: packet, topic name, end of that, Property Length,
    payload, end. Returns the number of packets taken: 0 when they are too few, or when the plain
    loop has to check each, as one of them is illegal or sets a topic alias, or their Remaining
    Length has redundant bytes.
    """
    at, name, name_end, mark, payload_at, stop = parts
    size = stop - at
    width = 0
    if aliases is not None:
        width = 1 if data[mark] < 0x80 else 2 if data[mark + 1] < 0x80 else 3
    block = payload_at - mark - width
    if block > LARGE_PROPERTIES or not data[name - 3]:  # each of them counts as work
        return 0
    count = count_alike(data, stop, size, data[at:name], most)
    for offset in range(mark, mark + width):
        column = data[offset + size : stop + size * count : size]
        count -= len(column.lstrip(data[offset : offset + 1]))
    if count < _RUN:
        return 0
    verbatim = not batch.qos and not batch.retain if columns is None else columns.verbatim
    run = data[stop : stop + size * count]
    sizes = name - at, name_end - name, width, block, stop - payload_at
    fields = cut_columns(run, *_format(*sizes, batch.qos > 0, not verbatim))
    topics = fields.pop(0)
    ids = fields.pop(0) if batch.qos else ()
    raws = fields.pop(0) if block else ()
    if not all(ids):
        return 0
    by_raw: dict[bytes, ReceivedProperties] = {}
    try:
        if raws:
            # Mostly all have the same properties, and to compare is faster than to hash them.
            distinct = {raws[0]} if raws.count(raws[0]) == count else set(raws)
            if len(distinct) * (block // BYTES_A_PACKET) > most:
                return 0
            by_raw = {raw: read_publish_properties(raw) for raw in distinct}
        if aliases is None or name_end > name:
            _check_topics(topics, by_raw, v5=aliases is not None)
        else:
            by_block = {raw: aliases.topics[properties.alias] for raw, properties in by_raw.items()}
            topics = list(map(by_block.__getitem__, raws))
    except (KeyError, ProtocolError):
        return 0
    batch.topics += topics
    batch.packet_ids += ids
    if columns is not None and columns.with_blocks:
        columns.blocks += _blocks(raws, by_raw, count)
    if verbatim:
        (packets,) = cut_columns(run, f"{size}s", 1)
        batch.packets += packets
    else:
        batch.payloads.extend(fields.pop())
    return count


def _blocks(
    raws: Sequence[bytes], by_raw: dict[bytes, ReceivedProperties], count: int
) -> Iterable[bytes]:
    """Return the block of each message of a run."""
    if not raws:
        return [b""] * count
    if len(by_raw) == 1:
        return [by_raw[raws[0]].block] * count
    block_of = {raw: properties.block for raw, properties in by_raw.items()}
    return map(block_of.__getitem__, raws)


def _check_topics(
    topics: list[bytes], by_raw: dict[bytes, ReceivedProperties], *, v5: bool
) -> None:
    """Check the topics of a run.

    Raises ``KeyError`` if one of them sets an alias, ``ProtocolError`` if one is illegal.
    """
    if by_raw and any(properties.alias for properties in by_raw.values()):
        raise KeyError
    for topic in set(topics).difference(known_topics):
        check_topic(topic, v5=v5)


def _shortest(data: bytes, body: int, stop: int) -> bytes:
    """Return a PUBLISH without the redundant bytes of its Remaining Length.

    The standard lets clients send these; foldmq forwards the packet in the form that every client
    expects.
    """
    return b"\x30" + encode_length(stop - body) + data[body:stop]


def cut_columns(run: bytes, shape: str, width: int) -> list[list[Any]]:
    """Cut a run of packets of one ``shape``, in struct's terms, into its ``width`` columns."""
    columns: list[list[Any]] = [[] for _ in range(width)]
    at, remaining = 0, len(run) // _struct(shape, 1).size
    for count in _AT_ONCE:
        if remaining < count:
            continue
        cut = _struct(shape, count)
        for _ in range(remaining // count):
            fields = cut.unpack_from(run, at)
            at += cut.size
            if width == 1:
                columns[0] += fields
                continue
            for index, column in enumerate(columns):
                column += fields[index::width]
        remaining %= count
    return columns


@lru_cache(maxsize=1024)
def _struct(shape: str, count: int) -> Struct:
    return Struct(">" + shape * count)
