"""What a cut of the log waits for: the archive, and how much may be appended meanwhile."""

from __future__ import annotations

from typing import TypeAlias

import structlog

from actors.session.node_context import NodeContext
from eventstore.format.positions import INDEX_BITS
from eventstore.format.record_size import STORED_OVERHEAD
from projections.state.node_state import Checkpoint

_log = structlog.get_logger("foldmq")

_WARN_EVERY = 3600.0
"""Seconds between two warnings that the log exceeds its limits."""
_LATE = 8 * 86_400.0
"""Seconds by which the log may exceed ``keep`` without a warning: weekly archives are normal."""

Cut: TypeAlias = "tuple[Checkpoint, str]"
"""The checkpoint before which the log is cut, and the reason."""


class ArchiveHold:
    """Decides how much of a cut is allowed (``keep_until_archived``)."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._warned: float | None = None
        """When it was last logged that the log exceeds its limits; None while it does not."""

    @property
    def through(self) -> int:
        """The last archived record; 0 if none is known."""
        archived = self._node.state.archived
        return archived.event.through if archived is not None else 0

    def may_delete_before(self, first: int) -> bool:
        """Return whether the records before this one may be deleted."""
        return not self._node.options.keep_until_archived or first - 1 <= self.through

    def allowed(self, cut: Cut | None, size: int, begins_ms: int) -> Cut | None:
        """Return the allowed part of a wanted cut, or None.

        ``size`` is the size of the log in bytes, ``begins_ms`` the time of its first record.
        """
        if cut is None or not self._node.options.keep_until_archived:
            self._warned = None
            return cut
        checkpoint, _ = cut
        if self.may_delete_before(checkpoint.begun >> INDEX_BITS):
            self._warned = None
            return checkpoint, "archived"
        self._warn_if_late(size, begins_ms)
        first = self._node.log.first
        able = [
            each
            for each in self._node.state.checkpoints
            if first < each.begun >> INDEX_BITS <= self.through + 1
            and each.begun < checkpoint.begun
        ]
        return (able[-1], "archived") if able else None

    def _warn_if_late(self, size: int, begins_ms: int) -> None:
        """Warn periodically while the log is larger than configured, or much older."""
        node, options = self._node, self._node.options
        now, age = node.clock.monotonic(), (node.clock.steady_ms() - begins_ms) / 1000
        if options.keep_bytes and size > options.keep_bytes:
            bound = "keep_bytes"
        elif options.keep and age > options.keep + _LATE:
            bound = "keep"
        else:
            return
        if self._warned is not None and now - self._warned < _WARN_EVERY:
            return
        self._warned = now
        _log.warning(
            f"the log exceeds {bound}: it is kept until it is archived",
            bytes=size,
            first=node.log.first,
            archived=self.through,
            last=node.journal.durable,
        )


_EIGHTHS = 8
_QUOTA_WARN_EVERY = 60.0
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
        if journal.full and (
            self._warned is None or self._now() - self._warned > _QUOTA_WARN_EVERY
        ):
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
