"""The main process of several: its listeners, made from the settings."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import structlog

from actors.kernel.clock import SystemClock
from cli.common import logging_setup
from cli.common.units import Address
from cli.logs.cluster_keys import check_cluster_key
from cli.serve.auth_factory import Access, make_permissions, pseudonym_key
from cli.serve.banner import Facts, announce
from cli.serve.edge_factory import partition_edges
from cli.serve.limits_factory import affordable_connections, limit_options
from cli.serve.listener_factory import Listeners
from cli.serve.log_bound import log_bound
from cli.serve.log_store import bridge_access, check_files
from cli.serve.partitioned_node import PartitionedNode
from cli.serve.supervisor import Supervisor
from cli.serve.web_process import WebProcess
from cli.settings.settings import check_settings
from eventstore.nats.log_stream import durability_promise
from projections.log_proof import statement

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable

    from actors.connection.listener import ListenerOptions
    from actors.limits.limit_options import LimitOptions
    from cli.common.endpoints import Endpoint
    from cli.settings.settings import Settings
    from cluster.edge_listeners import Edges
    from eventstore.datadir import DataDir

_log = structlog.get_logger("foldmq")


class MainListeners:
    """The listeners of the main process: ``cli.serve.process_listeners.ListenerSource``.

    ``reread`` reads the settings again.
    """

    def __init__(self, settings: Settings, reread: Callable[[], Settings]) -> None:
        """Create the TLS contexts; raises TlsConfigError for invalid files."""
        self.settings = settings
        self._reread = reread
        self._listeners = Listeners(settings)
        self._options = self._made(settings)
        # Each client whose bytes pass through takes two descriptors.
        self._most = affordable_connections(settings, each=2)

    def _made(self, settings: Settings) -> list[ListenerOptions]:
        return self._listeners.options(settings, settings.max_packet_size)

    def probe(self) -> None:
        """Raise ListenError if an address cannot be bound."""
        self._listeners.probe(self.settings)

    def bind(self) -> list[tuple[Endpoint, list[socket.socket]]]:
        """Bind all listeners; return their addresses and sockets. Raises ListenError."""
        return [self._listeners.bind(own) for own in self.settings.listeners()]

    def options(self) -> list[ListenerOptions]:
        """Return the options of each listener."""
        return self._options

    def edges(self, datadir: DataDir, logs: int) -> Edges:
        """Return what passes clients on to the leaders of the logs of a cluster."""
        key = self.pseudonym_key(datadir)
        return partition_edges(self.settings, datadir.node(), self._most, SystemClock(), logs, key)

    def pseudonym_key(self, datadir: DataDir) -> bytes:
        """Return the key of pseudonyms, created at the first call; empty without pseudonyms."""
        return pseudonym_key(self.settings, datadir)

    def limits(self) -> tuple[LimitOptions, int]:
        """Return the limits, and the maximum of clients whose bytes pass through."""
        return limit_options(self.settings, self._most), self._most

    async def reload(self) -> None:
        """Read the settings again; raises FoldmqError, OSError or ValueError for invalid ones."""
        merged = self.settings.reloaded(await asyncio.to_thread(self._reread))
        check_settings(merged)
        self._options = await asyncio.to_thread(self._made, merged)
        self._listeners.reloaded(merged)
        self._most = affordable_connections(merged, each=2)
        self.settings = merged
        logging_setup.set_level(merged.log_level)
        _log.info("settings reloaded in the main process")

    def close(self) -> None:
        """Stop the TLS threads and remove the files of Unix sockets."""
        self._listeners.close()


async def run_partitioned(settings: Settings, reread: Callable[[], Settings]) -> None:
    """Run a node of a cluster with several logs; raises the FoldmqError that prevents it."""
    listeners = MainListeners(settings, reread)
    try:
        _check(settings, listeners)
        await PartitionedNode(listeners, _PageBeside(settings, told=True).served).run()
    finally:
        listeners.close()


class _PageBeside:
    """The web page, about all logs."""

    def __init__(self, settings: Settings, *, told: bool = False) -> None:
        """``told``: a log line names the address, since there is no banner."""
        self.web = WebProcess(settings)
        self._announced = told

    @contextlib.asynccontextmanager
    async def served(self, datadir: DataDir) -> AsyncIterator[None]:
        """Serve the page; raises ListenError if an explicit address is not available."""
        async with self.web as web:
            await web.start(datadir)
            if web.address is not None and self._announced:
                _log.info("web page", address=web.address)
            yield


def _check(settings: Settings, listeners: MainListeners) -> int:
    """Check the files and addresses before a process is started; return the number of users."""
    listeners.probe()
    make_permissions(settings)
    check_files(settings)
    check_cluster_key(settings)
    authenticator = Access(settings, "", None).authenticator(settings)
    users = authenticator.user_count
    authenticator.close()
    return users


async def supervise(settings: Settings, reread: Callable[[], Settings]) -> None:
    """Run several broker processes; raises the FoldmqError that prevents it."""
    listeners = MainListeners(settings, reread)
    users = _check(settings, listeners)
    pages = _PageBeside(settings)

    def tell(listening: list[Endpoint], datadir: DataDir, where: str) -> None:
        embedded = settings.nats_url is None
        visitors = supervisor.nats_clients
        server = visitors.server if visitors is not None else None
        bridge = bridge_access(settings, server.access() if server is not None else None)
        facts = Facts(
            listening=listening,
            metrics=settings.metrics,
            web=pages.web.address,
            web_token=pages.web.token,
            users=users,
            data=str(datadir.path),
            node=datadir.node(),
            nats=where,
            kept=log_bound(settings, datadir if embedded else None).shown(settings.keep),
            promise=durability_promise(1, settings.sync if embedded else None),
            durable=embedded and settings.sync == "always",
            nats_clients=Address(*server.address) if server is not None else None,
            nats_users=visitors.users if visitors is not None else 0,
            bridge=bridge.where if bridge is not None else None,
            not_proven=[
                f"log {member.name}: {statement(doubt)}"
                for member in supervisor.members
                for doubt in member.doubts
            ],
        )
        announce(settings, facts)

    try:
        supervisor = Supervisor(listeners, tell, settings.processes, pages.served)
        await supervisor.run()
    finally:
        listeners.close()
