"""Reports among brokers about shared subscriptions: connected members, and their room for messages.

Reports are in no log. They are repeated, as some may be lost; a log that reports nothing is taken
to have no connected members.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import orjson
import structlog

from eventstore.partitions import partition_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from actors.session import NodeContext
    from eventstore.format import Position

_log = structlog.get_logger("foldmq")

_PAUSE = 0.002
"""Seconds for which reports are collected before they are sent."""
_SILENT = 3.0
"""Seconds after which a log that reports nothing has no connected members."""
_REPORTS = 64
"""Reports kept until the log of their sender has been taken up to their position."""
_REPEATED = 200
"""Reports of parts that are repeated at a time."""
_LOST_AT_ONCE = 8
"""Parts whose members are disconnected in one iteration of the event loop: each may have many."""
_SIZE = 32
"""Bytes of a report of a part, besides its name."""


class Offer(NamedTuple):
    """The connected members of a part, and the number of messages they have room for."""

    online: int
    room: int


class _Report(NamedTuple):
    """What a log reports at a position of its own."""

    at: Position
    through: Position
    """Position up to which it has taken this log."""
    offers: dict[str, Offer]


class MemberReports:
    """Reports the members of this log, and applies what other logs report.

    ``through`` returns the position up to which another log was taken.
    """

    def __init__(
        self,
        node: NodeContext,
        names: Sequence[str],
        send: Callable[[bytes], object],
        largest: int,
        through: Callable[[str], Position],
    ) -> None:
        self._node = node
        self._names = names
        self._own = names.index(node.options.node)
        self._send = send
        self._largest = largest
        self._through = through
        self._began: dict[str, Position] = {}
        """Where the parts of this log began."""
        self._offers: dict[str, Callable[[], tuple[int, int]]] = {}
        """What measures the members of each part of this log, and their room."""
        self._changed: set[str] = set()
        self._repeated = 0
        """Number of the part whose report is repeated next."""
        self._since: Position = 0
        """Position of this log from which on its assignments are known."""
        self._waiting: dict[str, deque[_Report]] = {}
        """Reports of other logs that were not taken up to there yet."""
        self._heard: dict[str, float] = {}
        self._loop = asyncio.get_running_loop()

    def begin(self) -> None:
        """Accept reports that know everything that was assigned before."""
        self._since = self._node.journal.last

    def home_of(self, name: str) -> str:
        """Return the log that is the home of a shared subscription; empty: this one."""
        number = partition_of(name, len(self._names))
        return "" if number == self._own else self._names[number]

    # Parts of this log.

    def part_began(self, name: str, at: Position) -> None:
        """Note where a part began."""
        self._began[name] = at

    def part_ended(self, name: str) -> None:
        """Note that a part has ended."""
        self._began.pop(name, None)
        if self._offers.pop(name, None) is not None:
            self._change(name)

    def is_known(self, name: str, taken_by: Mapping[str, Position]) -> bool:
        """Return whether the home of a part has taken its beginning.

        ``taken_by`` are the positions up to which the other logs have taken this one.
        """
        home = self.home_of(name)
        return not home or taken_by.get(home, 0) >= self._began.get(name, 0)

    def offer(self, name: str, measure: Callable[[], tuple[int, int]]) -> None:
        """Report the members of a part soon, even if nothing changed: more was taken."""
        if name in self._began:
            self._offers[name] = measure
            self._change(name)

    def _change(self, name: str) -> None:
        if not self._changed:
            self._loop.call_later(_PAUSE, self._flush)
        self._changed.add(name)

    def _flush(self) -> None:
        changed, self._changed = self._changed, set()
        if not self._node.failed.done():
            self._tell(changed)

    def look_after(self) -> None:
        """Repeat some reports, as they may be lost; notice logs that say nothing."""
        some = list(islice(self._offers, self._repeated, self._repeated + _REPEATED))
        self._repeated = self._repeated + _REPEATED if len(some) == _REPEATED else 0
        self._tell(some)
        silent = self._node.clock.monotonic() - _SILENT
        for log in [log for log, heard in self._heard.items() if heard < silent]:
            del self._heard[log]
            self._waiting.pop(log, None)
            names = self._node.router.groups.of_log(log)
            self._node.in_parts(names, _LOST_AT_ONCE, partial(self._lost, log))

    def _lost(self, log: str, name: str) -> None:
        """Take the members of a part for disconnected, unless their log was heard meanwhile."""
        if log not in self._heard:
            self._node.router.groups.lost(name, log)

    def end(self) -> None:
        """Report that no member is connected any longer."""
        gone, self._offers = self._offers, {}
        self._tell(gone)

    def _tell(self, names: Iterable[str]) -> None:
        """Send reports, in messages that are not too large."""
        some: list[tuple[str, int, int]] = []
        size = 0
        for name in names:
            need = _SIZE + 6 * len(name)  # a character takes six bytes in JSON at most
            if some and size + need > self._largest // 2:
                self._send_some(some)
                some, size = [], 0
            measure = self._offers.get(name)
            some.append((name, *(measure() if measure is not None else (0, 0))))
            size += need
        self._send_some(some)

    def _send_some(self, some: Sequence[tuple[str, int, int]]) -> None:
        own = self._names[self._own]
        through = {name: self._through(name) for name in self._names if name != own}
        self._send(orjson.dumps((self._node.journal.last, through, some)))

    # Parts of other logs.

    def heard(self, log: str, data: bytes) -> None:
        """Note the report of another log, for the parts whose home is this one."""
        try:
            at, through, offers = orjson.loads(data)
            mine = {name: Offer(*rest) for name, *rest in offers if not self.home_of(name)}
            report = _Report(at, through.get(self._names[self._own], 0), mine)
        except (ValueError, TypeError, AttributeError) as error:
            _log.warning("a report of another broker cannot be read", reason=str(error))
            return
        if report.through < self._since:  # it does not know what was assigned before a restart
            return
        self._heard[log] = self._node.clock.monotonic()
        waiting = self._waiting.setdefault(log, deque())
        if len(waiting) >= _REPORTS:
            before = waiting.pop()
            report = report._replace(offers=before.offers | report.offers)
        waiting.append(report)
        self.reached(log, self._through(log))

    def reached(self, log: str, through: Position) -> None:
        """Apply what another log reported up to a position: the log was taken up to there.

        So members that have left are gone when what they gave back is there, not before.
        """
        waiting = self._waiting.get(log)
        if not waiting:
            return
        groups = self._node.router.groups
        while waiting and waiting[0].at <= through:
            report = waiting.popleft()
            for name, offer in report.offers.items():
                groups.report(name, log, offer.online, offer.room, report.through)
        self._node.kernel.wake()
