"""Decides when a follower takes over from the leader; takes the time as an argument.

A leader that is heard leads. Once it has been silent for :data:`SILENT_AFTER` it is asked. NATS
knows whether a process is there to answer: if none is, twice in a row, the leader is dead. If one
is there and does not answer, it stands still or is cut off, and gets :data:`PATIENCE` in all.
"""

from __future__ import annotations

from enum import Enum, StrEnum

from eventstore.nodes import LeaderAnswer

SILENT_AFTER = 0.3
"""Seconds without a status of the leader, after which it is asked."""
ASK_SECONDS = 0.25
"""Seconds in which it has to answer."""
ASK_AGAIN = 0.1
"""Seconds between two questions."""
PATIENCE = 2.0
"""Seconds without a status or an answer, after which a leader that does not answer is replaced."""
MOST_PATIENCE = 16.0
_CERTAIN = 2
"""Answers of NATS in a row that nothing is there, which it takes to believe it."""


class Cause(StrEnum):
    """Why another leader is needed."""

    FIRST = "first"
    """There was none before."""
    STOPPED = "stopped"
    """It ended in order."""
    DEAD = "dead"
    """Its process is gone."""
    SILENT = "silent"
    """It does not answer: it stands still, or is cut off."""


class Step(Enum):
    """What a follower does next."""

    FOLLOW = "follow"
    ASK = "ask"
    TAKE_OVER = "take over"


class FailureDetector:
    """What a follower thinks of the leader; every time is monotonic, in seconds."""

    def __init__(self, now: float) -> None:
        self._heard = now
        self._asked = float("-inf")
        self._absent = 0
        self._patience = PATIENCE
        self.cause: Cause | None = None
        """Why to take over; None: there is no reason yet."""

    def heard(self, now: float) -> None:
        """Record that the leader gave a sign of life."""
        self._heard = now
        self._absent = 0
        self.cause = None

    def stopped(self) -> None:
        """Record that the leader said it has ended."""
        self.cause = Cause.STOPPED

    def answered(self, answer: LeaderAnswer, now: float) -> None:
        """Record what came of asking the leader."""
        self._asked = now
        if answer is LeaderAnswer.HERE:
            self.heard(now)
            self._patience = PATIENCE
        elif answer is LeaderAnswer.NONE:
            self._absent += 1
            if self._absent >= _CERTAIN:
                self.cause = Cause.DEAD
        else:
            self._absent = 0

    def refused(self, now: float) -> None:
        """Record that the log refused to be taken over: somebody writes, so be more patient."""
        self.heard(now)
        self._patience = min(2 * self._patience, MOST_PATIENCE)

    def step(self, now: float) -> Step:
        """Return what to do now."""
        if self.cause is not None:
            return Step.TAKE_OVER
        if now - self._heard < SILENT_AFTER:
            return Step.FOLLOW
        if now - self._heard >= self._patience:
            self.cause = Cause.SILENT
            return Step.TAKE_OVER
        return Step.ASK if now - self._asked >= ASK_AGAIN else Step.FOLLOW
