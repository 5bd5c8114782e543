"""The shared subscriptions of this node and their members.

A shared subscription ``$share/NAME/FILTER`` is a session of that name without a connection. It is
in the subscription index under FILTER; its members are not. It begins with its first member and
ends with its last one.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from actors.routing.remote_members import RemoteMembers
from actors.routing.subscriber import Subscriber
from eventstore.format.events import LOG_SESSION
from eventstore.format.positions import Position

_REMOTE_AT_MOST = 1024
"""Maximum number of members of another log that are distinguished."""
_RETURNED_AT_MOST = 65_536
"""Maximum number of messages that are remembered as returned by other logs."""
_HIGHEST_QOS = 2


class SharedGroup:
    """The members of a shared subscription."""

    __slots__ = (
        "_names",
        "home",
        "last_served",
        "logs",
        "members",
        "notified",
        "online",
        "refused",
        "remote",
        "returned",
    )

    def __init__(self) -> None:
        self.members: set[str] = set()
        """Client identifiers of all members whose sessions are in this log."""
        self.home = ""
        """The log whose shared subscription passes messages to this one; empty: this one matches
        topics."""
        self.logs: set[str] = set()
        """Other logs that have members."""
        self.remote: dict[str, RemoteMembers] = {}
        """Their connected members, by log."""
        self.returned: dict[Position, None] = {}
        """Messages that another log returned: they are older than their positions suggest."""
        self.refused: dict[Position, list[str]] = {}
        """Message -> the logs whose members may not receive or do not accept it."""
        self.online: dict[str, Subscriber] = {}
        """The connected members, with their subscriptions; those of other logs have names that the
        broker assigns."""
        self.last_served = ""
        """The member that got the last message."""
        self.notified = False
        """Whether the group's session has been notified that a member has room."""
        self._names: list[str] = []
        """The names of the connected members, sorted."""

    def rotated(self) -> Iterator[Subscriber]:
        """Yield the connected members, beginning after the one served last.

        No member may connect or disconnect meanwhile.
        """
        names, online = self._names, self.online
        begin = bisect_right(names, self.last_served)
        for at in range(begin, len(names)):
            yield online[names[at]]
        for at in range(begin):
            yield online[names[at]]

    def ordered(self) -> Iterator[Subscriber]:
        """Yield the connected members by client identifier."""
        return map(self.online.__getitem__, self._names)

    def connected(self, subscriber: Subscriber) -> None:
        """Record that a member is connected."""
        name = subscriber.session
        if name not in self.online:
            insort(self._names, name)
        self.online[name] = subscriber

    def disconnected(self, name: str) -> None:
        """Record that a member is disconnected."""
        if self.online.pop(name, None) is not None:
            del self._names[bisect_left(self._names, name)]

    @property
    def size(self) -> int:
        """Number of members whose sessions are in this log, and of other logs with members."""
        return len(self.members) + len(self.logs)

    @property
    def is_empty(self) -> bool:
        """Whether this log knows of no members in any log."""
        return not (self.members or self.logs)

    @property
    def has_present(self) -> bool:
        """Whether a connected member may read messages that match its subscription."""
        return any(member.may_read for member in self.online.values())

    def note_returned(self, refs: Sequence[Position]) -> None:
        """Record messages that another log returned; beyond a limit the oldest are forgotten."""
        returned = self.returned
        returned.update(dict.fromkeys(refs))
        while len(returned) > _RETURNED_AT_MOST:
            del returned[next(iter(returned))]

    def set_remote(self, remote: RemoteMembers, name: str, online: int) -> int:
        """Set the number of connected members that another log has in the rotation.

        Return how many have joined or left.
        """
        online = min(online, _REMOTE_AT_MOST)
        changed = abs(online - remote.online)
        for place in range(online, remote.online):
            self.disconnected(_name_of(remote.log, place))
        for place in range(remote.online, online):
            member = Subscriber(_name_of(remote.log, place), name, _HIGHEST_QOS)
            member.remote, member.place = remote, place
            self.connected(member)
        remote.online = online
        return changed


def _name_of(log: str, place: int) -> str:
    return f"{LOG_SESSION}{log}/{place:04d}"


_EMPTY: Final = SharedGroup()
"""Placeholder for a shared subscription that does not exist."""


