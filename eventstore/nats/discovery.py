"""Discovery of the logs on a NATS server, and the names of their streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nats.aio.client import Client

LOG_STREAM_PREFIX: Final = "FOLDMQ_LOG_"
"""Prefix of the stream of a log; the name of the node follows it."""


async def list_logs(client: Client) -> list[str]:
    """Return the names of the streams that are logs of foldmq nodes; raises NatsUnavailable."""
    # imported late: it takes a third of a second, and the prefix is also needed without NATS
    from eventstore.nats.jetstream import require

    names: list[str] = []
    total = 1
    while len(names) < total:
        request = {"offset": len(names), "subject": "foldmq.log.>"}
        answer = await require(client, "STREAM.NAMES", request)
        page = answer.get("streams") or []
        total = answer.get("total", 0) if page else 0
        names += page
    return sorted(name for name in names if name.startswith(LOG_STREAM_PREFIX))
