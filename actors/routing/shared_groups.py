"""The shared subscriptions of this node and their members.

A shared subscription ``$share/NAME/FILTER`` is a session of that name without a connection. It is
in the subscription index under FILTER; its members are not. It begins with its first member and
ends with its last one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Final

from protocol.mqtt5 import SHARE, split_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from actors.routing.subscriber import Subscriber


def is_shared(topic_filter: str) -> bool:
    """Return whether a topic filter, or the name of a session, denotes a shared subscription."""
    return topic_filter.startswith(SHARE) and all(split_share(topic_filter))


class SharedGroup:
    """The members of a shared subscription."""

    __slots__ = ("_names", "last_served", "members", "online", "told")

    def __init__(self) -> None:
        self.members: set[str] = set()
        """Client identifiers of all members."""
        self.online: dict[str, Subscriber] = {}
        """The connected members, with their subscriptions."""
        self.last_served = ""
        """The member that got a message last."""
        self.told = False
        """Whether the group's session has been told that a member has room."""
        self._names: list[str] = []
        """The names of the connected members, sorted."""

    def rotated(self) -> Iterator[Subscriber]:
        """Yield the connected members, beginning behind the one served last.

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


_EMPTY: Final = SharedGroup()
"""Stands for a shared subscription that does not exist."""


class SharedGroups:
    """The shared subscriptions of a node, by ``$share/NAME/FILTER``."""

    __slots__ = ("_groups", "_of", "memberships", "on_change", "waiting", "wake")

    def __init__(self) -> None:
        self._groups: dict[str, SharedGroup] = {}
        self._of: dict[str, set[str]] = {}
        """The shared subscriptions of each connected member."""
        self.memberships = 0
        """Number of members of all shared subscriptions."""
        self.waiting: set[str] = set()
        """Shared subscriptions with queued messages."""
        self.on_change: Callable[[str], object] = _nothing
        """Called with the name of a shared subscription that got its first member or lost its last
        one."""
        self.wake: Callable[[str], object] = _nothing
        """Called with the name of one with queued messages when a member may have room."""

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
        group = self._groups.get(name)
        is_new = group is None
        if group is None:
            group = self._groups[name] = SharedGroup()
        self.memberships += session not in group.members
        group.members.add(session)
        if is_new:
            self.on_change(name)

    def left(self, name: str, session: str) -> None:
        """Record that a session is no longer a member, if it was one."""
        group = self._groups.get(name)
        if group is None or session not in group.members:
            return
        self._disconnected(name, session)
        group.members.discard(session)
        self.memberships -= 1
        if not group.members:
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
        if group.online:
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

    def has_room(self, session: str) -> None:
        """Wake the shared subscriptions that may have messages for a member."""
        for name in self._of.get(session, ()):
            self._wake(name, self._groups[name])

    def _wake(self, name: str, group: SharedGroup) -> None:
        if name in self.waiting and not group.told:
            group.told = True
            self.wake(name)


def _nothing(_name: str) -> None:
    """Do nothing."""
