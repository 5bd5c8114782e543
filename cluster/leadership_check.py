"""Decides whether this leader can be sure that it still leads; takes the time as an argument.

No node can lead beside it while every other one says that it follows it; nor did one take over
before an append of its own was stored. Without either for :data:`CERTAIN_FOR` it is in doubt, and
what would need no record waits for one. In doubt for :data:`DOUBTFUL_FOR`, it lets its clients go.
"""

from __future__ import annotations

from enum import Enum

CERTAIN_FOR = 1.0
"""Seconds for which a stored record, or the other nodes, are proof."""
DOUBTFUL_FOR = 2.5
"""Seconds in doubt, after which the clients are let go."""
STOOD_STILL = 0.5
"""Seconds by which the leader's own clockwork is late when its process stood still."""


class Confidence(Enum):
    """What a leader believes."""

    CERTAIN = "certain"
    DOUBTFUL = "doubtful"
    """What its clients are sent has to wait for a record."""
    GIVEN_UP = "given up"
    """It has no clients until a record is stored."""


class LeadershipCheck:
    """What a leader believes; every time is monotonic, in seconds.

    A doubt ends with a record that was sent after it began: acknowledgements and statuses that
    waited in a socket while the process stood still prove nothing.
    """

    def __init__(self, now: float, durable: int) -> None:
        self._proved = now
        self._looked = now
        self._durable = durable
        self._since: float | None = None
        self._needed: int | None = None

    def look(self, now: float, *, durable: int, others: bool | None, connected: bool) -> Confidence:
        """Return what to believe.

        ``durable`` is the last record that is stored. ``others``: all other nodes that are known
        follow this one; None: none is known. ``connected``: the connection to NATS is up.
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
        """End the present doubt when this record is stored."""
        if self._needed is None:
            self._needed = sequence

    @property
    def needs_proof(self) -> bool:
        """Whether a record has to be appended for the doubt to end."""
        return self._since is not None and self._needed is None
