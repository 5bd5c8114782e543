"""Disk use: the bytes of a log by topic and by client.

The payloads and properties of a message count for its topic and its publisher. The rest of a
record, its header, is divided equally among its entries: an entry about a message counts for the
topic of the message, and for the client of its event. So the parts add up to the size of the log.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from eventstore.format.positions import INDEX_BITS, Position, count_runs, from_runs
from eventstore.format.records import Record
from eventstore.reading.indexed_reading import check_known
from projections.state.inconsistent_events import INCONSISTENCIES, inconsistency

MAX_NAMES: Final = 10_000
"""Maximum number of topics, and of clients; bytes of others count for ``None``."""
_REMEMBERED: Final = 65_536
"""Number of the latest messages whose topics are remembered, for entries about them."""
_MESSAGES: Final = frozenset({"MessagePublished", "MessagesCarried", "RetainedSnapshot"})
_BY_IDENTIFIER: Final = frozenset(
    {"Acked", "Received", "Refused", "Completed", "Redelivered", "Returned", "InboundReplaced"}
)
"""Events with an entry for each packet identifier, which does not contain the topic."""


class DiskUse:
    """The bytes of some records of a log."""

    def __init__(self) -> None:
        self.bytes = 0
        self.records = 0
        self.topics: Counter[str | None] = Counter()
        """Bytes by topic; None: of entries about no topic, or an unknown one."""
        self.clients: Counter[str | None] = Counter()
        """Bytes by client identifier; None: of entries about no client."""
        self._known: OrderedDict[Position, str] = OrderedDict()

    def take(self, record: Record, size: int) -> None:
        """Add a record of ``size`` bytes; those of one log are expected in order.

        Raises CorruptLog for events that do not fit, UnknownEvent for those of a later foldmq.
        """
        self.bytes += size
        self.records += 1
        try:
            check_known(record)
            shares = list(self._shares(record))
        except INCONSISTENCIES as error:
            raise inconsistency(record, error) from error
        entries = sum(count for _, _, count, _ in shares)
        used = 0
        header = size - sum(own for _, _, _, own in shares)
        counted = 0
        for topic, client, count, own in shares:
            counted += count
            share = header * counted // entries - used if entries else 0
            used += share
            self._add(self.topics, topic, own + share)
            self._add(self.clients, client, own + share)
        if not entries:
            self._add(self.topics, None, header)
            self._add(self.clients, None, header)

    def merged(self, other: DiskUse) -> DiskUse:
        """Return the use of both parts of a log."""
        total = DiskUse()
        for part in (self, other):
            total.bytes += part.bytes
            total.records += part.records
            for name, size in part.topics.items():
                total._add(total.topics, name, size)
            for name, size in part.clients.items():
                total._add(total.clients, name, size)
        return total

    def _add(self, sizes: Counter[str | None], name: str | None, size: int) -> None:
        if name not in sizes and len(sizes) >= MAX_NAMES:
            name = None
        sizes[name] += size

    def _shares(self, record: Record) -> Iterator[tuple[str | None, str | None, int, int]]:
        """Yield topic, client, number of entries, and payload bytes of each share."""
        at = record.sequence << INDEX_BITS
        for raw in record.raw_events:
            kind, client = raw["e"], raw.get("session")
            if kind in _MESSAGES:
                count = raw["count"]
                places = from_runs(raw["refs"]) if raw.get("refs") else range(at, at + count)
                for place, (topic, publisher, own) in zip(places, _messages(raw), strict=True):
                    self._known[place] = topic
                    if len(self._known) > _REMEMBERED:
                        self._known.popitem(last=False)
                    yield topic, publisher, 1, own
            elif kind == "WillArmed":
                count = 1
                yield raw["topic"], client, 1, raw["size"] + sum(raw.get("blocks", ()))
            elif kind in _BY_IDENTIFIER:
                count = count_runs(raw["pids"])
                yield None, client, count, 0
            elif raw.get("refs") and kind != "MessageDropped":
                refs = from_runs(raw["refs"])
                count = len(refs)
                for ref in refs:
                    yield self._known.get(ref), client, 1, 0
            else:
                count = 1
                yield None, client, 1, 0
            at += count


def sizes_by_levels(topics: Mapping[str | None, int], levels: int) -> Counter[str | None]:
    """Return sizes by the first levels of topics; ``a/b/#`` stands for longer ones."""
    sizes: Counter[str | None] = Counter()
    for topic, size in topics.items():
        parts = [] if topic is None else topic.split("/", levels)
        short = topic if len(parts) <= levels else "/".join([*parts[:levels], "#"])
        sizes[short] += size
    return sizes


def _messages(raw: dict[str, Any]) -> Iterator[tuple[str, str | None, int]]:
    """Yield the topic, the publisher and the bytes of each message of an event."""
    count, topics, sizes = raw["count"], raw["topics"], raw["sizes"]
    which: Sequence[int] = raw.get("which") or (
        range(count) if len(topics) == count else [0] * count
    )
    each: Sequence[int] = [sizes] * count if isinstance(sizes, int) else sizes
    publishers: Sequence[str] = raw.get("publishers") or ("",)
    publisher_of: Sequence[int] = raw.get("publisher_of") or [0] * count
    blocks = sum(raw.get("blocks", ()))
    for number in range(count):
        publisher = raw.get("session")
        if publisher is None:
            publisher = publishers[publisher_of[number]] or None
        # Blocks are shared by the messages of an event.
        block = blocks * (number + 1) // count - blocks * number // count
        yield topics[which[number]], publisher, each[number] + block
