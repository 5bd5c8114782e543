"""The connected members of a shared subscription in another log, as its home log knows them."""

from collections import deque

from eventstore.format.positions import Position


class RemoteMembers:
    """Members of one log: how many are connected, and how many messages they have room for.

    The other log reports both as of the position up to which it has taken this log; messages that
    were assigned after that position take some of the reported room.
    """

    __slots__ = ("_assigned", "log", "online", "room", "under_way")

    def __init__(self, log: str) -> None:
        self.log = log
        """Name of the log."""
        self.online = 0
        """Number of connected members."""
        self.room = 0
        """Number of messages that they had room for, as reported."""
        self._assigned: deque[tuple[Position, int]] = deque()
        """Position and number of messages that were assigned after the report."""
        self.under_way = 0
        """The number of messages that were assigned since then."""

    def reported(self, online: int, room: int, through: Position) -> None:
        """Record a report of the log as of a position of this one."""
        self.online, self.room = online, room
        assigned = self._assigned
        while assigned and assigned[0][0] <= through:
            self.under_way -= assigned.popleft()[1]

    def assigned(self, at: Position, count: int) -> None:
        """Record messages that were assigned to the log."""
        self._assigned.append((at, count))
        self.under_way += count

    @property
    def left(self) -> int:
        """The number of messages for which there is still room."""
        return max(0, self.room - self.under_way)

    def room_of(self, number: int) -> int:
        """Return the remaining room of one of the connected members, if it is divided equally."""
        return (self.left + self.online - 1 - number) // self.online if self.online else 0
