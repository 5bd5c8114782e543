"""Backpressure: briefly slows down QoS 0 publishers when NATS does not keep up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.node.read_pause import ReadPause

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.session.interfaces import ClientConnection

_LOOK = 0.005
"""Seconds between two checks whether there is room."""
_LONGEST = 0.25
"""Maximum seconds for which publishers wait for NATS."""


class NatsBackpressure:
    """Pauses publishers until there is room again, but only for a limited time.

    After that their messages are dropped until there is room again. ``room`` returns whether there
    is room, ``later`` calls a function after some seconds.
    """

    def __init__(
        self, room: Callable[[], bool], later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self._room = room
        self._later = later
        self._held: dict[ClientConnection, None] = {}
        self._gave_up = False
        self._looks = 0

    def hold(self, publisher: ClientConnection) -> None:
        """Pause a client briefly."""
        if self._gave_up or publisher.ended:
            return
        if not self._held:
            self._looks = 0
            self._later(_LOOK, self._look)
        self._held[publisher] = None
        publisher.pause(ReadPause.NATS)

    def _look(self) -> None:
        self._looks += 1
        room = self._room()
        if room or self._looks * _LOOK > _LONGEST:
            self._gave_up = not room
            held, self._held = self._held, {}
            for publisher in held:
                publisher.resume(ReadPause.NATS)
        if not room:
            self._later(_LOOK, self._look)
