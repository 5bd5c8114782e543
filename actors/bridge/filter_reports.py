"""Reports between the brokers of several logs about the topic filters of their clients.

The home of a topic subscribes to NATS for the clients of all logs. Each broker numbers the changes
of its filters, and sends them in order. Reports may be lost: each report, sent every half second at
the latest, contains how many changes its broker has sent, and how many it knows of each other
broker. A broker that lacks changes reports this, and gets all filters again.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import filterfalse
from typing import Final

import orjson
import structlog

from actors.bridge.interest import TopicHomes
from actors.limits.bridge_options import REQUESTS
from actors.session.node_context import NodeContext
from protocol.mqtt.topic_trie import FilterTrie
from protocol.nats.mapping import MAX_SUBJECT

_log = structlog.get_logger("foldmq")

_NOTHING: Final = 0
_CHANGES: Final = 1
_ALL: Final = 2
"""Kinds of reports: only the numbers, changed filters, a part of all filters."""

_PAUSE: Final = 0.002
"""Seconds for which changes are collected before they are sent."""
_EVERY: Final = 0.5
"""Seconds between two reports without changes."""
_SILENT: Final = 1.5
"""Seconds without a report of a broker after which no SUBACK waits for it."""
_SERVES: Final = 3.0
"""Seconds without a report of a broker after which its clients no longer count for requests."""
_PART, _PART_TEXT = 2000, 32 * 1024
"""Maximum number of filters, and of their characters, in one report."""
_ANY: Final = "-"


class _FiltersOfLog:
    """What is known of the filters of another log."""

    def __init__(self) -> None:
        self.incarnation = ""
        """Identifies one run of its broker."""
        self.through = -1
        """Number of its changes that are known; -1: some are missing."""
        self.confirmed = -1
        """Number of changes for which NATS has the subscriptions."""
        self.asked: object | None = None
        """Identifies the fence that NATS has not answered yet; None: there is none."""
        self.filters: set[str] = set()
        """Filters that this log subscribes to for it, and filters of requests."""
        self.heard = float("-inf")
        self.knows = -1
        """Number of changes of this log for which it has subscribed."""
        self.arriving: set[str] | None = None
        """Filters in the parts received so far of all filters; None: no first part has arrived."""
        self.part: tuple[str, int, int] = ("", 0, 0)
        """Incarnation, number of changes, and number of the next part."""


@dataclass(eq=False, repr=False)
class FilterReports:
    """Reports the filters of this log, and subscribes for those of the others.

    ``own_filters`` returns the filters of this log. ``wanted`` is called with a filter of another
    log that this one must subscribe to, ``unwanted`` when it no longer must. ``fence`` calls its
    argument when NATS has all subscriptions, or not at all if the connection is lost before: then
    call :meth:`connection_lost`. ``send`` sends a report to the other brokers.
    """

    _node: NodeContext
    _homes: TopicHomes
    _own_filters: Callable[[], Iterable[str]]
    _wanted: Callable[[str], None]
    _unwanted: Callable[[str], None]
    _fence: Callable[[Callable[[], None]], None]
    _send_bytes: Callable[[bytes], object]

    def __post_init__(self) -> None:
        self._others = {
            name: _FiltersOfLog() for name in self._homes.names if name != self._homes.own
        }
        self._incarnation = secrets.token_hex(8)
        self._requests: FilterTrie[str] = FilterTrie()
        """Filters of requests that clients of other logs answer."""
        self.changes = 0
        """Number of changes so far."""
        self._sent = 0
        """Number of changes that were sent."""
        self._unsent: dict[str, bool] = {}
        """Changed filters that are not sent yet, and whether they began."""
        self._due = False
        self._sending_all = False
        self._began = False

    def begin(self) -> None:
        """Request the filters of the other logs; send them those of this log."""
        self._began = True
        now = self._node.clock.monotonic()
        for other in self._others.values():
            other.heard = max(other.heard, now)  # its broker may be running
        self._repeat()

    def _repeat(self) -> None:
        self._node.timers.after(_EVERY, self._repeat)
        for other in self._others.values():
            if other.confirmed < other.through:  # the connection to NATS was lost meanwhile
                self._confirm(other)
        self._report()

    # The filters of this log.

    def changed(self, topic_filter: str, *, begun: bool) -> None:
        """Record that the first subscription to a filter began, or that the last one ended."""
        if self._began and _is_reported(topic_filter):
            self.changes += 1
            self._unsent[topic_filter] = begun
            self._report_soon()

    def is_known(self, changes: int) -> bool:
        """Return whether all other brokers have subscribed for this number of changes.

        Brokers that are not running are ignored.
        """
        since = self._node.clock.monotonic() - _SILENT
        return all(other.knows >= changes or other.heard < since for other in self._others.values())

    def _report_soon(self) -> None:
        if not self._due:
            self._due = True
            self._node.timers.after(_PAUSE, self._report_due)

    def _report_due(self) -> None:
        self._due = False
        self._report()

    def _report(self) -> None:
        """Send the changes, or only the numbers if there are none."""
        if self._sending_all or not self._unsent:
            self._send(_NOTHING)
        else:
            self._send_changes()

    def _send_changes(self) -> None:
        unsent, self._unsent = self._unsent, {}
        remaining = len(unsent)
        for part in _parts(unsent):
            remaining -= len(part)
            before, self._sent = self._sent, self.changes - remaining
            begun = list(filter(unsent.get, part))
            self._send(_CHANGES, before, begun, list(filterfalse(unsent.get, part)))

    async def _send_all(self) -> None:
        """Send all filters, in steps; changes wait until they are sent."""
        try:
            self._send_changes()
            parts = _parts(filter(_is_reported, list(self._own_filters())))
            number, part = 0, next(parts, [])
            while (following := next(parts, None)) is not None:
                self._send(_ALL, number, False, part)
                number, part = number + 1, following
                await asyncio.sleep(0)
            self._send(_ALL, number, True, part)
        finally:
            self._sending_all = False
        self._report_soon()

    def _send(self, kind: int, *content: object) -> None:
        reached = {
            name: (other.incarnation, other.through, other.confirmed)
            for name, other in self._others.items()
        }
        report = (self._incarnation, self._sent, reached, kind, content)
        self._send_bytes(orjson.dumps(report))

    # The filters of other logs.

    def heard(self, log: str, data: bytes) -> None:
        """Process the report of another broker."""
        other = self._others.get(log)
        if other is None or not self._began or self._node.draining:
            return
        try:
            incarnation, sent, reached, kind, content = orjson.loads(data)
            run, through, subscribed = reached.get(self._homes.own, ("", -1, -1))
        except (ValueError, TypeError, AttributeError) as error:
            _log.warning("a report of another broker cannot be read", reason=str(error))
            return
        other.heard = self._node.clock.monotonic()
        lacks = run != self._incarnation or through < 0
        other.knows = -1 if lacks else subscribed
        complete = other.through >= 0
        if incarnation != other.incarnation:
            other.incarnation = incarnation
            other.through = other.confirmed = -1
            other.arriving, complete = None, True
        if kind == _CHANGES:
            self._take_changes(log, other, sent, *content)
        elif kind == _ALL:
            self._take_part(log, other, sent, *content)
        elif other.through != sent:
            other.through = -1
        if complete and other.through < 0:  # otherwise the regular reports request it
            self._report_soon()
        if lacks and not self._sending_all:
            self._sending_all = True
            self._node.spawn_task(self._send_all())

    def _take_changes(
        self,
        log: str,
        other: _FiltersOfLog,
        sent: int,
        before: int,
        begun: list[str],
        ended: list[str],
    ) -> None:
        if other.through >= sent:
            return
        if other.through != before:
            other.through = -1
            return
        for topic_filter in begun:
            self._add(log, other, topic_filter)
        for topic_filter in ended:
            self._remove(log, other, topic_filter)
        other.through = sent
        self._confirm(other)

    def _take_part(
        self,
        log: str,
        other: _FiltersOfLog,
        sent: int,
        number: int,
        is_end: bool,
        filters: list[str],
    ) -> None:
        """Process a part of all filters of another log."""
        if other.through >= sent:
            return
        part = other.incarnation, sent, number
        if number == 0:
            other.arriving = set()
        elif other.part != part:
            other.arriving = None
        arriving = other.arriving
        if arriving is None:
            return
        other.part = other.incarnation, sent, number + 1
        for topic_filter in filters:
            self._add(log, other, topic_filter)
        arriving.update(filters)
        if is_end:
            for topic_filter in other.filters - arriving:
                self._remove(log, other, topic_filter)
            other.arriving = None
            other.through = sent
            self._confirm(other)

    def _add(self, log: str, other: _FiltersOfLog, topic_filter: str) -> None:
        if topic_filter in other.filters:
            return
        if topic_filter.startswith(REQUESTS):
            self._requests.insert(topic_filter, log, log)
        elif self._homes.concerns(topic_filter):
            self._wanted(topic_filter)
        else:
            return
        other.filters.add(topic_filter)

    def _remove(self, log: str, other: _FiltersOfLog, topic_filter: str) -> None:
        if topic_filter not in other.filters:
            return
        other.filters.discard(topic_filter)
        if topic_filter.startswith(REQUESTS):
            self._requests.remove(topic_filter, log)
        else:
            self._unwanted(topic_filter)

    def connection_lost(self) -> None:
        """Forget the fences that NATS has not answered: the next regular reports ask again."""
        for other in self._others.values():
            other.asked = None

    def _confirm(self, other: _FiltersOfLog) -> None:
        """Record when NATS has the subscriptions for all known filters.

        What becomes known while NATS has not answered yet is confirmed by the next fence.
        """
        if other.asked is not None:
            return
        other.asked = asked = object()
        incarnation, through = other.incarnation, other.through

        def confirmed() -> None:
            if other.asked is not asked:  # of a connection that was lost
                return
            other.asked = None
            if other.incarnation == incarnation and other.confirmed < through:
                other.confirmed = through
                self._report_soon()
            if other.confirmed < other.through:
                self._confirm(other)

        self._fence(confirmed)

    def is_answered(self, topic: str) -> bool:
        """Return whether clients of other logs answer requests on a topic."""
        if not self._requests:
            return False
        since = self._node.clock.monotonic() - _SERVES
        logs = self._requests.match(f"{REQUESTS}{_ANY}/{topic}")
        return any(self._others[log].heard >= since for log in logs)


def _is_reported(topic_filter: str) -> bool:
    """Return whether a filter may match topics that are exchanged with NATS."""
    if len(topic_filter) > MAX_SUBJECT:
        return False
    return topic_filter.startswith(REQUESTS) or not topic_filter.startswith("$")


def _parts(filters: Iterable[str]) -> Iterator[list[str]]:
    """Yield filters in parts that fit into a report."""
    part: list[str] = []
    size = 0
    for topic_filter in filters:
        part.append(topic_filter)
        size += len(topic_filter)
        if len(part) >= _PART or size >= _PART_TEXT:
            yield part
            part, size = [], 0
    if part:
        yield part
