"""The other nodes of the cluster, from their own statuses.

Differences that make a takeover visible to clients are logged once each, by name: another version,
other users or permissions, a clock that is off.
"""

import hashlib
from collections import deque
from collections.abc import Callable

import structlog

from cluster.leader import CERTAIN_FOR
from cluster.status import NodeStatus, Role

_log = structlog.get_logger("foldmq")

_FORGOTTEN_AFTER = 60.0
"""Seconds without a status, after which a node counts as removed."""
_CLOCK_OFF_MS = 1000
"""Difference of two clocks above which it is reported, in milliseconds."""
_CLOCK_LOOKS = 20
"""Consecutive statuses that have to show the difference."""
_CLOCK_STEADY_MS = 500
"""Milliseconds by which they may disagree: those that have waited somewhere, and arrive together,
disagree by as long as they were sent one after the other."""
_RANK_SECONDS = 0.05
"""Seconds that a candidate waits for each candidate that precedes it."""
_SHORT = 12


class Members:
    """The other nodes; every time is monotonic, in seconds."""

    def __init__(self, node: str, time_ms: Callable[[], int]) -> None:
        self._node = node
        self._time_ms = time_ms
        self._last: dict[str, tuple[float, NodeStatus]] = {}
        self._offs: dict[str, deque[int]] = {}
        self._authorities = ""
        """Digests of the authorities that this node accepts."""
        self._logged: set[tuple[str, str, str]] = set()

    def heard(self, status: NodeStatus, now: float, mine: NodeStatus) -> None:
        """Record the status of another node."""
        if status.role is Role.STOPPED:
            self._last.pop(status.node, None)
            return
        self._last[status.node] = now, status
        self._authorities = mine.authorities
        self._compare(status, mine)

    def others(self, now: float) -> list[NodeStatus]:
        """Return the last status of each other known node."""
        for node, (heard, _) in list(self._last.items()):
            if now - heard > _FORGOTTEN_AFTER:
                del self._last[node]
        return [status for _, status in self._last.values()]

    def follow(self, epoch: int, now: float) -> bool | None:
        """Return whether all other nodes follow the leader of an epoch; None if none is known."""
        if not self.others(now):
            return None
        return all(
            now - heard <= CERTAIN_FOR and status.role is not Role.LEADING and status.epoch <= epoch
            for heard, status in self._last.values()
        )

    def leader(self, now: float) -> NodeStatus | None:
        """Return the known leader with the highest epoch."""
        leading = [status for status in self.others(now) if status.role is Role.LEADING]
        return max(leading, key=lambda status: status.epoch, default=None)

    def successor(self, node: str, now: float) -> NodeStatus | str:
        """Return the node to hand over to, or why there is none.

        ``node`` is its name; empty: the one that has folded most of the log.
        """
        there = {
            status.node: status
            for status in self.others(now)
            if self._why_not(status.node, now) is None
        }
        if node:
            chosen = there.get(node) or self._does_not_follow(node, now)
            if isinstance(chosen, str) or self._trusts(chosen):
                return chosen
            return f"node {node} has another cluster_tls_ca: no node could pass clients on to it"
        there = {name: status for name, status in there.items() if self._trusts(status)}
        if not there:
            return "no other node follows this leader"
        return max(there.values(), key=lambda status: (status.sequence, self._order(status.node)))

    def _does_not_follow(self, node: str, now: float) -> str:
        reason = self._why_not(node, now)
        return f"node {node} does not follow this leader" + (f": {reason}" if reason else "")

    def _why_not(self, node: str, now: float) -> str | None:
        """Return why a node does not follow this leader, empty if unknown; None if it does."""
        if node not in self._last:
            return ""
        heard, status = self._last[node]
        if now - heard > CERTAIN_FOR:
            return f"nothing was heard of it for {now - heard:.0f} s"
        if status.role is not Role.FOLLOWING:
            return f"it is {status.role}"
        return status.problem or None

    def preferred(self, number: int, now: float) -> str:
        """Return the node that is to lead a log of several, by its number; empty: this one.

        The nodes take the logs in turn, in the order of their names. It is this node too while the
        other one does not follow, or while a node starts.
        """
        others = self.others(now)
        if any(status.role is Role.STARTING for status in others):
            return ""
        nodes = sorted([self._node, *(status.node for status in others)])
        preferred = nodes[number % len(nodes)]
        if preferred == self._node or isinstance(self.successor(preferred, now), str):
            return ""
        return preferred

    def wait_before_takeover(self, sequence: int, now: float) -> float:
        """Return the seconds to wait: nodes that have folded more of the log precede this one."""
        mine = (-sequence, self._order(self._node))
        first = [
            status
            for status in self.others(now)
            if status.role is Role.FOLLOWING
            and now - self._last[status.node][0] <= CERTAIN_FOR
            and (-status.sequence, self._order(status.node)) < mine
        ]
        return len(first) * _RANK_SECONDS

    def _trusts(self, other: NodeStatus) -> bool:
        """Return whether this node and another one accept certificates of the same authority."""
        mine, theirs = self._authorities, other.authorities
        return not mine or not theirs or not set(mine.split(",")).isdisjoint(theirs.split(","))

    @staticmethod
    def _order(node: str) -> bytes:
        return hashlib.sha256(node.encode()).digest()

    def _compare(self, other: NodeStatus, mine: NodeStatus) -> None:
        who = f"node {other.node} ({other.host})"
        if other.version != mine.version:
            line = f"{who} runs foldmq {other.version}, this one {mine.version}"
            self._log_difference(other, "version", other.version, line)
        for what, here, there in (
            ("users", mine.users, other.users),
            ("permissions", mine.permissions, other.permissions),
        ):
            if here != there:
                line = f"{who} has different {what} from this one"
                self._log_difference(other, what, there, line)
        if not self._trusts(other):
            line = (
                f"{who} has another cluster_tls_ca than this one: the two cannot pass clients on "
                "to each other"
            )
            self._log_difference(other, "authorities", other.authorities, line)
        off = self._clock_off(other)
        if other.role is Role.LEADING and abs(off) > _CLOCK_OFF_MS:
            way = "ahead of" if off > 0 else "behind"
            line = (
                f"the clock of this node is {abs(off) / 1000:.1f} s {way} that of the leader, "
                f"{who}: set it by NTP"
            )
            self._log_difference(other, "clock", way, line)

    def _clock_off(self, other: NodeStatus) -> int:
        """Return by how many milliseconds this node's clock is ahead, 0 while that is not known.

        A status may be delayed on its way, so the one with the shortest delay is the most accurate.
        """
        offs = self._offs.setdefault(other.node, deque(maxlen=_CLOCK_LOOKS))
        offs.append(self._time_ms() - other.time_ms)
        if len(offs) < _CLOCK_LOOKS or max(offs) - min(offs) > _CLOCK_STEADY_MS:
            return 0
        return min(offs)

    def _log_difference(self, other: NodeStatus, what: str, value: str, line: str) -> None:
        key = other.node, what, value[:_SHORT]
        if key not in self._logged:
            self._logged.add(key)
            _log.warning(line)
