"""Decides whether reads wait for each other: one record for many messages costs a fraction.

A read with a PUBLISH of QoS 1 or 2 may wait for at most ``delay`` seconds if all of this holds:

1. Others are expected: at the rate of such reads, one more comes within the delay.
2. Fewer than half of the reads that wait are from *closed loops*: clients that got output less than
   two delays ago, and may have sent because of it. A client that still sends when its read has
   waited for half of the delay does not depend on the answer: it is no closed loop for a second. To
   recognise such clients, now and then reads of closed loops wait, too.
3. Waiting is worth it: few reads, of few bytes, wait so far.
4. The last turn took less than the delay. (The kernel's owner may rule out waiting altogether.)

Times are seconds of any one clock; nothing here reads it.
"""

import math
from typing import Final

_QUIET: Final[float] = 0.1
"""Interval between two reads, in seconds, that ends what is known of their rate."""
_WEIGHT: Final[float] = 1 / 32
"""Weight of the last interval in the mean."""
_READS, _BYTES = 16, 16 * 1024
"""Number and size of reads that are worth a record of their own."""
_INDEPENDENT: Final[float] = 1.0
"""Seconds for which a client counts as independent of answers."""
_PROBE: Final[int] = 200
"""Delays between two waits in which closed loops wait, too: they lose half a percent."""


class Gathering:
    """The reads that wait, and the rate of reads."""

    def __init__(self) -> None:
        self.delay = 0.0
        """Maximum seconds for which a read waits; 0: reads do not wait."""
        self.began = math.inf
        """Time of the first read that waits; infinite: none does."""
        self._reads = self._size = self._closed = 0
        self._probing = False
        self._probed = -math.inf
        self._last = -math.inf
        self._mean = _QUIET
        """Mean of the intervals between reads."""

    def independent_until(self, now: float, joined: float, until: float) -> float:
        """Return until when a client counts as independent of answers: ``until``, or later.

        ``joined`` is the time at which its last read began to wait.
        """
        waited = now - joined
        if joined >= self.began and self.delay / 2 <= waited:
            return now + _INDEPENDENT
        return until

    def joins(self, now: float, size: int, *, released: float, until: float, took: float) -> bool:
        """Count a read with a PUBLISH of QoS 1 or 2; return whether it waits.

        If not, all reads that wait are to be handled now. ``released`` is the time of the last
        output for the client, ``until`` the time until which it is independent of answers, and
        ``took`` the duration of the last turn.
        """
        delay = self.delay
        interval = now - self._last
        self._last = now
        self._mean = (
            _QUIET if interval >= _QUIET else self._mean + (interval - self._mean) * _WEIGHT
        )
        self._reads += 1
        self._size += size
        if now - released < 2 * delay and now >= until:
            self._closed += 1
        if (
            self._mean > delay
            or took >= delay
            or self._reads >= _READS
            or self._size >= _BYTES
            or not (self._probing or 2 * self._closed < self._reads or self._probes(now))
        ):
            return False
        if self._reads == 1:
            self.began = now
        return True

    def _probes(self, now: float) -> bool:
        """Return whether reads of closed loops are to wait this time."""
        if self._reads > 1 or now - self._probed < _PROBE * self.delay:
            return False
        self._probed, self._probing = now, True
        return True

    def left(self, now: float) -> float:
        """Return for how many seconds an answer of a handshake may join a wait; 0: none is open."""
        return max(0.0, self.began + self.delay - now) if self.began <= now else 0.0

    def end(self) -> None:
        """Begin again: the reads that waited are handled."""
        self.began = math.inf
        self._reads = self._size = self._closed = 0
        self._probing = False
