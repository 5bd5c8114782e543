"""Rules that decide whether a leader can be certain that it still leads; the time is an argument.

No other node can lead while every one of them reports that it follows this leader. No other node
had taken over before a record of this leader was stored. Without either proof for
:data:`CERTAIN_FOR` the leader is in doubt, and output that needs no record waits for one. In doubt
for :data:`DOUBTFUL_FOR`, the leader disconnects its clients.
"""

from __future__ import annotations

from enum import Enum

CERTAIN_FOR = 1.0
"""Seconds for which a stored record, or the statuses of the other nodes, are proof."""
DOUBTFUL_FOR = 2.5
"""Seconds in doubt, after which the leader disconnects its clients."""
STOOD_STILL = 0.5
"""Delay of the leader's own timer, in seconds, from which its process counts as suspended."""


class Confidence(Enum):
    """A leader's confidence in its leadership."""

    CERTAIN = "certain"
    DOUBTFUL = "doubtful"
    """Output to clients has to wait for a record."""
    GIVEN_UP = "given up"
    """The leader has no clients until a record is stored."""


class LeadershipCheck:
    """The judgement of a leader about its leadership; every time is monotonic, in seconds.

    A doubt ends with a record that was sent after the doubt began. Acknowledgements and statuses
    that waited in a socket while the process was suspended prove nothing.
    """

    def __init__(self, now: float, durable: int) -> None:
        self._proved = now
        self._looked = now
        self._durable = durable
        self._since: float | None = None
        self._needed: int | None = None

    def look(self, now: float, *, durable: int, others: bool | None, connected: bool) -> Confidence:
        """Return the confidence at a time.

        ``durable`` is the last stored record. ``others`` says whether all other known nodes follow
        this one; None: no other node is known. ``connected`` says whether the connection to NATS
        is up.
        """
        late = now - self._looked > STOOD_STILL
        advanced = durable > self._durable
        self._looked, self._durable = now, durable
        if self._since is None:
            if not late and (advanced or (connected and others is not False)):
                self._proved = now
            if late or not connected or now - self._proved > CERTAIN_FOR:
                self._since, self._needed = now, None
        elif self._needed is not None and durable >= self._needed:
            self._since, self._proved = None, now
        if self._since is None:
            return Confidence.CERTAIN
        return Confidence.DOUBTFUL if now - self._since < DOUBTFUL_FOR else Confidence.GIVEN_UP

    def needs(self, sequence: int) -> None:
        """End the present doubt when the record of this sequence is stored."""
        if self._needed is None:
            self._needed = sequence

    @property
    def needs_proof(self) -> bool:
        """Whether the present doubt needs a record to end."""
        return self._since is not None and self._needed is None
