"""The lock of a node id: a running broker answers requests for its id on NATS.

Two brokers with the same node id on one server would fence each other off in turn. The expected
sequence of each append keeps the log correct in any case; the lock prevents the start of the second
broker.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import nats.errors
import orjson

from eventstore.errors import NodeBusy

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

_ANSWER_SECONDS = 2.0
"""Seconds to wait for an answer; a broker that does not answer has ended, or will be fenced off."""


async def lock_node(client: Client, node: str, where: str) -> None:
    """Answer for a node until the client is closed; raise NodeBusy if another broker does."""
    subject = f"foldmq.node.{node}"
    try:
        reply = await client.request(subject, b"", timeout=_ANSWER_SECONDS)
    except (TimeoutError, nats.errors.Error):
        pass
    else:
        raise NodeBusy(node, where, _described(reply.data))
    me = orjson.dumps({"pid": os.getpid(), "host": socket.gethostname()})

    async def answer(message: Msg) -> None:
        await message.respond(me)

    await client.subscribe(subject, cb=answer)
    await client.flush()


def _described(answer: bytes) -> str:
    try:
        told = orjson.loads(answer)
        return f"process {told['pid']} on {told['host']}"
    except (ValueError, KeyError, TypeError):
        return "a broker that does not name its process"
