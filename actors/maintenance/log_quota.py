"""The quota of the log, ``keep_bytes``, and the pause of input when it is reached.

The log is cut when it has filled three quarters of ``keep_bytes``. If clients fill the rest before
the cut is done, the cut first gets a larger share of the time (:attr:`LogQuota.pressed`), then
input waits (``Journal.limit_appends``) until the log is cut. The records that remain after it are
needed: the limit is raised by their size, so that input does not wait forever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from eventstore.format.record_size import STORED_OVERHEAD

if TYPE_CHECKING:
    from actors.session.node_context import NodeContext

_log = structlog.get_logger("foldmq")

_EIGHTHS = 8
_WARN_EVERY = 60.0
"""Seconds between two log lines about waiting input."""


class LogQuota:
    """Tracks the size of the log, and limits how much may be appended."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._before = 0
        """Bytes of the log at the last measurement, minus those appended by then."""
        self._left = 0
        """Bytes of the log after the last attempt to cut it, which are needed."""
        self._bound = 0
        self._repeated = 0
        self._warned: float | None = None

    @property
    def appended(self) -> int:
        """Bytes appended since the start, including JetStream's overhead."""
        stats = self._node.journal.stats
        return stats.bytes + STORED_OVERHEAD * stats.records

    @property
    def size(self) -> int:
        """Bytes of the log."""
        return self._before + self.appended

    @property
    def pressed(self) -> bool:
        """True when the limit is near: cutting the log takes precedence."""
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
        """Bytes that may always be appended to the remaining log."""
        # The growth from which another checkpoint is worthwhile.
        return self._node.options.keep_bytes // _EIGHTHS + self._repeated // 2

    def measured(self, size: int) -> None:
        """Record the measured size of the log."""
        self._before = size - self.appended

    def settle(self) -> None:
        """Treat the current content of the log as needed."""
        self._left = self.size
        self.look()

    def look(self, repeated: int | None = None) -> None:
        """Set how much may be appended; ``repeated`` is the size of a checkpoint in bytes."""
        if repeated is not None:
            self._repeated = repeated
        journal, bound = self._node.journal, self._node.options.keep_bytes
        if bound != self._bound:
            # At the start, or after a change of settings: the limit did not apply until now.
            self._bound, self._left = bound, self.size
        if not bound:
            journal.limit_appends(None)
            return
        room = max(bound, self._left + self._more) - self.size
        journal.limit_appends(journal.stats.bytes + room)
        if journal.full and (self._warned is None or self._now() - self._warned > _WARN_EVERY):
            self._warned = self._now()
            _log.warning(
                "the log has reached keep_bytes: input waits until it is cut",
                bytes=self.size,
                keep_bytes=bound,
            )

    def stop_waiting(self, why: str) -> None:
        """Resume input, because the cut is delayed."""
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
