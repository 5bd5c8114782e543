"""How far this log has taken the others, and they this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from actors.session.node_context import NodeContext
from eventstore.format.node_events import Followed
from eventstore.format.positions import Position, to_runs


class FollowedPositions:
    """Positions in the logs of a node, recorded together with the effects up to them.

    ``others`` are the names of the other logs.
    """

    def __init__(self, node: NodeContext, others: Sequence[str]) -> None:
        self._node = node
        self._others = others
        self._through: dict[str, tuple[Position, str]] = {}
        """Position and link up to which each log was taken, recorded or not."""
        self._recorded: dict[str, Position] = {}
        self._taken_by: dict[str, Position] = {}
        self._due = False
        """Whether a position must be recorded soon."""
        self._last_to_take = self._last_settled = 0
        """The last position before this log recorded only positions, and the last of these."""

    # The positions of the other logs.

    def begin(self, name: str) -> tuple[Position, str]:
        """Return the recorded position and link of a log, after which to follow it."""
        followed = self._node.state.followed.get(name)
        place = (followed.through, followed.link) if followed is not None else (0, "")
        self._through[name], self._recorded[name] = place, place[0]
        return place

    def through(self, name: str) -> Position:
        """Return the position up to which a log was taken."""
        return self._through.get(name, (0, ""))[0]

    def reached(self, name: str, through: Position, link: str, *, more: bool) -> None:
        """Record the position after turns; ``more``: with more than positions of other logs."""
        if through > self._through[name][0]:
            self._through[name] = through, link
        if more and through > self._recorded[name]:
            self._due = True

    def advance(self, name: str, through: Position, link: str) -> None:
        """Record a position up to which nothing concerned this log."""
        self._through[name] = through, link

    def record(
        self,
        name: str,
        through: Position,
        link: str,
        expired: Sequence[Position] = (),
        erased: Sequence[Position] = (),
    ) -> None:
        """Record a position, in the turn of the messages before it.

        ``expired`` and ``erased`` are the messages before it that were not taken for this reason.
        """
        self._through[name], self._recorded[name] = (through, link), through
        event = Followed(name, through, link, expired=to_runs(sorted(expired)))
        event.erased = to_runs(sorted(erased))
        self._node.emit(event)

    def settle(self, but: str = "") -> None:
        """Record the positions of all logs ``but`` one up to which nothing concerned this log."""
        for name, (through, link) in self._through.items():
            if name != but and through > self._recorded[name]:
                self.record(name, through, link)

    def settle_due(self) -> None:
        """Record positions that have not been recorded for a while."""
        node = self._node
        due, self._due = self._due, False
        self._last_to_take = self.last_to_take
        if due and not node.draining:
            self.settle()
            node.kernel.wake()
        self._last_settled = node.journal.last

    # The positions of this log.

    @property
    def taken_by(self) -> Mapping[str, Position]:
        """The position up to which each of the other logs has taken this one."""
        return self._taken_by

    def acknowledged(self, by: str, through: Position) -> None:
        """Record that another log has taken this one up to a position."""
        self._taken_by[by] = max(through, self._taken_by.get(by, 0))

    @property
    def last_to_take(self) -> Position:
        """The last position that other logs must take; after it there are only positions."""
        end = self._node.journal.last
        return self._last_to_take if end == self._last_settled else end

    def is_taken(self, through: Position) -> bool:
        """Return whether all other logs have recorded that they took this one up to a position."""
        return all(self._taken_by.get(name, 0) >= through for name in self._others)
