"""The main process of a node of a cluster with several logs.

With ``--cluster NAME --partitions P`` each process follows or leads a log of the cluster, as a node
of a cluster with one log does, and clients are passed on to the node that leads the log of their
session.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from actors.kernel.clock import SystemClock
from cli.logs.key_files import cluster_key
from cli.serve.auth_factory import pseudonym_key
from cli.serve.broker_process import COUNTS
from cli.serve.edge_factory import client_tls_context
from cli.serve.http_monitor import HttpMonitor
from cli.serve.limits_factory import limit_options
from cli.serve.log_store import open_cluster
from cli.serve.main_process import MainProcess
from cluster.edge_listeners import Edges
from cluster.status import Role, decode_status
from eventstore.nats.cluster_messages import NodeMessages
from eventstore.nats.jetstream import ServerWatch
from eventstore.partitions import partition_names

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

    from actors.node.reload_outcome import ReloadOutcome
    from cli.common.endpoints import Endpoint
    from cli.settings.settings import Settings
    from eventstore.datadir import DataDir

_log = structlog.get_logger("foldmq")

_PARKED_SECONDS: Final = 10.0
"""Seconds without a leader of a log, after which the node is not ready."""
_SILENT: Final = 3.0
"""Seconds without a status, after which its sender counts as not heard."""
_LOOK_EVERY: Final = 1.0
"""Seconds between two checks whether the leaders are heard."""
_COUNT_EVERY: Final = 0.5
"""Seconds between two reports of the clients that are passed on, to the processes of their logs."""


class PartitionedNode(MainProcess):
    """Runs a process for each log of a cluster, and passes clients on to their leaders."""

    def __init__(self, settings: Settings, reread: Callable[[], Settings], count: int) -> None:
        super().__init__(settings, reread, count)
        self._monitor = HttpMonitor()

    async def prepare(self, stack: contextlib.AsyncExitStack, datadir: DataDir) -> Edges:
        """Find the leaders of the logs, and create the data directories of the processes."""
        settings = self.settings
        cluster, node = settings.cluster, datadir.node()
        assert cluster is not None  # noqa: S101 - cli.settings.storage_settings
        await self._monitor.serve(stack, settings)
        client = await open_cluster(stack, settings, node)
        names = partition_names(cluster, len(self.members))
        own = partition_names(node, len(self.members))
        for member, name in zip(self.members, own, strict=True):
            member.prepare(datadir, name, names, {}, {}, cluster=True)
        key = pseudonym_key(settings, datadir)
        edges = Edges(
            node,
            cluster_key(settings),
            client_tls_context(settings),
            limit_options(settings, self.most),
            self.most,
            SystemClock().monotonic,
            len(names),
            key,
        )
        state = EdgeState(edges, node)
        self._monitor.member = state
        for number, name in enumerate(names):
            await NodeMessages(client, name).listen(partial(state.take, number))
        watching = asyncio.create_task(state.watch(ServerWatch(client, "status of a leader")))
        stack.callback(watching.cancel)
        counting = asyncio.create_task(self._report_counts(edges), name="counts")
        stack.callback(counting.cancel)
        return edges

    def note_reload(self, outcome: ReloadOutcome) -> None:
        """Report it in the metrics as well."""
        super().note_reload(outcome)
        if isinstance(self._monitor.member, EdgeState):
            self._monitor.member.reload = outcome

    async def serve(self, listening: list[Endpoint], datadir: DataDir) -> None:
        """Accept clients at once; they wait until there is a leader of their log."""
        if self.web.address is not None:
            _log.info("web page", address=self.web.address)
        self.listen()
        _log.info(
            "node of a cluster",
            cluster=self.settings.cluster,
            node=datadir.node(),
            logs=len(self.members),
            listening=", ".join(map(str, listening)),
        )
        await self.all_ready()
        self.notifier.ready(self.describe)

    async def _report_counts(self, edges: Edges) -> None:
        while True:
            for member, link in zip(self.members, edges.links, strict=True):
                member.send(COUNTS.pack(len(link.open), link.parked))
            await asyncio.sleep(_COUNT_EVERY)


class EdgeState:
    """The readiness of a node that passes clients on: ``cli.serve``'s view of a cluster."""

    passes_on = True

    def __init__(self, edges: Edges, node: str) -> None:
        self.reload: ReloadOutcome | None = None
        self.certificates: list[dict[str, Any]] = []
        """Empty: the processes report them."""
        self._edges = edges
        self._node = node
        names = partition_names(node, len(edges.links))
        self._names = names
        self._now = asyncio.get_running_loop().time
        self._led = [self._now()] * len(names)
        """When a leader of each log was heard last."""
        self._own: list[tuple[float, str]] = [(self._now(), "")] * len(names)
        """When each process of this node was heard last, and the problem that it reported."""

    def take(self, log: int, data: bytes) -> None:
        """Process the status of a node."""
        status = decode_status(data)
        if status is None:
            return
        if status.node == self._names[log]:
            self._own[log] = self._now(), status.problem
        if status.role is Role.LEADING:
            self._led[log] = self._now()
        self._edges.heard(status, log)

    async def watch(self, server: ServerWatch) -> None:
        """Change the NATS server if no leader is heard over it, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            if self._now() - min(self._led) > _SILENT:
                await server.unanswered()
            else:
                server.answered()

    def waiting(self) -> str:
        """Return why some clients would not be served; empty if all are."""
        away: dict[str, list[str]] = {}
        for link in self._edges.links:
            if reason := link.waiting(_PARKED_SECONDS):
                away.setdefault(reason, []).append(str(link.number))
        return "; ".join(f"{reason} of log {', '.join(logs)}" for reason, logs in away.items())

    @property
    def state(self) -> dict[str, str]:
        """The leader of each log, and why this node does not follow it, for ``/readyz``."""
        fields = {"node": self._node, "role": "edge"}
        for link in self._edges.links:
            if link.leader is not None:
                fields[f"leader_{link.number}"] = link.leader.node
        for log, (heard, problem) in enumerate(self._own):
            silence = self._now() - heard
            if silence > _SILENT:
                fields[f"problem_{log}"] = (
                    f"its process was not heard over NATS for {silence:.0f} s"
                )
            elif problem:
                fields[f"problem_{log}"] = problem
        return fields

    def metrics(self) -> dict[str, Any]:
        """Return the metrics of the node."""
        return {"edge_clients": self._edges.clients, "parked": self._edges.parked}
