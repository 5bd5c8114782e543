"""What an erasure does not do by itself: destinations that have contents, and other logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from actors.inspection.inspector import text
from actors.session.content_sealing import ContentSealing
from eventstore.format.positions import position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.inspection.inspector import Answer, Work
    from actors.session.node_context import NodeContext

_AT_ONCE: Final = 128
"""Topics that are compared with filters in one turn of the event loop."""


def receivers(node: NodeContext, request: Mapping[str, Any]) -> Work:
    """Return the destinations that may have contents of the topics that match ``filter``."""
    topic_filter, keyed = text(request, "filter"), [*node.state.keys.by_topic]
    names: set[str] = set()
    for begin in range(0, len(keyed), _AT_ONCE):
        for topic in keyed[begin : begin + _AT_ONCE]:
            if ContentSealing.is_erased_by(topic_filter, topic):
                names.update(node.state.destinations.receivers(topic))
        yield None
    return {"receivers": sorted(names)}


def progress(node: NodeContext, _request: Mapping[str, Any]) -> Answer:
    """Return the end of the log on disk, and up to where it has taken and followed others."""
    return {
        "durable": position(node.journal.durable + 1, 0) - 1,
        "taken": node.exchange.taken if node.exchange is not None else {},
        "pending": len(node.state.keys.pending),
    }
