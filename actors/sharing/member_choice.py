"""How a shared subscription chooses the member that gets a message (MQTT 5, section 4.8.2).

A further choice is one more :class:`MemberChoice`, and its name in the setting ``shared_strategy``.
"""

import zlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar, Final, NamedTuple

from actors.routing.remote_members import RemoteMembers
from actors.routing.shared_groups import SharedGroup
from actors.routing.subscriber import Subscriber
from actors.session.session import Session

_NONE: frozenset[int] = frozenset()


class SharedMember(NamedTuple):
    """A connected member."""

    subscriber: Subscriber
    session: Session | None
    """None: the member is a client of another log."""
    room: int
    barred: AbstractSet[int]
    """Numbers of the messages that the member may not receive or does not accept."""


class Assignment(NamedTuple):
    """The messages assigned to each member, by their numbers in the batch."""

    pieces: list[Sequence[int]]
    """For each member the numbers of its messages, ascending."""
    waiting: Sequence[int]
    """Messages for which no member has room, ascending."""
    refused: Sequence[int]
    """Messages that no member may receive or accepts, ascending."""


class Rows(NamedTuple):
    """The candidate members, as columns."""

    rooms: Sequence[int]
    """The number of messages that each member has room for."""
    barred: Sequence[AbstractSet[int]] = ()
    """Numbers of the messages that each member may not receive or that exceed its packet limit;
    empty: no member is barred from any."""
    alike: Sequence[bytes] = ()
    """For each message a key; messages with the same key are barred from the same members; empty:
    messages have no key."""
    pools: Sequence[int] = ()
    """For each member the number of the first member that shares its room; empty: each member has
    its own room."""


class MemberChoice:
    """Chooses the members that get the messages of a shared subscription."""

    __slots__ = ()

    examines_all: ClassVar[bool] = False
    """Whether the choice depends on all connected members, not on enough of them with room."""

    def ordered(self, group: SharedGroup) -> Iterable[Subscriber]:
        """Return the connected members in the order in which they are examined."""
        raise NotImplementedError

    def room_there(self, remote: RemoteMembers, place: int) -> int:
        """Return the room of a member of another log, one of those connected there."""
        raise NotImplementedError

    def pools(self, members: Sequence[SharedMember]) -> Sequence[int]:  # noqa: ARG002
        """Return for each member the number of the first one that has the same room.

        Empty: each member has its own room.
        """
        return ()

    def assign(self, topics: Sequence[bytes], members: Rows) -> Assignment:
        """Assign messages, given by their topics, to members."""
        raise NotImplementedError

    def keeps_topics(self, group: SharedGroup, members: Sequence[SharedMember]) -> bool:  # noqa: ARG002
        """Return whether the member for a topic depends only on the set of connected members."""
        return False


class BalancedChoice(MemberChoice):
    """Messages go to the next members in turn that have room."""

    __slots__ = ()

    def ordered(self, group: SharedGroup) -> Iterable[Subscriber]:
        """Begin behind the member that was served last."""
        return group.rotated()

    def room_there(self, remote: RemoteMembers, place: int) -> int:
        """Divide the room of a log equally among its members."""
        return remote.room_of(place)

    def assign(self, topics: Sequence[bytes], members: Rows) -> Assignment:
        """Divide messages among members by their room; the first members get the remainder.

        Each member gets consecutive messages, and no more than it has room for.
        """
        count = len(topics)
        if not any(members.barred):
            pieces = _divide(range(count), members.rooms)
            return Assignment(pieces, range(sum(map(len, pieces)), count), ())
        rooms = list(members.rooms)
        shares: list[list[int]] = [[] for _ in rooms]
        waiting: list[int] = []
        refused: list[int] = []
        for allowed, numbers in _by_members(count, members).items():
            if not allowed:
                refused += numbers
                continue
            parts = _divide(numbers, [rooms[place] for place in allowed])
            for place, part in zip(allowed, parts, strict=True):
                rooms[place] -= len(part)
                shares[place] += part
            waiting += numbers[sum(map(len, parts)) :]
        return Assignment([sorted(share) for share in shares], sorted(waiting), sorted(refused))


