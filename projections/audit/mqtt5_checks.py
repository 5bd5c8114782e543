"""Checks for No Local and unfinished deliveries of MQTT 5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eventstore.format import format_position, from_runs
from projections.audit.rules import Rule, Violation
from protocol.mqtt import matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from eventstore.format import MessagePublished, Position, Run
    from projections.state import SessionState

_ANY: Final = 65_535
"""The Receive Maximum of a client that says nothing: there are no more packet identifiers."""
_NO_LOCAL: Final = 0x04
_KEPT: Final = 65_536
"""Own messages that are remembered."""


class UnfinishedDeliveries:
    """The QoS 1 and 2 deliveries that were sent on a connection and are not finished."""

    __slots__ = ("_pids",)

    def __init__(self) -> None:
        self._pids: set[int] = set()

    def sent(self, most: int, pids: Sequence[int], at: Position) -> Iterator[Violation]:
        """Record that PUBLISH packets were sent; yield a violation when they are too many.

        ``most`` is the Receive Maximum of the client [MQTT-3.3.4-9].
        """
        if most >= _ANY:
            return
        self._pids.update(pids)
        if len(self._pids) > most:
            what = f"{len(self._pids)} deliveries were unfinished, Receive Maximum is {most}"
            yield Violation(Rule.RECEIVE_MAXIMUM, at, what)

    def ended(self, pids: Iterable[Run]) -> None:
        """Record that deliveries are finished."""
        if self._pids:
            self._pids.difference_update(from_runs(pids))

    def clear(self) -> None:
        """Begin a new connection: what it is not sent again does not count."""
        self._pids.clear()


class OwnMessages:
    """What a session published itself while it had a subscription with No Local."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[Position, str] = {}
        """Position of each message, the oldest first, and its topic."""

    def published(self, state: SessionState, event: MessagePublished, at: Position) -> None:
        """Record messages of the session."""
        if not any(held.options & _NO_LOCAL for held in state.subscriptions.values()):
            return
        for number in range(event.count):
            topic = event.topics[event.which[number] if event.which else 0]
            self._topics[at + number] = topic
        while len(self._topics) > _KEPT:
            del self._topics[next(iter(self._topics))]

    def sent(
        self, state: SessionState, refs: Iterable[Position], at: Position, *, changed: bool
    ) -> Iterator[Violation]:
        """Check messages that the session gets, or that are queued for it [MQTT-3.8.3-3].

        One that matches a subscription without No Local as well is sent for that. ``changed``:
        subscriptions changed in this turn, and may have been others when it was sent.
        """
        if changed or not self._topics:
            return
        for number, ref in enumerate(refs):
            topic = self._topics.get(ref)
            if topic is None or any(
                held.active and not held.options & _NO_LOCAL and matches(held.filter, topic)
                for held in state.subscriptions.values()
            ):
                continue
            what = f"message {format_position(ref)} went back to the client that published it"
            yield Violation(Rule.NO_LOCAL, at + number, what)

    def clear(self) -> None:
        """Forget everything: the session is gone."""
        self._topics.clear()
