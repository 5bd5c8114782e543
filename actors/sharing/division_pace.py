"""The number of messages of a shared subscription divided in one step, and the size of pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.session.node_context import NodeContext
    from actors.sharing.member_choice import MemberChoice
    from actors.sharing.shared_members import SharedMembers

_STEPS = 4
"""Steps in one turn."""
_SERVED_AT_ONCE = 64
"""Maximum number of members served in one step; also the maximum number of messages of a step that
must examine more members than that."""
_CHECKED_AT_ONCE = 512
"""Maximum number of topics checked in such a step, divided by the number of different
permissions."""
_COMPARED_AT_ONCE = 4096
"""Maximum number of comparisons in one step: members times topics, or times distinct messages."""
_BUSY, _PIECE = 2_000, 64
"""Messages divided within a second above which pieces have a minimum size, and that size in
messages: smaller pieces would cost more than the gain in fairness."""


class DivisionPace:
    """Bounds the work of a step by the members and topics that have to be examined."""

    __slots__ = (
        "_choice",
        "_compared_in",
        "_divided",
        "_divided_since",
        "_members",
        "_node",
        "members_at_once",
    )

    def __init__(self, node: NodeContext, members: SharedMembers, choice: MemberChoice) -> None:
        self._node = node
        self._choice = choice
        self._members = members
        self._compared_in = -1
        """Number of the last turn in which all of many members were examined."""
        self._divided, self._divided_since = 0, 0.0
        """Messages divided since a monotonic time, over about a second."""
        self.members_at_once = _SERVED_AT_ONCE

    def step_size(self, topics: Sequence[bytes]) -> int:
        """Return how many messages are divided in one step, by their topics.

        The result is their number, unless many members must all be examined.
        """
        group = self._members.group
        count, online = len(topics), group.online
        if len(online) <= self.members_at_once:
            return count
        acls = {subscriber.acl for subscriber in online.values()}
        has_limit = self._members.have_packet_limit() or bool(group.refused)
        if not self._choice.examines_all and not has_limit and acls == {None}:
            return count
        self._compared_in = self._turn
        most = max(1, min(_CHECKED_AT_ONCE // len(acls), _COMPARED_AT_ONCE // len(online)))
        if has_limit:
            return min(count, most)
        seen: set[bytes] = set()
        for at, topic in enumerate(topics[: self.members_at_once]):
            seen.add(topic)
            if len(seen) > most:
                return at
        return min(count, self.members_at_once)

    @property
    def _turn(self) -> int:
        """Number of the turn; parts of longer work that run in separate turns count."""
        kernel = self._node.kernel
        return kernel.turns + kernel.parts

    @property
    def has_compared(self) -> bool:
        """True if all of many members were examined in this turn: the next step must wait."""
        return self._compared_in == self._turn

    @property
    def steps(self) -> int:
        """Number of steps in one turn."""
        return _STEPS if len(self._members.group.online) <= self.members_at_once else 1

    @property
    def piece_size(self) -> int:
        """Messages of the smallest piece: more if many were divided within a second."""
        busy = self._divided > _BUSY and self._node.clock.monotonic() - self._divided_since <= 1
        return _PIECE if busy else 1

    def count(self, count: int) -> None:
        """Count divided messages."""
        now = self._node.clock.monotonic()
        if now - self._divided_since > 1:
            self._divided, self._divided_since = 0, now
        self._divided += count
