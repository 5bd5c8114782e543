"""The main process of several: it starts the broker processes, and passes clients on to them.

With ``--processes N`` each process has a log of this machine, and the main process runs the NATS
server. ``cli.serve.partitioned_node`` does it for a node of a cluster with several logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson
import structlog

from actors.connection.listener import ListenerOptions
from actors.kernel.clock import SystemClock
from actors.node.reload_outcome import ReloadOutcome
from cli.common import logging_setup
from cli.common.endpoints import Endpoint
from cli.common.units import Address
from cli.serve.auth_factory import Access, pseudonym_key
from cli.serve.banner import Facts, announce
from cli.serve.broker_process import (
    GIVEN,
    MEMBER_VARIABLE,
    READY,
    RELOAD,
    MemberFacts,
    reloaded_message,
)
from cli.serve.key_checks import check_keys
from cli.serve.limits_factory import affordable_connections, limit_options
from cli.serve.listener_factory import Listeners
from cli.serve.log_bound import log_bound
from cli.serve.log_store import (
    bridge_access,
    check_files,
    nats_tls,
    start_embedded,
    start_for_clients,
    users_of_clients,
)
from cli.serve.process_edges import ProcessEdges
from cli.serve.systemd_notify import Notifier
from cli.serve.web_process import WebProcess
from cli.settings.access_files import make_permissions
from cli.settings.setting_sources import ConfigError
from cli.settings.settings import Settings, check_settings
from cluster.edge_listeners import Edges
from eventstore.datadir import DataDir
from eventstore.format.records import FORMAT
from eventstore.nats.log_stream import durability_promise
from eventstore.partitions import partition_names
from eventstore.server.client_server import ClientServer
from eventstore.server.disk_recovery import DiskRecovery
from eventstore.task_cancellation import end_tasks
from projections.log_proof import Doubt, doubts_of, statement
from protocol.errors import FoldmqError

_log = structlog.get_logger("foldmq")

_BACK_OFF, _MAX_BACK_OFF = 0.1, 5.0
"""Seconds before a process that has ended is started again, at first and at most."""
_STARTS: Final = 5
"""Starts in a row that may fail before the others are stopped."""
_MAX_MESSAGE: Final = 64 * 1024
"""Maximum bytes of a message of a process."""
_GRACE: Final = 5.0
"""Seconds beyond ``commit_timeout`` that processes get to end."""
_LAST_BYTES: Final = 1.0
"""Seconds in which clients get what processes sent before they ended."""
_LOOK: Final = 0.02


class ProcessFailed(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """A broker process cannot be started, or did not stop cleanly."""

    def __init__(self, number: int, code: int, what: str = "cannot be started") -> None:
        super().__init__(f"broker process {number} {what}: the lines above say why")
        self.exit_code = code if code > 0 else 70


def check_process_count(datadir: DataDir, processes: int) -> None:
    """Record the number of processes of a data directory; raise ConfigError for another one.

    Each process has a log of its own, and sessions belong to a log by their number.
    """
    file = datadir.processes
    try:
        recorded = int(json.loads(file.read_text("utf-8")))
    except FileNotFoundError:
        recorded = 1 if (datadir.path / "log.mark").exists() else 0
    except (OSError, ValueError, TypeError):
        raise ConfigError(
            f"{file}: damaged: write the number of processes that this data directory is for"
        ) from None
    if recorded not in (0, processes):
        raise ConfigError(
            f"processes = {processes}: data directory {datadir.path} has the logs of {recorded} "
            f"processes: set processes = {recorded}, or use another data directory"
            if recorded > 1
            else f"processes = {processes}: data directory {datadir.path} has the log of one "
            "process: set processes = 1, or use another data directory"
        )
    if not recorded and processes > 1:
        datadir.write_private(file, f"{processes}\n")


class MainProcess:
    """Runs ``count`` broker processes until SIGTERM or SIGINT; ``reread`` reads the settings again.

    The web page, about all logs, is served beside them.
    """

    edges: Edges
    """Passes clients on."""
    _failed: asyncio.Future[None]

    def __init__(self, settings: Settings, reread: Callable[[], Settings], count: int) -> None:
        """Create the TLS contexts; raises TlsConfigError for invalid files."""
        self.settings = settings
        self._reread = reread
        self._listeners = Listeners(settings)
        self.options = self._options(settings)
        # Each client whose bytes pass through takes two descriptors.
        self.most = affordable_connections(settings, each=2)
        """Maximum number of such clients."""
        self.web = WebProcess(settings)
        self.notifier = Notifier()
        self.users = 0
        """Number of users that may connect."""
        self.stopped = asyncio.Event()
        self._hangup = asyncio.Event()
        self._signals_members = False
        """Whether the processes are to reload as well."""
        self._reloaded = b""
        """The message about the last reload; empty: there was none."""
        self.members = [Member(self, number) for number in range(count)]
        self.nats: dict[str, str] = {}
        """How the processes connect to the embedded NATS server; empty: there is none."""
        self.nats_clients: ClientServer | None = None
        """The NATS server for NATS clients; None: there is none."""
        self.nats_users = 0
        """Number of users that may connect there; 0: any client may."""
        self._bound: list[list[socket.socket]] = []
        self.ending = False
        """Whether a process that ends is not started again."""

    def _options(self, settings: Settings) -> list[ListenerOptions]:
        return self._listeners.options(settings, settings.max_packet_size)

    async def run(self) -> None:
        """Run; raises the FoldmqError that prevents it."""
        try:
            self._check()
            await self._run()
        finally:
            self._listeners.close()

    def _check(self) -> None:
        """Check files and addresses before a process is started."""
        settings = self.settings
        self._listeners.probe(settings)
        make_permissions(settings)
        check_files(settings)
        check_keys(settings)
        authenticator = Access(settings, "", None).authenticator(settings)
        self.users = authenticator.user_count
        authenticator.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._failed = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self.notifier.telling())
            datadir = stack.enter_context(DataDir(self.settings.data_dir))
            self.edges = await self.prepare(stack, datadir)
            stack.callback(self._close)
            bound = [self._listeners.bind(own) for own in self.settings.listeners()]
            self._bound = [sockets for _, sockets in bound]
            await stack.enter_async_context(self.web)
            await self.web.start(datadir)
            running = [
                asyncio.create_task(member.run(), name=member.name) for member in self.members
            ]
            running.append(asyncio.create_task(self._reload_on_hangup(), name="reload"))
            try:
                await self.serve([where for where, _ in bound], datadir)
                await self.until(asyncio.ensure_future(self.stopped.wait()))
            finally:
                self.notifier.stopping("draining")
                for sockets in self.edges.release().values():
                    _close_all(sockets)
                self.ending = True
                await self._end_members()
                await self._flushed()
                for task in running:
                    task.cancel()
        for member in self.members:
            if member.code:
                raise ProcessFailed(member.number, member.code, "did not stop cleanly")
        _log.info("all processes stopped")

    def _on_stop_signal(self, number: signal.Signals) -> None:
        """Stop; a second signal ends the processes at once, as a single broker does."""
        if self.ending:
            for member in self.members:
                member.signal(number)
        self.stopped.set()

    def _close(self) -> None:
        self.edges.close()
        for sockets in self._bound:
            _close_all(sockets)

    def listen(self) -> None:
        """Accept clients from now on."""
        for options, sockets in zip(self.options, self._bound, strict=True):
            self.edges.listen(options, sockets)

    async def _flushed(self) -> None:
        """Wait a moment until clients have the last bytes of processes that ended."""
        loop = asyncio.get_running_loop()
        late = loop.time() + _LAST_BYTES
        while self.edges.clients and loop.time() < late:  # noqa: ASYNC110 - clients set the pace
            await asyncio.sleep(_LOOK)

    async def prepare(self, stack: contextlib.AsyncExitStack, datadir: DataDir) -> Edges:
        """Start what the processes need, and create their data directories."""
        settings, count = self.settings, len(self.members)
        check_process_count(datadir, count)
        if settings.nats_url is None:
            server = await start_embedded(stack, settings, datadir)
            watching = asyncio.create_task(DiskRecovery(datadir, server).watch(), name="disk watch")
            watching.add_done_callback(self._disk_failed)
            stack.push_async_callback(end_tasks, [watching])
            self.nats = {"url": server.url, "user": server.user, "password": server.password}
        users = users_of_clients(settings)
        self.nats_users = len(users)
        tls = nats_tls(settings)
        self.nats_clients = await start_for_clients(stack, settings, datadir, users, tls)
        visitors = self.nats_clients.facts if self.nats_clients is not None else {}
        names = partition_names(datadir.node(), count)
        for member, name in zip(self.members, names, strict=True):
            member.prepare(datadir, name, names, self.nats, visitors)
        return ProcessEdges(
            count,
            lambda number, *arguments: self.members[number].give(*arguments),
            limit_options(settings, self.most),
            self.most,
            SystemClock().monotonic,
            pseudonym_key(settings, datadir),
        )

    async def serve(self, listening: list[Endpoint], datadir: DataDir) -> None:
        """Accept clients as soon as all processes take them."""
        await self.all_ready()
        if self.stopped.is_set():
            return
        self.listen()
        settings, visitors = self.settings, self.nats_clients
        embedded = settings.nats_url is None
        where = f"embedded NATS at {self.nats['url']}" if embedded else "NATS"
        bridge = bridge_access(settings, visitors.access() if visitors is not None else None)
        facts = Facts(
            listening=listening,
            metrics=settings.metrics,
            web=self.web.address,
            web_token=self.web.token,
            users=self.users,
            data=str(datadir.path),
            node=datadir.node(),
            nats=f"{where}, logs {', '.join(member.name for member in self.members)}",
            kept=log_bound(settings, datadir if embedded else None).shown(settings.keep),
            promise=durability_promise(1, settings.sync if embedded else None),
            durable=embedded and settings.sync == "always",
            nats_clients=Address(*visitors.address) if visitors is not None else None,
            nats_users=self.nats_users,
            bridge=bridge.where if bridge is not None else None,
            not_proven=[
                f"log {member.name}: {statement(doubt)}"
                for member in self.members
                for doubt in member.doubts
            ],
        )
        announce(settings, facts)
        self.notifier.ready(self.describe)

    async def all_ready(self) -> None:
        """Wait until all processes are ready, unless this one is to stop before."""
        await self.until(asyncio.gather(*(member.ready.wait() for member in self.members)))

    async def until(self, event: asyncio.Future[Any]) -> None:
        """Wait until something is done, the process is asked to stop, or a process fails."""
        stopped = asyncio.ensure_future(self.stopped.wait())
        waits: set[asyncio.Future[Any]] = {event, stopped, self._failed}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for waiting in (event, stopped):
            waiting.cancel()
        if self._failed.done():
            self._failed.result()

    def _disk_failed(self, watching: asyncio.Task[None]) -> None:
        """Stop everything when the disk failed: what is stored may differ from what was synced."""
        if not watching.cancelled() and isinstance(error := watching.exception(), FoldmqError):
            self.fail(error)

    def describe(self) -> str:
        """Return a status line of the running processes."""
        away = [str(member.number) for member in self.members if not member.ready.is_set()]
        return f"restarting processes: {', '.join(away)}" if away else ""

    def _on_hangup(self) -> None:
        self._signals_members = True
        self._hangup.set()

    def reload_itself(self) -> None:
        """Read the settings again in this process: the others have."""
        self._hangup.set()

    async def _reload_on_hangup(self) -> None:
        """Let all processes read the settings again, this one included."""
        while True:
            await self._hangup.wait()
            self._hangup.clear()
            if self._signals_members:
                self._signals_members = False
                for member in self.members:
                    member.signal(signal.SIGHUP)
            failed = "settings not reloaded in the main process"
            self.note_reload(await self.notifier.reload(self._reload, failed))

    async def _reload(self) -> tuple[str, ...]:
        """Apply settings that are read again; raises an error for invalid ones."""
        merged = self.settings.reloaded(await asyncio.to_thread(self._reread))
        check_settings(merged)
        self.options = await asyncio.to_thread(self._options, merged)
        self._listeners.reloaded(merged)
        self.most = affordable_connections(merged, each=2)
        self.settings = merged
        logging_setup.set_level(merged.log_level)
        _log.info("settings reloaded in the main process")
        self.edges.reload(limit_options(merged, self.most), self.most, self.options)
        if self.nats_clients is not None:
            await asyncio.to_thread(nats_tls, merged)
            await self.nats_clients.renew_tls()
        return ()

    def note_reload(self, outcome: ReloadOutcome) -> None:
        """Let the processes report a reload of this one."""
        self._reloaded = reloaded_message(outcome)
        for member in self.members:
            member.send(self._reloaded)

    def takes(self, member: Member) -> None:
        """Pass clients on to a process: it takes connections."""
        if self._reloaded:
            member.send(self._reloaded)
        if isinstance(self.edges, ProcessEdges):
            self.edges.ready(member.number, member.name)

    def away(self, member: Member) -> None:
        """Let clients of a process wait: it has ended."""
        if isinstance(self.edges, ProcessEdges):
            self.edges.away(member.number)

    async def _end_members(self) -> None:
        """Shut all processes down cleanly."""
        for member in self.members:
            member.signal(signal.SIGTERM)
        seconds = self.settings.commit_timeout + _GRACE
        await asyncio.gather(*(member.ended(seconds) for member in self.members))

    def fail(self, error: FoldmqError) -> None:
        """Stop everything with an error."""
        if not self._failed.done():
            self._failed.set_exception(error)


class Member:
    """One broker process, as its parent sees it."""

    def __init__(self, main: MainProcess, number: int) -> None:
        self._main = main
        self.number = number
        self.name = ""
        self.ready = asyncio.Event()
        """Set while the process takes connections."""
        self.doubts: list[Doubt] = []
        """What is not proven of its log."""
        self.code = 0
        """Exit code of the process after :meth:`ended`."""
        self._process: asyncio.subprocess.Process | None = None
        self._channel: socket.socket | None = None
        self._facts: MemberFacts

    def prepare(
        self,
        datadir: DataDir,
        node: str,
        names: Sequence[str],
        nats: dict[str, str],
        nats_clients: dict[str, str],
        *,
        cluster: bool = False,
    ) -> None:
        """Create the data directory of the process; ``node`` is its node identifier.

        ``names`` are those of the logs of all processes, ``nats`` the access to the embedded NATS
        server, ``nats_clients`` that to the one for NATS clients; ``cluster``: the logs are those
        of a cluster.
        """
        self.name = names[self.number]
        own = DataDir(datadir.path / f"p{self.number}")
        own.path.mkdir(mode=0o700, exist_ok=True)
        if not (own.path / "node").exists():
            own.write_private(own.path / "node", node + "\n")
        self._facts = MemberFacts(
            self.number, list(names), str(own.path), nats, 0, cluster, nats_clients, FORMAT
        )

    async def run(self) -> None:
        """Run the process, and restart it when it ends."""
        failures, pause = 0, _BACK_OFF
        while True:
            code = await self._run_once()
            if self._main.ending:
                return
            was_ready = self.ready.is_set()
            self.ready.clear()
            failures = 0 if was_ready else failures + 1
            pause = _BACK_OFF if was_ready else min(2 * pause, _MAX_BACK_OFF)
            if failures >= _STARTS or (failures and 0 < code != 75):
                self._main.fail(ProcessFailed(self.number, code))
                return
            _log.error(
                "broker process ended and is started again",
                process=self.number,
                code=code,
                seconds=pause,
            )
            await asyncio.sleep(pause)

    async def _run_once(self) -> int:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        facts = self._facts._replace(channel=theirs.fileno())
        environment = {**os.environ, MEMBER_VARIABLE: facts.encode()}
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *sys.orig_argv[1:],
                env=environment,
                pass_fds=(theirs.fileno(),),
            )
        finally:
            theirs.close()
        self._process, self._channel = process, ours
        loop = asyncio.get_running_loop()
        loop.add_reader(ours.fileno(), self._heard)
        try:
            return await process.wait()
        finally:
            loop.remove_reader(ours.fileno())
            self._channel = None
            ours.close()
            self._main.away(self)

    def _heard(self) -> None:
        """Note that the process takes connections, or asks for a reload."""
        channel = self._channel
        if channel is None:
            return
        try:
            message = channel.recv(_MAX_MESSAGE)
        except OSError:
            message = b""
        if message.startswith(READY):
            self.doubts = doubts_of(orjson.loads(message.removeprefix(READY)))
            self.ready.set()
            self._main.takes(self)
        elif message == RELOAD:
            self._main.reload_itself()
        else:  # it ends
            asyncio.get_running_loop().remove_reader(channel.fileno())

    def give(self, listener: int, client: socket.socket, waited: float, data: bytes) -> bool:
        """Pass a socket to the process; return False while it takes none.

        ``waited`` are the seconds for which its client has waited, ``data`` is what it has sent.
        """
        channel = self._channel
        if channel is None or not self.ready.is_set():
            return False
        try:
            socket.send_fds(channel, [GIVEN.pack(listener, waited), data], [client.fileno()])
        except OSError:  # the process has ended, or does not keep up
            return False
        return True

    def send(self, message: bytes) -> None:
        """Send the process a message, if it runs."""
        channel = self._channel
        if channel is not None:
            with contextlib.suppress(OSError):  # it has ended, or does not keep up
                channel.send(message)

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it runs."""
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def ended(self, seconds: float) -> None:
        """Wait for the end of the process; kill it after so many seconds."""
        process = self._process
        if process is None:
            return
        try:
            async with asyncio.timeout(seconds):
                self.code = await process.wait()
        except TimeoutError:
            _log.error("broker process does not end and is killed", process=self.number)
            process.kill()
            self.code = await process.wait()


def _close_all(sockets: Sequence[socket.socket]) -> None:
    for bound in sockets:
        bound.close()
