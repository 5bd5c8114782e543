"""How much room ``keep_bytes`` leaves, and who waits for more.

The log is cut when it has filled three quarters of ``keep_bytes``. Where that takes longer than
its clients take to fill the rest, the work on it gets a larger share of the time first
(:attr:`LogQuota.pressed`), and then input waits (``Journal.ceiling``) until the log is cut. What a
cut leaves is needed: nobody waits for that to go, so that the bound moves up with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from eventstore.format import STORED_OVERHEAD

if TYPE_CHECKING:
    from actors.session import NodeContext

_log = structlog.get_logger("foldmq")

_EIGHTHS = 8
_REMIND = 60.0
"""Seconds between two lines that say that input waits."""


class LogQuota:
    """Knows how large the log is, and lets no more be appended than there is room for."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._before = 0
        """Bytes of the log when it was last asked for, less what was appended before."""
        self._left = 0
        """Bytes of the log after the last attempt to make it smaller: it is needed, or stays."""
        self._bound = 0
        self._repeated = 0
        self._told: float | None = None

    @property
    def appended(self) -> int:
        """Bytes that were appended since the start, with what JetStream stores around them."""
        stats = self._node.journal.stats
        return stats.bytes + STORED_OVERHEAD * stats.records

    @property
    def size(self) -> int:
        """Bytes of the log."""
        return self._before + self.appended

    @property
    def pressed(self) -> bool:
        """True when the bound is near: cutting the log takes precedence."""
        bound = self._node.options.keep_bytes
        if not bound:
            return False
        return self.size > max(bound - bound // _EIGHTHS, self._left + self._more // 2)

    @property
    def full(self) -> bool:
        """True while input waits for the log to be cut."""
        return self._node.journal.full

    @property
    def _more(self) -> int:
        """Bytes that may be appended to what is left, whatever the bound is."""
        # By so much it has to grow for another checkpoint to be worth it.
        return self._node.options.keep_bytes // _EIGHTHS + self._repeated // 2

    def measured(self, size: int) -> None:
        """Take note of how large the log is in fact."""
        self._before = size - self.appended

    def settle(self) -> None:
        """Take what is in the log now for what must stay in it."""
        self._left = self.size
        self.look()

    def look(self, repeated: int | None = None) -> None:
        """Set how much may be appended; ``repeated`` bytes are what a checkpoint takes."""
        if repeated is not None:
            self._repeated = repeated
        journal, bound = self._node.journal, self._node.options.keep_bytes
        if bound != self._bound:
            # At the start, or with other settings: nobody can have kept it until now.
            self._bound, self._left = bound, self.size
        if not bound:
            journal.raise_ceiling(None)
            return
        room = max(bound, self._left + self._more) - self.size
        journal.raise_ceiling(journal.stats.bytes + room)
        if journal.full and (self._told is None or self._now() - self._told > _REMIND):
            self._told = self._now()
            _log.warning(
                "the log has reached keep_bytes: input waits until it is cut",
                bytes=self.size,
                keep_bytes=bound,
            )

    def stop_waiting(self, why: str) -> None:
        """Have nobody wait any longer for a cut that is held up."""
        if self.full:
            _log.warning(
                "the log grows beyond keep_bytes: it cannot be cut",
                reason=why,
                bytes=self.size,
                keep_bytes=self._bound,
            )
            self.settle()

    def _now(self) -> float:
        return self._node.clock.monotonic()
