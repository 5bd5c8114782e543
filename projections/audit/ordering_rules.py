"""The order in which the client of a session gets messages: first deliveries and redeliveries."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from eventstore.format.positions import from_runs
from projections.audit.rule_table import Rule, Violation

if TYPE_CHECKING:
    from collections.abc import Hashable

    from eventstore.format.events import Acked, Completed, Received, Redelivered, Refused, Returned
    from eventstore.format.positions import Position
    from projections.state.session import SessionState


class TopicOrder:
    """Checks that messages of one stream are delivered in the order in which they took effect.

    A stream is identified by its key. It is remembered only while a message of it waits, and in the
    turn in which one was delivered: if nothing older can follow, no later message is too early.
    """

    __slots__ = ("_last", "_recent", "_waiting")

    def __init__(self) -> None:
        self._last: dict[Hashable, Position] = {}
        """Stream -> the position at which its latest delivered message took effect."""
        self._waiting: dict[Hashable, int] = {}
        """Stream -> the number of its queued messages."""
        self._recent: list[Hashable] = []
        """Streams that may have to be forgotten when the turn ends."""

    def __len__(self) -> int:
        """Return the number of streams that are remembered."""
        return len(self._last.keys() | self._waiting.keys())

    def queued(self, stream: Hashable) -> None:
        """Record that a message waits."""
        self._waiting[stream] = self._waiting.get(stream, 0) + 1

    def left(self, stream: Hashable) -> None:
        """Record that a message left the queue."""
        count = self._waiting.pop(stream, 0) - 1
        if count > 0:
            self._waiting[stream] = count
        else:
            self._recent.append(stream)

    def delivered(self, stream: Hashable, effect: Position) -> bool:
        """Record a first delivery; return whether it is in order."""
        last = self._last.get(stream)
        if last is not None and last > effect:
            return False
        self._last[stream] = effect
        self._recent.append(stream)
        return True

    def end_turn(self) -> None:
        """Forget streams without older messages to come: messages of later turns are newer."""
        for stream in self._recent:
            if stream not in self._waiting:
                self._last.pop(stream, None)
        self._recent.clear()

    def clear(self) -> None:
        """Forget everything: the session has ended."""
        self._last.clear()
        self._waiting.clear()
        self._recent.clear()


class RedeliveryOrder:
    """The packets to send again after a session was resumed, before anything new [MQTT-4.4.0-1].

    PUBREL packets come first, in the order of the PUBRECs, then PUBLISH packets in the order of
    their first transmission [MQTT-4.6.0-1].
    """

    __slots__ = ("_all", "_left", "_order")

    def __init__(self, state: SessionState) -> None:
        self._order = deque((*state.releasing, *state.inflight))
        self._left = set(self._order)
        self._all = frozenset(self._order)

    def again(self, event: Redelivered, at: Position) -> list[Violation]:
        """Process packets sent again because the session was resumed; return violations."""
        found: list[Violation] = []
        for number, pid in enumerate(from_runs(event.pids)):
            if pid not in self._all:
                what = (
                    f"packet {pid} was sent again as resumed, but first sent after the resumption"
                )
                found.append(Violation(Rule.ACKNOWLEDGEMENT, at + number, what))
            if pid not in self._left:
                continue  # a second repetition is harmless; ``checks`` reports unknown packets
            first = self._first()
            self._left.discard(pid)
            if pid != first:
                what = f"packet {pid} was sent again before packet {first}"
                found.append(Violation(Rule.ORDER, at + number, what))
        return found

    def answered(self, event: Acked | Received | Refused | Completed | Returned) -> None:
        """Record answers, or another end: these packets need not be sent again."""
        self._left.difference_update(from_runs(event.pids))

    def overtaken(self, at: Position) -> list[Violation]:
        """Process a new message; return a violation if older packets must be sent again first."""
        if not self._left:
            return []
        what = f"a message was sent before packet {self._first()} was sent again"
        self._left.clear()
        return [Violation(Rule.ORDER, at, what)]

    def __bool__(self) -> bool:
        """Return whether packets still have to be sent again."""
        return bool(self._left)

    def _first(self) -> int:
        while self._order[0] not in self._left:
            self._order.popleft()
        return self._order[0]