class SharedGroups:
    """The shared subscriptions of a node, by ``$share/NAME/FILTER``."""

    def __init__(self) -> None:
        self._groups: dict[str, SharedGroup] = {}
        self._of: dict[str, set[str]] = {}
        """The shared subscriptions of each connected member."""
        self.memberships = 0
        """Number of members of all shared subscriptions."""
        self.waiting: set[str] = set()
        """Shared subscriptions with queued messages."""
        self.home_of: Callable[[str], str] = _here
        """Returns the log that is the home of a shared subscription; empty: this one."""
        self.on_change: Callable[[str], object] = _nothing
        """Called with the name of a shared subscription that got its first member or lost its last
        one."""
        self.wake: Callable[[str], object] = _nothing
        """Called with the name of a shared subscription with queued messages when a member may have
        room."""

    def __len__(self) -> int:
        """Return the number of shared subscriptions."""
        return len(self._groups)

    def __bool__(self) -> bool:
        """Return whether it is not empty; a compiled class does not use ``__len__`` for this."""
        return len(self) > 0

    def __contains__(self, name: object) -> bool:
        """Return whether a shared subscription exists, that is, has members."""
        return name in self._groups

    def __iter__(self) -> Iterator[str]:
        """Yield the shared subscriptions."""
        return iter(self._groups)

    def find(self, name: str) -> SharedGroup:
        """Return a shared subscription; an empty one if it does not exist."""
        return self._groups.get(name, _EMPTY)

    def is_full(self, name: str, session: str, most: int) -> bool:
        """Return whether no session may join because there are ``most`` members; 0: unlimited."""
        members = self.find(name).members
        return 0 < most <= len(members) and session not in members

    def joined(self, name: str, session: str) -> None:
        """Record a member, connected or not."""
        group, is_new = self._begin(name)
        self.memberships += session not in group.members
        group.members.add(session)
        if is_new:
            self.on_change(name)

    def _begin(self, name: str) -> tuple[SharedGroup, bool]:
        """Return a shared subscription, and whether it is new."""
        group = self._groups.get(name)
        if group is not None:
            return group, False
        group = self._groups[name] = SharedGroup()
        group.home = self.home_of(name)
        return group, True

    def log_joined(self, name: str, log: str) -> None:
        """Record that another log has members."""
        group, is_new = self._begin(name)
        group.logs.add(log)
        if is_new:
            self.on_change(name)

    def log_left(self, name: str, log: str) -> None:
        """Record that another log no longer has members."""
        group = self._groups.get(name)
        if group is None or log not in group.logs:
            return
        self.report(name, log, 0, 0, 0)
        group.remote.pop(log, None)
        group.logs.discard(log)
        self._end_if_empty(name, group)

    def report(self, name: str, log: str, online: int, room: int, through: Position) -> int:
        """Record the connected members of another log: see ``RemoteMembers.reported``.

        Return how many have joined or left.
        """
        group = self._groups.get(name)
        if group is None or log not in group.logs:
            return 0
        remote = group.remote.get(log)
        if remote is None:
            remote = group.remote[log] = RemoteMembers(log)
        changed = group.set_remote(remote, name, online)
        remote.reported(remote.online, room, through)
        if group.online:
            self._wake(name, group)
        return changed

    def of_log(self, log: str) -> list[str]:
        """Return the shared subscriptions with connected members in another log."""
        return [
            name
            for name, group in self._groups.items()
            if (remote := group.remote.get(log)) is not None and remote.online
        ]

    def lost(self, name: str, log: str) -> None:
        """Treat the members of a log that no longer reports as disconnected."""
        group = self.find(name)
        remote = group.remote.get(log)
        if remote is not None and remote.online:
            group.set_remote(remote, name, 0)
            self._wake(name, group)

    def left(self, name: str, session: str) -> None:
        """Record that a session is no longer a member, if it was one."""
        group = self._groups.get(name)
        if group is None or session not in group.members:
            return
        self._disconnected(name, session)
        group.members.discard(session)
        self.memberships -= 1
        self._end_if_empty(name, group)

    def _end_if_empty(self, name: str, group: SharedGroup) -> None:
        if group.is_empty:
            del self._groups[name]
            self.waiting.discard(name)
            self.on_change(name)

    def connected(self, subscriber: Subscriber) -> None:
        """Record that a member is connected."""
        name = subscriber.filter
        group = self._groups.get(name)
        if group is not None and subscriber.session in group.members:
            group.connected(subscriber)
            self._of.setdefault(subscriber.session, set()).add(name)
            self._wake(name, group)

    def disconnected(self, subscriber: Subscriber) -> None:
        """Record that a member is disconnected."""
        self._disconnected(subscriber.filter, subscriber.session)

    def _disconnected(self, name: str, session: str) -> None:
        group = self.find(name)
        group.disconnected(session)
        if group.online or group.home:
            self._wake(name, group)  # messages for this member may go to others
        names = self._of.get(session)
        if names is not None:
            names.discard(name)
            if not names:
                del self._of[session]

    def has_messages(self, name: str) -> None:
        """Record that messages are queued in a shared subscription, and wake it."""
        self.waiting.add(name)
        self._wake(name, self.find(name))

    def await_room(self, session: str) -> bool:
        """Return whether shared subscriptions of a connected member wait for room."""
        return bool(self.waiting) and session in self._of

    def has_room(self, session: str) -> None:
        """Wake the shared subscriptions that may have messages for a member."""
        for name in self._of.get(session, ()):
            self._wake(name, self._groups[name])

    def _wake(self, name: str, group: SharedGroup) -> None:
        if name in self.waiting and not group.notified:
            group.notified = True
            self.wake(name)


def _here(_name: str) -> str:
    return ""


def _nothing(_name: str) -> None:
    """Do nothing."""
