"""Activates the frozen sessions that get a message, some in each turn."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

_AT_ONCE, _FOR = 64, 0.001
"""Maximum number of sessions activated in one turn for one client, and seconds spent on them."""
_FEW: Final = 8
"""Number of sessions that may be activated in several turns for any number of topics."""
_BEGUN, _ABANDONED = 8, 1.0
"""Maximum number of topics whose receivers are activated in several turns at a time, and seconds
after which one that nothing is done for may be replaced by another one."""


class _Begun:
    """The sessions still to be activated for a topic, the next one last."""

    __slots__ = ("last", "names")

    def __init__(self, names: Sequence[str]) -> None:
        self.names = [*reversed(names)]
        self.last = 0.0


class Activation:
    """Activates frozen sessions before they get messages.

    ``activate`` activates one session; it does nothing if the session is active already.
    """

    def __init__(self, activate: Callable[[str], object], clock: Callable[[], float]) -> None:
        self._activate = activate
        self._clock = clock
        self._begun: dict[bytes, _Begun] = {}
        """What is left to be done for each topic that needs several turns."""

    def is_pending(self) -> bool:
        """Return whether sessions for some topic are being activated, in several turns."""
        if self._begun:
            oldest = self._clock() - _ABANDONED
            for topic, begun in list(self._begun.items()):
                if begun.last < oldest:
                    del self._begun[topic]
        return bool(self._begun)

    def goes_on(self, topic: bytes) -> bool:
        """Continue to activate the receivers of a topic; return whether some are left."""
        return topic in self._begun and not self.activate([(topic, ())])

    def activate(self, receivers: Iterable[tuple[bytes, Sequence[str]]]) -> int:
        """Activate the frozen receivers of topics, within the limits for a turn.

        Returns the number of topics, from the first one, of which all are active now. What is
        left is done in further turns, by the same call or :meth:`goes_on`.
        """
        until = self._clock() + _FOR
        room = _AT_ONCE
        count = 0
        for topic, names in receivers:
            if count and (room <= 0 or self._clock() >= until):
                break
            begun = self._begun.get(topic)
            if begun is None:
                if len(names) > _FEW and self.is_pending() and len(self._begun) >= _BEGUN:
                    break
                begun = _Begun(names)
            room = self._activate_some(begun, room, until)
            if begun.names:
                self._begun[topic] = begun
                break
            self._begun.pop(topic, None)
            count += 1
        return count

    def _activate_some(self, begun: _Begun, most: int, until: float) -> int:
        """Activate at least one of some sessions; return how many more may be."""
        names = begun.names
        while names:
            self._activate(names.pop())
            most -= 1
            if most <= 0 or self._clock() >= until:
                break
        begun.last = self._clock()
        return most
