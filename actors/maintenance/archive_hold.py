"""Prevents deletions from the log until the records are archived, if configured.

The archive job reports the archived position to the broker, which records it in the log
(``LogArchived``), so that it is known after a restart. The last value counts, even if it is lower:
an archive may have been started again because it was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import structlog

from eventstore.format.positions import INDEX_BITS

if TYPE_CHECKING:
    from actors.session.node_context import NodeContext
    from projections.state.node_state import Checkpoint

_log = structlog.get_logger("foldmq")

_LATE = 8 * 86_400.0
"""Seconds by which the log may exceed ``keep`` without a warning: weekly archives are normal."""
_WARN_EVERY = 3600.0

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
        return archived.said.through if archived is not None else 0

    def may_delete_before(self, first: int) -> bool:
        """Return whether the records before this one may be deleted."""
        return not self._node.options.keep_until_archived or first - 1 <= self.through

    def allowed(self, wanted: Cut | None, size: int, begins_ms: int) -> Cut | None:
        """Return the allowed part of a wanted cut, or None.

        ``size`` is the size of the log in bytes, ``begins_ms`` the time of its first record.
        """
        if wanted is None or not self._node.options.keep_until_archived:
            self._warned = None
            return wanted
        checkpoint, _ = wanted
        if self.may_delete_before(checkpoint.begun >> INDEX_BITS):
            self._warned = None
            return checkpoint, "archived"
        self._warn_if_late(size, begins_ms)
        first = self._node.log.first
        able = [
            one
            for one in self._node.state.checkpoints
            if first < one.begun >> INDEX_BITS <= self.through + 1 and one.begun < checkpoint.begun
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
