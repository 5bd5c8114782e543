"""The connected members of a shared subscription in another log, as its home log knows them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventstore.format import Position


class RemoteMembers:
    """Members of one log: how many are connected, and how many messages they have room for.

    The other log reports both as of a position of this log up to which it has taken it; what was
    assigned behind that position takes room that it does not know of.
    """

    __slots__ = ("_assigned", "log", "online", "room", "under_way")

    def __init__(self, log: str) -> None:
        self.log = log
        """Name of the log."""
        self.online = 0
        """Number of connected members."""
        self.room = 0
        """Number of messages that they had room for."""
        self._assigned: deque[tuple[Position, int]] = deque()
        """Position and number of messages that were assigned and that it does not know of."""
        self.under_way = 0
        """The number of messages that were assigned since then."""

    def reported(self, online: int, room: int, through: Position) -> None:
        """Note what the log reports as of a position of this one."""
        self.online, self.room = online, room
        assigned = self._assigned
        while assigned and assigned[0][0] <= through:
            self.under_way -= assigned.popleft()[1]

    def assigned(self, at: Position, count: int) -> None:
        """Note messages that were assigned to the log."""
        self._assigned.append((at, count))
        self.under_way += count

    @property
    def left(self) -> int:
        """The number of messages for which there is still room."""
        return max(0, self.room - self.under_way)

    def room_of(self, number: int) -> int:
        """Return the room that is left for one of the connected members, if all have the same."""
        return (self.left + self.online - 1 - number) // self.online if self.online else 0
