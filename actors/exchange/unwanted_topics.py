"""Topics of other logs to which no subscription of this one matches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import orjson

from protocol.mqtt.shared_filters import split_share

if TYPE_CHECKING:
    from actors.session.node_context import NodeContext

_MAX, _MAX_BYTES = 16_384, 4 * 1024 * 1024
"""Maximum number of such topics for each log, and their bytes; with more, all count as wanted
again."""
_PAUSE = 0.1
"""Seconds for which unwanted topics are collected before they are reported."""
_SOON = 0.002
"""Seconds for which new subscriptions are collected before their topics are reported."""
_REPEATED = 4.0
"""Seconds between two reports, even if there is nothing to report."""
SILENCE: Final = 10.0
"""Seconds without a report after which a broker is of an earlier version, without reports."""
_ESCAPED = 6
"""Maximum number of bytes of a byte in JSON."""
_NOTHING = b"[[],[]]"
_LOOKED_UP = 256
"""Number of topics that are looked up for new subscriptions; with more, all count as wanted."""


class BoundedTopics:
    """A set of topics, which is emptied when there are too many."""

    __slots__ = ("_bytes", "topics")

    def __init__(self) -> None:
        self.topics: set[bytes] = set()
        self._bytes = 0

    def add(self, topics: Iterable[bytes]) -> bool:
        """Add topics; return False if there are too many, and all were dropped."""
        new = set(topics) - self.topics
        self.topics |= new
        self._bytes += sum(map(len, new))
        fits = len(self.topics) <= _MAX and self._bytes <= _MAX_BYTES
        if not fits:
            self.clear()
        return fits

    def remove(self, topics: Iterable[bytes]) -> None:
        """Remove topics that are there."""
        old = self.topics.intersection(topics)
        self.topics -= old
        self._bytes -= sum(map(len, old))

    def clear(self) -> None:
        """Remove all topics."""
        self.topics.clear()
        self._bytes = 0


class UnwantedTopics:
    """Reports to each other log which of its messages wake this one in vain.

    Reports are hints: what is wrong in them, or lost, makes messages a tenth of a second late, or
    wakes this broker in vain. ``send`` sends a report of at most ``largest`` bytes to a log.
    """

    def __init__(
        self,
        node: NodeContext,
        logs: Sequence[str],
        send: Callable[[str, bytes], object],
        largest: int,
    ) -> None:
        self._node = node
        self._largest = largest
        self._send = send
        self.all_wanted: Callable[[], bool] = _never
        """Returns whether all topics are wanted at present, by readers of the logs."""
        self._topics = {name: BoundedTopics() for name in logs}
        """The unwanted topics of each log, reported or not."""
        self._unsent: dict[str, set[bytes]] = {name: set() for name in logs}
        """Those of them that are reported next."""
        self._recent: dict[str, set[bytes]] = {name: set() for name in logs}
        """Those that were reported a short while ago; others that are sent are reported again, as
        the report may be lost."""
        self._new_filters: set[str] = set()
        self._due = self._looks = False

    def begin(self) -> None:
        """Make the other logs forget what an earlier run of this broker has reported.

        They report their unwanted topics anew, of which this run knows none.
        """
        for name in self._topics:
            self._send(name, b"null")
        self._node.timers.after(_REPEATED, self._repeat)

    def _repeat(self) -> None:
        """Repeat a report, so that the other logs go on holding records back."""
        self._node.timers.after(_REPEATED, self._repeat)
        for name, recent in self._recent.items():
            recent.clear()
            self._send(name, _NOTHING)

    def begun(self, name: str) -> None:
        """Report all unwanted topics of a log anew: its broker has begun, and knows none."""
        self._send(name, _NOTHING)
        self._unsent[name] |= self._topics[name].topics
        self._report_later()

    def add(self, name: str, topics: Iterable[bytes]) -> None:
        """Record topics of a log to which no subscription matches."""
        if self.all_wanted():
            return
        new = set(topics) - self._recent[name]
        if not new:
            return
        if not self._topics[name].add(new):
            self._want_all(name)
            return
        self._recent[name] |= new
        self._unsent[name] |= new
        self._report_later()

    def _report_later(self) -> None:
        if not self._due:
            self._due = True
            self._node.timers.after(_PAUSE, self._report)

    def _report(self) -> None:
        self._due = False
        for name, topics in self._unsent.items():
            for part in _parts(topics & self._topics[name].topics, self._largest):
                self._send(name, orjson.dumps(([], part)))
            topics.clear()

    def subscribed(self, filters: Iterable[str]) -> None:
        """Look soon which topics new subscriptions match."""
        if not any(unwanted.topics for unwanted in self._topics.values()):
            return
        self._new_filters.update(filters)
        if not self._looks:
            self._looks = True
            self._node.timers.after(_SOON, self._look)

    def _look(self) -> None:
        filters = {split_share(topic_filter)[1] for topic_filter in self._new_filters}
        self._new_filters.clear()
        self._looks = False
        with_wildcards = any("+" in each or "#" in each for each in filters)
        alike, index = set(map(str.encode, filters)), self._node.router.indexed
        most = _LOOKED_UP // len(self._topics)
        for name, unwanted in self._topics.items():
            topics = unwanted.topics if with_wildcards else unwanted.topics & alike
            if len(topics) > most or self.all_wanted():
                self._want_all(name)
            else:
                self._want(name, [topic for topic in topics if index(topic.decode())])

    def wanted(self, name: str, topics: Sequence[bytes]) -> bool:
        """Return whether a subscription may match some topics of a log; if so, report them."""
        routes, index = self._node.router.routes, self._node.router.indexed
        chosen = []
        for topic in topics:
            route = routes.get(topic)
            if route is None:
                matches = bool(index(topic.decode()))
            else:
                matches = bool(route.targets or route.denied or route.frozen)
            if matches:
                chosen.append(topic)
        self._want(name, chosen)
        return bool(chosen)

    def _want(self, name: str, topics: Sequence[bytes]) -> None:
        if topics:
            self._topics[name].remove(topics)
            self._recent[name].difference_update(topics)
            for part in _parts(topics, self._largest):
                self._send(name, orjson.dumps((part, [])))

    def _want_all(self, name: str) -> None:
        self._topics[name].clear()
        self._unsent[name].clear()
        self._recent[name].clear()
        self._send(name, b"[null,[]]")


def read_report(data: bytes) -> tuple[Sequence[bytes] | None, Sequence[bytes]] | None:
    """Return which topics a log wants (None: all) and which not; None: its broker has begun.

    Raises ValueError for anything else.
    """
    report = orjson.loads(data)
    if report is None:
        return None
    try:
        wanted, unwanted = report
        if wanted is not None:
            wanted = [topic.encode() for topic in wanted]
        return wanted, [topic.encode() for topic in unwanted]
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None


def _parts(topics: Iterable[bytes], most: int) -> Iterator[list[str]]:
    """Yield topics in parts that have at most so many bytes as JSON."""
    part: list[str] = []
    size = len(_NOTHING)
    for topic in topics:
        more = _ESCAPED * len(topic) + 3
        if part and size + more > most:
            yield part
            part, size = [], len(_NOTHING)
        part.append(topic.decode())
        size += more
    if part:
        yield part


def _never() -> bool:
    return False