class TopicChoice(MemberChoice):
    """All messages on a topic go to one member, until the set of members changes."""

    __slots__ = ()

    examines_all = True

    def ordered(self, group: SharedGroup) -> Iterable[Subscriber]:
        """Return members in the order of their names."""
        return group.ordered()

    def room_there(self, remote: RemoteMembers, place: int) -> int:  # noqa: ARG002
        """Return the room of the log, which its members have together: see :meth:`pools`."""
        return remote.left

    def pools(self, members: Sequence[SharedMember]) -> Sequence[int]:
        """Return for each member the number of the first one that has the same room."""
        first: dict[str, int] = {}
        firsts = []
        for number, member in enumerate(members):
            remote = member.subscriber.remote
            firsts.append(number if remote is None else first.setdefault(remote.log, number))
        return firsts

    def assign(self, topics: Sequence[bytes], members: Rows) -> Assignment:
        """Assign all messages on a topic to one member, chosen by the topic and the set of members.

        If that member has no room, its message waits, and so do all messages behind it.
        """
        rooms, barred, alike = list(members.rooms), members.barred, members.alike
        pools = members.pools or range(len(rooms))
        shares: list[list[int]] = [[] for _ in rooms]
        refused: list[int] = []
        everyone = range(len(rooms))
        cache: dict[object, Sequence[int]] = {}
        for number, topic in enumerate(topics):
            allowed: Sequence[int] | None = everyone
            if barred:
                key = alike[number] if alike else number
                allowed = cache.get(key)
                if allowed is None:
                    allowed = [place for place in everyone if number not in barred[place]]
                    cache[key] = allowed
            if not allowed:
                refused.append(number)
                continue
            chosen = allowed[zlib.crc32(topic) % len(allowed)]
            if not rooms[pools[chosen]]:
                return Assignment([*shares], range(number, len(topics)), refused)
            rooms[pools[chosen]] -= 1
            shares[chosen].append(number)
        return Assignment([*shares], (), refused)

    def keeps_topics(self, group: SharedGroup, members: Sequence[SharedMember]) -> bool:
        """Return whether all connected members are in this log and may get every message."""
        return (
            not group.logs
            and len(members) == len(group.online)
            and not any(
                member.subscriber.acl is not None or has_packet_limit(member) for member in members
            )
        )


CHOICES: Final[dict[str, MemberChoice]] = {
    "balanced": BalancedChoice(),
    "topic": TopicChoice(),
}
"""The choices by their name in the settings."""


def has_packet_limit(member: SharedMember) -> bool:
    """Return whether a member is a client of this log with a maximum packet size."""
    return member.session is not None and bool(member.session.delivery.packet_limit)


def first_ones(assignment: Assignment) -> Assignment:
    """Return the assignment of the messages before the first one that waits.

    Messages can leave a queue only at its head.
    """
    pieces, waiting, refused = assignment
    if not waiting:
        return assignment
    end = waiting[0]
    return Assignment(
        [piece[: bisect_left(piece, end)] for piece in pieces],
        waiting,
        refused[: bisect_left(refused, end)],
    )


def _divide(numbers: Sequence[int], rooms: Sequence[int]) -> list[Sequence[int]]:
    """Cut messages into one piece for each member, in proportion to its room."""
    total = sum(rooms)
    count = min(len(numbers), total)
    sizes = [count * room // total for room in rooms] if count else [0] * len(rooms)
    remainder = count - sum(sizes)
    for place, room in enumerate(rooms):
        if not remainder:
            break
        if sizes[place] < room:
            sizes[place] += 1
            remainder -= 1
    pieces: list[Sequence[int]] = []
    at = 0
    for size in sizes:
        pieces.append(numbers[at : at + size])
        at += size
    return pieces


def _by_members(count: int, members: Rows) -> dict[tuple[int, ...], list[int]]:
    """Group messages by the members that may receive them.

    Members barred from the same messages share one set in ``barred``: each set is searched once for
    messages with the same key.
    """
    barred, alike = members.barred, members.alike
    kinds = list({id(numbers): numbers for numbers in barred}.values())
    restricted = _NONE.union(*kinds)
    cache: dict[object, tuple[bool, ...]] = {}
    groups: dict[tuple[bool, ...], list[int]] = defaultdict(list)
    for number in range(count):
        kind: tuple[bool, ...] = ()
        if number in restricted:
            key = alike[number] if alike else number
            if key not in cache:
                cache[key] = tuple([number in group for group in kinds])
            kind = cache[key]
        groups[kind].append(number)
    return {
        tuple(place for place, numbers in enumerate(barred) if group[0] not in numbers): group
        for group in groups.values()
    }
