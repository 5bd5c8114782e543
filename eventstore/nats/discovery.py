"""Which logs a NATS server has, and what their streams are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from eventstore.errors import NatsUnavailable

if TYPE_CHECKING:
    from nats.aio.client import Client

LOG_STREAM_PREFIX: Final = "FOLDMQ_LOG_"
"""The stream of a log is called so, with the node behind it."""
_SECONDS: Final = 10.0


async def list_logs(client: Client) -> list[str]:
    """Return the names of the streams that are logs of foldmq nodes; raises NatsUnavailable."""
    import nats.errors  # takes a third of a second, and the prefix is asked for without NATS, too

    names: list[str] = []
    seen, total = 0, 1
    while seen < total:
        body = orjson.dumps({"offset": seen, "subject": "foldmq.log.>"})
        try:
            reply = await client.request("$JS.API.STREAM.NAMES", body, timeout=_SECONDS)
        except (TimeoutError, nats.errors.Error) as error:
            raise NatsUnavailable(
                f"JetStream does not list its streams: {error or 'time-out'}"
            ) from None
        answer = orjson.loads(reply.data)
        page = answer.get("streams") or []
        total = answer.get("total", 0) if page else 0
        seen += len(page)
        names += [stream for stream in page if stream.startswith(LOG_STREAM_PREFIX)]
    return sorted(names)
