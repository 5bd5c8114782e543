"""A process as a node of a cluster: it follows the log, takes it over, and announces that."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
from typing import TYPE_CHECKING, Any

import structlog

from actors.maintenance import software
from cluster import Leader, Members, NodeStatus, Role, Standby
from eventstore.nodes import NodeMessages
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable
    from pathlib import Path

    from actors.kernel import Clock
    from actors.maintenance import ClusterHooks
    from cli.logsource import Store
    from cli.settings import Settings
    from cluster import Leadership

_log = structlog.get_logger("foldmq")

_DIGEST = 12
"""Hexadecimal digits of a digest that distinguishes files."""
_GOODBYE_SECONDS = 1.0


class SteppedDown(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """Another node leads, or the log has to be read again: this process restarts."""


class ClusterMember:
    """The node of this process in its cluster."""

    def __init__(
        self, settings: Settings, store: Store, cluster: str, node: str, clock: Clock
    ) -> None:
        self._store = store
        self._clock = clock
        self._cluster = cluster
        self._messages = NodeMessages(store.client, cluster)
        self._members = Members(node, clock.time_ms)
        self._me = NodeStatus(
            node,
            Role.STARTING,
            0,
            0,
            "",
            0,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=software(),
            users=_digest(settings.password_file, settings.jwt_keys),
            permissions=_digest(settings.permissions),
        )
        self._standby: Standby | None = None
        self._leader: Leader | None = None

    @property
    def _part(self) -> Standby | Leader | None:
        return self._leader or self._standby

    async def lead(
        self,
        stack: contextlib.AsyncExitStack,
        progress: Callable[[int, int], None],
        on_following: Callable[[], object],
    ) -> Leadership:
        """Follow the log until this node leads; raises as :meth:`Standby.lead`.

        ``on_following`` is called when the log has been read.
        """
        standby = Standby(
            self._store.log,
            self._messages,
            self._members,
            self._clock,
            self._cluster,
            self._me,
            on_following,
        )
        self._standby = standby
        stack.push_async_callback(self._say_goodbye)
        await self._messages.listen(self._take)
        await self._messages.answer(self._status)
        return await standby.lead(progress)

    async def begin(self, stack: contextlib.AsyncExitStack, led: ClusterHooks, epoch: int) -> None:
        """Announce from now on that this node leads."""
        self._leader = Leader(self._messages, self._members, self._clock, self._me, epoch, led)
        await self._messages.answer_as_leader(self._status)
        running = asyncio.create_task(self._leader.run(), name="cluster leader")

        async def end() -> None:
            running.cancel()
            await asyncio.wait({running})

        stack.push_async_callback(end)
        running.add_done_callback(lambda task: _report(task, led))

    def serves_at(self, listening: list[str]) -> None:
        """Announce the address for clients to the other nodes."""
        if self._leader is not None:
            self._leader.listen = listening

    def waiting(self) -> str:
        """Return why this node serves no clients; empty if it leads."""
        standby = self._standby
        if self._leader is not None or standby is None:
            return ""
        if standby.role is Role.STARTING:
            return "starting"
        leader = standby.leader
        return f"following node {leader.node}" if leader is not None else "no leader is known"

    def metrics(self) -> dict[str, Any]:
        """Return the metrics of the cluster."""
        part = self._part
        if part is None:
            return {}
        status = part.status()
        behind = part.behind
        return {
            "leader": int(self._leader is not None),
            "epoch": status.epoch,
            "behind": behind if isinstance(behind, int) else 0,
        }

    async def _say_goodbye(self) -> None:
        """Announce to the other nodes that this node has ended, so that they do not wait for it."""
        part = self._part
        if part is not None:
            part.role = Role.STOPPED
            await self._messages.publish(part.status().encode())

    def _status(self) -> bytes:
        part = self._part
        return part.status().encode() if part is not None else b""

    def _take(self, data: bytes) -> None:
        part = self._part
        if part is not None:
            part.take(data)


def _report(task: asyncio.Task[None], led: ClusterHooks) -> None:
    """End the broker when it can no longer announce that it leads."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("the leader's work failed", exc_info=error)
        led.fail(FoldmqError(f"the work as leader failed: {error}; please report"))


def _digest(*files: Path | None) -> str:
    """Return a digest of the contents of files; empty if there are none."""
    read = [file.read_bytes() for file in files if file is not None and file.is_file()]
    if not read:
        return ""
    return hashlib.sha256(b"\0".join(read)).hexdigest()[:_DIGEST]
