"""Reports the members and room of shared subscriptions in this log to other brokers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING

import orjson

from actors.routing.subscriber import Subscriber
from eventstore.partitions import partition_of
from protocol.mqtt.shared_filters import split_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from actors.session.node_context import NodeContext
    from eventstore.format.positions import Position

_PAUSE = 0.002
"""Seconds for which reports are collected before they are sent."""
_REPEATED = 200
"""Number of parts whose reports are repeated at a time."""
_MEASURED_AT_ONCE = 1000
"""Maximum number of parts and of their connected members examined for one report."""
_SIZE = 32
"""Bytes of a report of a part, besides its name."""


class SharedParts:
    """Reports the members of this log to the homes of their shared subscriptions.

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
        """Repeat some reports, as they may be lost; without parts, send an empty report."""
        names = list(islice(self._offers, self._repeated, self._repeated + _REPEATED))
        self._repeated = self._repeated + _REPEATED if len(names) == _REPEATED else 0
        self._report(names)

    def end(self) -> None:
        """Report that no member is connected."""
        gone, self._offers = self._offers, {}
        self._report(gone)
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
            online, left = measure() if measure is not None else (0, 0)
            offers.append((name, online, left))
            work -= 1 + online
        own = self._names[self._own]
        through = {name: self._through(name) for name in self._names if name != own}
        self._send(orjson.dumps((self._node.journal.last, through, offers)))


def only_subscriber(name: str) -> Subscriber:
    """Return the only subscription of a shared subscription."""
    return Subscriber(name, split_share(name)[1], 2)
