"""Slows those down who publish to a client that does not keep up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.pause import Pause

if TYPE_CHECKING:
    from actors.clock import Timers
    from actors.connection import Connection

_LONGEST = 1.0
"""Seconds for which a slow reader may slow others down."""


class Brake:
    """Publishers that wait for one client.

    Not for long: a client that does not catch up must not hold up others for ever. From then on it
    loses QoS 0 messages instead, until it has caught up.
    """

    __slots__ = ("__weakref__", "_gave_up", "_held")

    def __init__(self) -> None:
        self._held: set[Connection] = set()
        self._gave_up = False

    def hold(self, publisher: Connection, timers: Timers) -> None:
        """Read nothing more from a publisher for a moment."""
        if self._gave_up or publisher.ended:
            return
        if not self._held:
            timers.remind(_LONGEST, self._give_up)
        self._held.add(publisher)
        publisher.pause(Pause.SLOW_READER)

    def release(self) -> None:
        """Let all go on: the client has caught up, or is gone."""
        held, self._held = self._held, set()
        for publisher in held:
            publisher.resume(Pause.SLOW_READER)

    def _give_up(self) -> None:
        if self._held:
            self._gave_up = True
            self.release()
