"""Reports of other brokers about the members of shared subscriptions, applied in steps.

Reports are in no log. They are repeated, as some may be lost; a log that reports nothing is assumed
to have no connected members.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

import orjson
import structlog

from actors.routing.subscriber import Subscriber
from actors.session.node_context import NodeContext
from eventstore.format.positions import Position
from eventstore.partitions import partition_of
from protocol.mqtt.shared_filters import split_share

_log = structlog.get_logger("foldmq")

_SILENT = 3.0
"""Seconds without a report after which a log counts as having no connected members."""
_REPORTS = 64
"""Reports kept until the log of their sender has been taken up to their position."""
_UNREAD = 8 * 1024 * 1024
"""Bytes of reports waiting to be read above which further ones are dropped."""
_APPLIED_AT_ONCE = 256
"""Parts applied in one iteration of the event loop; a member that joins or leaves counts as one."""
_LOST_AT_ONCE = 8
"""Parts whose members are disconnected in one iteration of the event loop: each may have many."""


class Offer(NamedTuple):
    """The connected members of a part, and the number of messages they have room for."""

    online: int
    room: int
    through: Position
    """Position up to which the reporting log had taken this one."""


class _Report(NamedTuple):
    """The report of a log at one of its positions."""

    at: Position
    offers: dict[str, Offer]


@dataclass(eq=False, repr=False)
class MemberReports:
    """Applies the reports of other brokers about parts whose home is this log.

    ``own`` is the name of this log. ``through`` returns the position up to which another log was
    taken, ``home_of`` the home of a shared subscription; empty: this log. The reports of a log are
    applied in order. A waiting report is replaced by a later one of the same part, as if it had
    been lost.
    """

    _node: NodeContext
    _own: str
    _through: Callable[[str], Position]
    _home_of: Callable[[str], str]

    def __post_init__(self) -> None:
        self._since: Position = 0
        """Position of this log from which reports must know its assignments."""
        self._heard: dict[str, float] = {}
        self._unread: deque[tuple[str, bytes]] = deque()
        self._unread_bytes = 0
        self._waiting: dict[str, deque[_Report]] = {}
        """Reports of each other log; they wait until that log was taken up to their position."""
        self._log = ""
        """The log whose report is being applied."""
        self._rest: Iterator[tuple[str, Offer]] = iter(())
        """The rest of that report."""
        self._working = False

    def begin(self) -> None:
        """Accept only reports whose logs know everything assigned until now."""
        self._since = self._node.journal.last

    def heard(self, log: str, data: bytes) -> None:
        """Accept a report of another log."""
        if self._unread_bytes + len(data) <= _UNREAD:
            self._unread.append((log, data))
            self._unread_bytes += len(data)
            self._work()

    def reached(self, log: str) -> None:
        """Apply the reports of another log up to the position that was taken of it.

        So members that left are removed when the messages that they returned have arrived, not
        before.
        """
        if self._is_due(log):
            self._work()

    def run_periodically(self) -> None:
        """Detect logs that have stopped reporting."""
        silent = self._node.clock.monotonic() - _SILENT
        for log in [log for log, heard in self._heard.items() if heard < silent]:
            del self._heard[log]
            self._waiting.pop(log, None)
            if log == self._log:
                self._rest = iter(())
            names = self._node.router.groups.of_log(log)
            self._node.in_parts(names, _LOST_AT_ONCE, partial(self._lost, log))

    def _lost(self, log: str, name: str) -> None:
        """Treat the members of a part as disconnected, unless their log has reported meanwhile."""
        if log not in self._heard:
            self._node.router.groups.lost(name, log)

    # In steps.

    def _work(self) -> None:
        """Do a step now, and further ones in later iterations of the event loop."""
        if not self._working and self._step():
            self._working = True
            self._node.spawn_task(self._do_rest())

    async def _do_rest(self) -> None:
        try:
            more = True
            while more:
                await asyncio.sleep(0)
                more = self._step()
        finally:
            self._working = False

    def _step(self) -> bool:
        """Read a report and apply some; return whether work may be left."""
        if self._unread:
            log, data = self._unread.popleft()
            self._unread_bytes -= len(data)
            self._read(log, data)
        groups = self._node.router.groups
        room = _APPLIED_AT_ONCE
        while room > 0:
            entry = next(self._rest, None)
            if entry is not None:
                name, offer = entry
                room -= 1 + groups.report(name, self._log, *offer)
            elif not self._begin_next():
                break
        if room < _APPLIED_AT_ONCE:
            self._node.kernel.wake()
        return room <= 0 or bool(self._unread)

    def _read(self, log: str, data: bytes) -> None:
        """Store a report, for the parts whose home is this log."""
        try:
            at, through, offers = orjson.loads(data)
            reached = through.get(self._own, 0)
            mine = {
                name: Offer(online, room, reached)
                for name, online, room in offers
                if not self._home_of(name)
            }
        except (ValueError, TypeError, AttributeError) as error:
            _log.warning("a report of another broker cannot be read", reason=str(error))
            return
        if reached < self._since:  # its log does not know all assignments before a restart
            return
        self._heard[log] = self._node.clock.monotonic()
        waiting = self._waiting.setdefault(log, deque())
        if waiting and (waiting[-1].at == at or len(waiting) >= _REPORTS):
            before = waiting.pop()
            before.offers.update(mine)
            mine = before.offers
        waiting.append(_Report(at, mine))

    def _is_due(self, log: str) -> bool:
        """Return whether a log was taken up to the position of its next report."""
        waiting = self._waiting.get(log)
        return waiting is not None and len(waiting) > 0 and waiting[0].at <= self._through(log)

    def _begin_next(self) -> bool:
        """Begin to apply the next report, of one log after the other; return False without one."""
        for log in self._waiting:
            if self._is_due(log):
                waiting = self._waiting.pop(log)
                self._log, self._rest = log, iter(waiting.popleft().offers.items())
                self._waiting[log] = waiting
                return True
        return False


# Reports the members and room of shared subscriptions in this log to other brokers.

_PAUSE = 0.002
"""Seconds for which reports are collected before they are sent."""
_REPEATED = 200
"""Number of parts whose reports are repeated at a time."""
_MEASURED_AT_ONCE = 1000
"""Maximum number of parts and of their connected members examined for one report."""
_SIZE = 32
"""Bytes of a report of a part, besides its name."""


@dataclass(eq=False, repr=False)
class SharedParts:
    """Reports the members of this log to the homes of their shared subscriptions.

    ``through`` returns the position up to which another log was taken.
    """

    _node: NodeContext
    _names: Sequence[str]
    _send: Callable[[bytes], object]
    _largest: int
    _through: Callable[[str], Position]

    def __post_init__(self) -> None:
        self._own = self._names.index(self._node.options.node)
        self._began: dict[str, Position] = {}
        """Where the parts of this log began."""
        self._offers: dict[str, Callable[[], tuple[int, int]]] = {}
        """Part of this log -> function that returns the number of its members, and their room."""
        self._changed: set[str] = set()
        self._repeated = 0
        """Number of the part whose report is repeated next."""
        self._untold: OrderedDict[str, None] = OrderedDict()
        """Parts whose report is due."""
        self._loop = asyncio.get_running_loop()

    def home_of(self, name: str) -> str:
        """Return the log that is the home of a shared subscription; empty: this one."""
        number = partition_of(name, len(self._names))
        return "" if number == self._own else self._names[number]

    def part_began(self, name: str, at: Position) -> None:
        """Record where a part began."""
        self._began[name] = at

    def part_ended(self, name: str) -> None:
        """Record that a part has ended."""
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
        """Report the members of a part soon, even if they are unchanged: more was taken."""
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
            self._report(changed)

    def run_periodically(self) -> None:
        """Repeat some reports, as they may be lost; a log without parts needs none."""
        if not self._offers:
            return
        names = list(islice(self._offers, self._repeated, self._repeated + _REPEATED))
        self._repeated = self._repeated + _REPEATED if len(names) == _REPEATED else 0
        self._report(names)

    def end(self) -> None:
        """Report that no member is connected."""
        offers, self._offers = self._offers, {}
        self._report(offers)
        while self._untold:
            self._report_some()

    def _report(self, names: Iterable[str]) -> None:
        """Report parts: some now, the others in later iterations of the event loop."""
        is_idle = not self._untold
        self._untold.update(dict.fromkeys(names))
        if is_idle:
            self._report_some()
            self._report_rest_soon()

    def _report_rest_soon(self) -> None:
        if self._untold:
            self._loop.call_soon(self._report_rest)

    def _report_rest(self) -> None:
        if self._untold and not self._node.failed.done():
            self._report_some()
            self._report_rest_soon()

    def _report_some(self) -> None:
        """Report the next parts, limited in size and in the number of examined members."""
        offers: list[tuple[str, int, int]] = []
        room, work = self._largest // 2, _MEASURED_AT_ONCE
        while self._untold and work > 0:
            name = next(iter(self._untold))
            room -= _SIZE + 6 * len(name)  # a character takes at most six bytes in JSON
            if offers and room < 0:
                break
            del self._untold[name]
            measure = self._offers.get(name)
            online, free = measure() if measure is not None else (0, 0)
            offers.append((name, online, free))
            work -= 1 + online
        own = self._names[self._own]
        through = {name: self._through(name) for name in self._names if name != own}
        self._send(orjson.dumps((self._node.journal.last, through, offers)))


def only_subscriber(name: str) -> Subscriber:
    """Return the only subscription of a shared subscription."""
    return Subscriber(name, split_share(name)[1], 2)
