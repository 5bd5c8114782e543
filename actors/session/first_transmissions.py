"""The times at which unfinished deliveries were first sent, if ``ack_wait`` repeated them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from projections.state.session import InFlight, SessionState


class FirstTransmissions:
    """Unfinished deliveries of a session as they were before they were sent again.

    Redelivery overwrites the time of a delivery in the folded state.
    """

    __slots__ = ("_resent",)

    def __init__(self) -> None:
        self._resent: dict[tuple[int, bool], InFlight] = {}
        """By packet identifier, and whether the PUBREL was sent again."""

    def keep(self, state: SessionState, pids: Iterable[int], *, released: bool) -> None:
        """Remember deliveries that are about to be sent again."""
        table = state.releasing if released else state.inflight
        for pid in pids:
            self._resent[pid, released] = self._first(pid, table[pid], released=released)

    def _first(self, pid: int, sent: InFlight, *, released: bool) -> InFlight:
        """Return an unfinished delivery as it was before ``ack_wait`` repeated it."""
        first = self._resent.get((pid, released))
        if first is None or first.ref != sent.ref or first.subscription is not sent.subscription:
            return sent  # the packet identifier may now belong to another delivery
        return first

    def forget_completed(self, state: SessionState) -> None:
        """Forget the deliveries that the client has completed."""
        kept: dict[tuple[int, bool], InFlight] = {}
        for (pid, released), first in self._resent.items():
            sent = (state.releasing if released else state.inflight).get(pid)
            if sent is not None and first.ref == sent.ref:
                kept[pid, released] = first
        self._resent = kept

    def oldest_ms(self, state: SessionState, *, released: bool) -> int:
        """Return when the oldest unfinished delivery was first sent; 0: there is none.

        ``released``: when the first PUBREL was sent, of the deliveries that wait for PUBCOMP.
        Redelivery after ``ack_wait`` does not count; redelivery after a reconnect does.
        """
        table = state.releasing if released else state.inflight
        if not self._resent:
            return min([sent.sent_ms for sent in table.values()], default=0)
        first = self._first
        times = [first(pid, sent, released=released).sent_ms for pid, sent in table.items()]
        return min(times, default=0)
