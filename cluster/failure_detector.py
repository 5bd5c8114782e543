"""A follower's judgement of the leader: whether it is there, and why it is replaced."""

from enum import Enum, StrEnum

from eventstore.nats.cluster_messages import LeaderAnswer

SILENT_AFTER = 0.3
"""Seconds without a status of the leader, after which the follower asks it."""
ASK_SECONDS = 0.25
"""Seconds within which the leader has to answer."""
ASK_AGAIN = 0.1
"""Seconds between two requests to the leader."""
CONFIRM_AFTER = 0.05
"""The same after NATS reported that no process would answer."""
UNREACHABLE_AFTER = 2.0
"""Seconds without a status or an answer, after which the leader is replaced."""
MAX_UNREACHABLE_AFTER = 16.0
_CERTAIN = 2
"""Consecutive "no responders" replies of NATS after which the leader counts as dead."""


class Cause(StrEnum):
    """The reason for which another leader is needed."""

    FIRST = "first"
    """The log had no leader before."""
    STOPPED = "stopped"
    """The leader shut down cleanly."""
    DEAD = "dead"
    """The leader's process is gone."""
    SILENT = "silent"
    """The leader does not answer: its process is suspended, or cut off from NATS."""


class Step(Enum):
    """The next action of a follower."""

    FOLLOW = "follow"
    ASK = "ask"
    TAKE_OVER = "take over"


class FailureDetector:
    """A follower's judgement of the leader; every time is monotonic, in seconds."""

    def __init__(self, now: float) -> None:
        self._heard = now
        self._asked = float("-inf")
        self._absent = 0
        self._suspected = False
        self._unreachable_after = UNREACHABLE_AFTER
        self.cause: Cause | None = None
        """Reason for a takeover; None: there is no reason yet."""

    def silence(self, now: float) -> float:
        """Return the seconds since the last sign of life of a leader."""
        return now - self._heard

    def heard(self, now: float) -> None:
        """Record a sign of life of the leader."""
        self._heard = now
        self._absent = 0
        self.cause = None

    def stopped(self) -> None:
        """Record that the leader announced its end."""
        self.cause = Cause.STOPPED

    def suspect(self) -> None:
        """Record that the leader closed a connection: its process may be gone."""
        self._suspected = True

    def answered(self, answer: LeaderAnswer, now: float) -> None:
        """Record the result of a request to the leader.

        It does not matter once the leader has announced its end: it may be from before that.
        """
        self._asked = now
        if self.cause is Cause.STOPPED:
            return
        if answer is LeaderAnswer.HERE:
            self._suspected = False
            self.heard(now)
            self._unreachable_after = UNREACHABLE_AFTER
        elif answer is LeaderAnswer.NONE:
            self._absent += 1
            if self._absent >= _CERTAIN:
                self.cause = Cause.DEAD
        else:
            self._absent = 0

    def refused(self, now: float) -> None:
        """Record that the log refused the takeover: another node writes it, so wait longer."""
        self.heard(now)
        self._unreachable_after = min(2 * self._unreachable_after, MAX_UNREACHABLE_AFTER)

    def step(self, now: float) -> Step:
        """Return the action that is due now."""
        if self.cause is not None:
            return Step.TAKE_OVER
        if now - self._heard < SILENT_AFTER and not self._suspected:
            return Step.FOLLOW
        if now - self._heard >= self._unreachable_after:
            self.cause = Cause.SILENT
            return Step.TAKE_OVER
        wait = CONFIRM_AFTER if self._absent else ASK_AGAIN
        return Step.ASK if now - self._asked >= wait else Step.FOLLOW
