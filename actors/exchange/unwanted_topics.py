"""Topics of other logs to which no subscription of this one matches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from actors.session.node_context import NodeContext

_MAX = 16_384
"""Maximum number of such topics for each log; with more, all count as wanted again."""
_PAUSE = 0.1
"""Seconds for which unwanted topics are collected before they are reported."""
_SOON = 0.002
"""Seconds for which new subscriptions are collected before their topics are reported."""
_REPEATED = 4.0
"""Seconds between two reports, even if there is nothing to report."""
SILENCE: Final = 10.0
"""Seconds without a report after which a broker is of an earlier version, without reports."""
_LOOKED_UP = 256
"""Number of topics that are looked up for new subscriptions; with more, all count as wanted."""


class UnwantedTopics:
    """Reports to each other log which of its messages wake this one in vain.

    Reports are hints: what is wrong in them, or lost, makes messages a tenth of a second late, or
    wakes this broker in vain. ``send`` sends a report to a log.
    """

    def __init__(
        self, node: NodeContext, logs: Sequence[str], send: Callable[[str, bytes], object]
    ) -> None:
        self._node = node
        self._send = send
        self.all_wanted: Callable[[], bool] = _never
        """Returns whether all topics are wanted at present, by readers of the logs."""
        self._topics: dict[str, set[bytes]] = {name: set() for name in logs}
        """The unwanted topics of each log, reported or not."""
        self._unsent: dict[str, list[bytes]] = {name: [] for name in logs}
        self._due = self._looks = False

    def begin(self) -> None:
        """Make the other logs forget what an earlier run of this broker has reported."""
        for name in self._topics:
            self._want_all(name)
        self._node.timers.after(_REPEATED, self._repeat)

    def _repeat(self) -> None:
        """Let the other logs know that this one still reports topics."""
        self._node.timers.after(_REPEATED, self._repeat)
        for name in self._topics:
            self._send(name, orjson.dumps(([], [])))

    def add(self, name: str, topics: Iterable[bytes]) -> None:
        """Record topics of a log to which no subscription matches."""
        if self.all_wanted():
            return
        known = self._topics[name]
        new = [topic for topic in topics if topic not in known]
        if not new:
            return
        if len(known) + len(new) > _MAX:
            self._want_all(name)
            return
        known.update(new)
        self._unsent[name] += new
        if not self._due:
            self._due = True
            self._node.timers.after(_PAUSE, self._report)

    def _report(self) -> None:
        self._due = False
        for name, topics in self._unsent.items():
            known = self._topics[name]
            left = [topic.decode() for topic in topics if topic in known]
            topics.clear()
            if left:
                self._send(name, orjson.dumps(([], left)))

    def subscribed(self) -> None:
        """Look soon which topics new subscriptions match."""
        if not self._looks and any(self._topics.values()):
            self._looks = True
            self._node.timers.after(_SOON, self._look)

    def _look(self) -> None:
        self._looks = False
        routes, index = self._node.router.routes, self._node.router.indexed
        for name, known in self._topics.items():
            # A new subscription drops the routes that it may change.
            changed = [topic for topic in known if topic not in routes]
            if len(changed) > _LOOKED_UP or self.all_wanted():
                self._want_all(name)
                continue
            self._want(name, [topic for topic in changed if index(topic.decode())])

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
            self._topics[name].difference_update(topics)
            self._send(name, orjson.dumps(([topic.decode() for topic in topics], [])))

    def _want_all(self, name: str) -> None:
        self._topics[name].clear()
        self._unsent[name].clear()
        self._send(name, b"null")


def read_report(data: bytes) -> tuple[list[bytes], list[bytes]] | None:
    """Return the topics that a log wants and does not want; None: it wants all.

    Raises ValueError for anything else.
    """
    report = orjson.loads(data)
    if report is None:
        return None
    try:
        wanted, unwanted = report
        return [topic.encode() for topic in wanted], [topic.encode() for topic in unwanted]
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None


def _never() -> bool:
    return False
