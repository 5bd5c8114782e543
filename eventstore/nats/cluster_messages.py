"""Messages between the nodes of a cluster: core NATS, over the connection of their log.

Every node publishes its status on ``foldmq.cluster.<cluster>.status`` and answers with it on
``foldmq.cluster.<cluster>.nodes``; only the leader answers on ``foldmq.cluster.<cluster>.leader``,
and on ``foldmq.cluster.<cluster>.move``, which requests to hand over the leadership. NATS reports
immediately when there is no responder. None of this is needed for safety: a lost or late message
costs time, but the log decides which node leads.
"""

import asyncio
import contextlib
from collections.abc import Callable
from enum import Enum

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from eventstore.nats.direct_client import DirectClient

_PREFIX = "foldmq.cluster."
_PUBLISH_SECONDS = 1.0


class LeaderAnswer(Enum):
    """The result of a request to the leader."""

    HERE = "here"
    """The leader answers."""
    NONE = "none"
    """No process is subscribed to the request."""
    SILENT = "silent"
    """No answer arrived in time."""


class NodeMessages:
    """The messages between the nodes of one cluster."""

    def __init__(self, client: DirectClient, cluster: str) -> None:
        self._client = client
        self._subject = f"{_PREFIX}{cluster}"

    @property
    def is_connected(self) -> bool:
        """Whether the connection to NATS is up."""
        return self._client.is_connected

    async def listen(self, take: Callable[[bytes], None]) -> None:
        """Call ``take`` with the status of each node, including this one."""
        await self._client.listen(f"{self._subject}.status", lambda _subject, data: take(data))

    async def publish(self, status: bytes) -> None:
        """Publish a status; if it cannot be sent now, it is not sent later."""
        if self._client.is_connected:
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                async with asyncio.timeout(_PUBLISH_SECONDS):
                    await self._client.publish(f"{self._subject}.status", status)

    async def answer(self, status: Callable[[], bytes]) -> None:
        """Answer commands that list the nodes."""
        await self._answer("nodes", lambda _data: status())

    async def answer_as_leader(self, status: Callable[[], bytes]) -> None:
        """Answer nodes that look for a leader."""
        await self._answer("leader", lambda _data: status())

    async def answer_moves(self, decide: Callable[[bytes], bytes]) -> None:
        """Answer requests to hand over the leadership; ``decide`` gets the node's name."""
        await self._answer("move", decide)

    async def _answer(self, name: str, reply: Callable[[bytes], bytes]) -> None:
        async def on_request(message: Msg) -> None:
            if message.reply:
                with contextlib.suppress(nats.errors.Error, OSError):
                    await message.respond(reply(message.data))

        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            await self._client.subscribe(f"{self._subject}.{name}", cb=on_request)
            await self._client.flush()

    async def ask_leader(self, seconds: float) -> LeaderAnswer:
        """Ask the cluster for its leader."""
        if not self._client.is_connected:
            await asyncio.sleep(seconds)
            return LeaderAnswer.SILENT
        try:
            await self._client.request(f"{self._subject}.leader", b"", timeout=seconds)
        except nats.errors.NoRespondersError:
            return LeaderAnswer.NONE
        except (TimeoutError, nats.errors.Error, OSError):
            return LeaderAnswer.SILENT
        return LeaderAnswer.HERE


async def ask_to_move(client: Client, cluster: str, node: str, seconds: float) -> bytes | None:
    """Ask the leader to hand over to a node, or to any; return its answer, None without one."""
    try:
        answer = await client.request(f"{_PREFIX}{cluster}.move", node.encode(), timeout=seconds)
    except (TimeoutError, nats.errors.Error, OSError):
        return None
    return answer.data


async def ask_nodes(client: Client, cluster: str, seconds: float) -> list[bytes]:
    """Return the status of every node of a cluster that answers in time."""
    statuses: list[bytes] = []

    async def take(message: Msg) -> None:
        # NATS answers with empty data when there is no responder.
        if message.data:
            statuses.append(message.data)

    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox, cb=take)
    try:
        await client.publish(f"{_PREFIX}{cluster}.nodes", b"", reply=inbox)
        await asyncio.sleep(seconds)
    finally:
        with contextlib.suppress(nats.errors.Error):
            await subscription.unsubscribe()
    return statuses
