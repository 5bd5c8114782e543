"""The decoder of PUBLISH in MQTT 5 (section 3.3), many at a time.

It works like ``protocol.mqtt.publish_decoder``, with two additions: property blocks, and topics
that are given by a topic alias. The packets of a run also have the same Property Length; their
blocks are cut with the other columns, and each distinct one is read once.

Where no message of a batch has properties, it has no blocks. From the first alias on a batch is not
verbatim, so that its payloads are cut out: an alias belongs to one connection and is never
forwarded.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from protocol.mqtt.field_reader import read_frame
from protocol.mqtt.message_properties import (
    ReceivedProperties,
    known_properties,
    read_publish_properties,
)
from protocol.mqtt.packets import Publishes
from protocol.mqtt.property_codec import (
    BYTES_A_PACKET,
    LARGE_PROPERTIES,
    find_properties,
    malformed,
    violation,
)
from protocol.mqtt.protocol_error import ProtocolError
from protocol.mqtt.publish_decoder import (
    ALIKE,
    RUN,
    check_topic,
    count_alike,
    cut_columns,
    known_topics,
)
from protocol.mqtt.reason_codes import ReasonCode


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
        found = self.topics.get(alias)
        if found is None:
            raise violation(f"PUBLISH: topic alias {alias} stands for no topic yet")
        return found


def read_publishes_v5(
    data: bytes,
    at: int,
    body: int,
    stop: int,
    limit: int,
    batch: Publishes,
    most: int,
    aliases: TopicAliases,
) -> tuple[int, int]:
    """Read the PUBLISH at ``data[at:stop]``, and similar ones that follow, into ``batch``.

    ``batch`` has an empty list of blocks. ``body`` is the offset of the variable header; ``limit``
    is the largest packet allowed, in bytes, ``most`` the number of packets to read: one with a
    large block counts as several. Returns the offset of the first unread byte, and the number of
    packets that could still have been read. Raises ``ProtocolError``.
    """
    first, end, known, identified = data[at], len(data), known_topics, batch.qos > 0
    verbatim = not identified and not batch.retain
    topics, ids, packets, payloads = batch.topics, batch.packet_ids, batch.packets, batch.payloads
    columns: _Columns | None = None
    size = name_size = alike = rest = packet_id = 0
    enough = ALIKE
    while True:
        # Invariant: the packet data[at:stop] is complete.
        name = body + 2
        name_end = name + (data[body] << 8 | data[body + 1]) if stop >= name else stop
        mark = name_end + 2 if identified else name_end
        if mark >= stop:
            raise malformed("PUBLISH ends inside its variable header")
        if identified and not (packet_id := data[name_end] << 8 | data[name_end + 1]):
            raise violation("PUBLISH with packet identifier 0", "MQTT-2.2.1-3")
        if data[mark] or columns is not None:
            columns = columns or _Columns(batch, aliases)
            rest = columns.add(data, at, name, name_end, mark, stop)
            most -= columns.work
        else:
            topic = data[name:name_end]
            if topic not in known:
                check_topic(topic, v5=True)
            if verbatim:
                packets.append(data[at:stop])
            else:
                payloads.append(data[mark + 1 : stop])
            topics.append(topic)
        if identified:
            ids.append(packet_id)

        if size == stop - at and name_size == name_end - name:
            alike += 1
            if alike >= enough and end - stop >= size * RUN:
                parts = at, name, name_end, mark, mark + 1 if columns is None else rest, stop
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
            length, body = read_frame(data, at + 1) or (end, end)
        stop = body + length
        if stop > end or stop - at > limit:
            return at, most - len(topics)


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
        begin, rest = mark + 1, mark + 1 + size
        if size > 127 or rest > stop:
            begin, rest = find_properties(data, mark, stop, "PUBLISH")
        raw = data[begin:rest]
        found = known_properties.get(raw)
        self.work = 0
        if found is None:
            found = read_publish_properties(raw)
            self.work = len(raw) // BYTES_A_PACKET
        if found.alias:
            topic = self.aliases.resolve(found.alias, topic)
            if self.verbatim:
                self._end_verbatim()
        elif topic not in known_topics:
            check_topic(topic, v5=True)
        if self.with_blocks:
            self.blocks.append(found.block)
        elif found.block:
            self.blocks = batch.blocks = [b""] * len(batch.topics)
            self.with_blocks = True
            self.blocks.append(found.block)
        if self.verbatim:
            batch.packets.append(data[at:stop])
        else:
            batch.payloads.append(data[rest:stop])
        batch.topics.append(topic)
        return rest

    def _end_verbatim(self) -> None:
        """Stop keeping whole packets, because one of them has an alias."""
        self.batch.payloads  # noqa: B018 (cuts them out of the packets so far)
        self.batch.packets.clear()
        self.verbatim = False


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
    aliases: TopicAliases,
) -> int:
    """Append the packets that follow one and are similar to it, up to ``most``.

    ``parts`` are the offsets of its parts: packet, topic name, end of that, Property Length,
    payload, end. Returns the number of packets taken: 0 when they are too few, or when the plain
    loop has to check each, as one of them is illegal or sets a topic alias.
    """
    at, name, name_end, mark, rest, stop = parts
    size = stop - at
    width = 1 if data[mark] < 0x80 else 2 if data[mark + 1] < 0x80 else 3
    block = rest - mark - width
    if block > LARGE_PROPERTIES:  # each of them counts as work
        return 0
    count = count_alike(data, stop, size, data[at:name], most)
    for offset in range(mark, mark + width):
        column = data[offset + size : stop + size * count : size]
        count -= len(column.lstrip(data[offset : offset + 1]))
    if count < RUN:
        return 0
    verbatim = not batch.qos and not batch.retain if columns is None else columns.verbatim
    run = data[stop : stop + size * count]
    sizes = name - at, name_end - name, width, block, stop - rest
    fields = cut_columns(run, *_format(*sizes, batch.qos > 0, not verbatim))
    topics = fields.pop(0)
    ids = fields.pop(0) if batch.qos else ()
    raws = fields.pop(0) if block else ()
    if not all(ids):
        return 0
    found: dict[bytes, ReceivedProperties] = {}
    try:
        if raws:
            # Mostly all have the same properties, and to compare is faster than to hash them.
            distinct = {raws[0]} if raws.count(raws[0]) == count else set(raws)
            if len(distinct) * (block // BYTES_A_PACKET) > most:
                return 0
            found = {raw: read_publish_properties(raw) for raw in distinct}
        if name_end > name:
            _check_topics(topics, found)
        else:
            by_block = {raw: aliases.topics[one.alias] for raw, one in found.items()}
            topics = list(map(by_block.__getitem__, raws))
    except (KeyError, ProtocolError):
        return 0
    batch.topics += topics
    batch.packet_ids += ids
    if columns is not None and columns.with_blocks:
        columns.blocks += _blocks(raws, found, count)
    if verbatim:
        (packets,) = cut_columns(run, f"{size}s", 1)
        batch.packets += packets
    else:
        batch.payloads.extend(fields.pop())
    return count


def _blocks(
    raws: Sequence[bytes], found: dict[bytes, ReceivedProperties], count: int
) -> Iterable[bytes]:
    """Return the block of each message of a run."""
    if not raws:
        return [b""] * count
    if len(found) == 1:
        return [found[raws[0]].block] * count
    by_raw = {raw: one.block for raw, one in found.items()}
    return map(by_raw.__getitem__, raws)


def _check_topics(topics: list[bytes], found: dict[bytes, ReceivedProperties]) -> None:
    """Check the topics of a run.

    Raises ``KeyError`` if one of them sets an alias, ``ProtocolError`` if one is illegal.
    """
    if found and any(one.alias for one in found.values()):
        raise KeyError
    for topic in set(topics).difference(known_topics):
        check_topic(topic, v5=True)
