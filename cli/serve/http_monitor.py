"""The port for ``/metrics`` (Prometheus), ``/healthz`` and ``/readyz``, and what they show.

It is served on the broker's event loop, so a response shows that the loop runs, from before
recovery until the broker has stopped. What reads HTTP and writes metrics is loaded at the first
connection: it would take a tenth of the memory of an idle broker.
"""

import asyncio
import contextlib
import socket
from importlib import import_module
from typing import TYPE_CHECKING, Any

import structlog

from cli.common.allowed_hosts import Hosts
from cli.common.units import Address
from cli.settings.settings import Settings
from cli.settings.socket_binding import ListenError, bind, raise_unless_default, readable
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from actors.inspection.broker_inspection import BrokerInspection
    from cli.serve.cluster_member import ClusterMember
    from cli.serve.partitioned_node import EdgeState

_log = structlog.get_logger("foldmq")

_TIMEOUT = 5.0
"""Seconds to wait for the broker's status."""


class HttpMonitor:
    """The monitoring port; the service sets the broker when it exists, and when it listens."""

    def __init__(self) -> None:
        """Start in the state of a starting broker."""
        self.inspection: BrokerInspection | None = None
        self.listening = False
        """Whether clients can connect."""
        self.member: ClusterMember | EdgeState | None = None
        """The node in its cluster; None: there is no cluster."""

    async def serve(self, stack: contextlib.AsyncExitStack, settings: Settings) -> Address | None:
        """Serve until ``stack`` closes; return the address, or None.

        Raises ListenError if an explicitly set address is not available.
        """
        if settings.metrics is None:
            return None
        hosts = Hosts([settings.metrics], settings.metrics_hosts, literals=True)
        try:
            sockets = bind(settings.metrics, "metrics")
        except ListenError as error:
            raise_unless_default(settings, "metrics", error)
            return None
        for listener in sockets:
            listener.setblocking(False)
            stack.callback(listener.close)
        serving = asyncio.create_task(self._serve(sockets, hosts), name="monitoring")
        stack.push_async_callback(_ended, serving)
        return Address(*sockets[0].getsockname()[:2])

    async def _serve(self, sockets: list[socket.socket], hosts: Hosts) -> None:
        """Answer from the first connection on."""
        await readable(sockets)
        try:
            answers: Any = await asyncio.to_thread(import_module, "cli.serve.monitor_answers")
        except ImportError as error:
            _log.error("monitoring is not served", reason=str(error))
            for listener in sockets:  # a health check fails at once, instead of waiting
                listener.close()
            return
        server = answers.MonitorServer(self, hosts)
        try:
            await server.serve(sockets)
            await asyncio.get_running_loop().create_future()
        finally:
            await server.close()

    def not_ready_reasons(self) -> list[str]:
        """Return why the broker is not ready; empty if it is ready."""
        if self.inspection is None:
            if self.member is None:
                return ["starting"]
            waiting = self.member.waiting()
            return [] if self.member.passes_on and not waiting else [waiting or "starting"]
        return self.inspection.node.not_ready_reasons() or (
            [] if self.listening else ["not listening yet"]
        )

    async def status(self) -> dict[str, Any]:
        """Return the broker's status, with the contents of sessions if available."""
        inspection = self.inspection
        ready = not self.not_ready_reasons()
        cluster = self.member.metrics() if self.member is not None else None
        if inspection is None:
            fields: dict[str, Any] = {"ready": ready, "cluster": cluster}
            if self.member is not None:
                reload = self.member.reload
                fields["reload"] = reload._asdict() if reload is not None else None
                fields["certificates"] = self.member.certificates
            return fields
        try:
            async with asyncio.timeout(_TIMEOUT):
                fields = await inspection.inspector.ask_for("status")
        except (FoldmqError, TimeoutError) as error:
            _log.warning("metrics are incomplete", reason=str(error) or "no reply in time")
            fields = inspection.status()
        return {**fields, "ready": ready, "cluster": cluster}


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    await asyncio.wait([task])
