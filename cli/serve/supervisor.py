"""A main process and its broker processes; with ``--processes N`` it runs the NATS server too."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from actors.kernel.clock import SystemClock
from actors.node.reload_outcome import ReloadOutcome
from cli.serve.broker_process import (
    COUNTS,
    GIVEN,
    MEMBER_VARIABLE,
    READY,
    RELOAD,
    MemberFacts,
    reloaded_message,
)
from cli.serve.handover import Handover
from cli.serve.log_store import nats_tls, start_for_clients
from cli.serve.process_edges import PASSED_ON, ProcessEdges
from cli.serve.process_listeners import ProcessListeners
from cli.serve.systemd_notify import Notifier
from cli.settings.setting_sources import ConfigError
from eventstore.datadir import DataDir
from eventstore.partitions import partition_names
from eventstore.server.disk_recovery import DiskRecovery
from eventstore.server.process import EmbeddedServer
from eventstore.task_cancellation import end_tasks
from projections.log_proof import doubts_of
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from cli.common.endpoints import Endpoint
    from cli.serve.log_store import ServerOfClients
    from cli.serve.process_listeners import ListenerSource
    from projections.log_proof import Doubt

_log = structlog.get_logger("foldmq")

_BACK_OFF, _MAX_BACK_OFF = 0.1, 5.0
"""Seconds before a process that has ended is started again, at first and at most."""
_STARTS = 5
"""Starts in a row that may fail before the others are stopped."""
_MAX_SAID = 64 * 1024
"""Maximum bytes of a message of a process."""
_GRACE = 5.0
"""Seconds beyond ``commit_timeout`` that processes get to end."""
_LAST_BYTES = 1.0
"""Seconds in which clients get what processes sent before they ended."""


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
        known = int(json.loads(file.read_text("utf-8")))
    except FileNotFoundError:
        known = 1 if (datadir.path / "log.mark").exists() else 0
    except (OSError, ValueError, TypeError):
        raise ConfigError(
            f"{file}: damaged: write the number of processes that this data directory is for"
        ) from None
    if known not in (0, processes):
        raise ConfigError(
            f"processes = {processes}: data directory {datadir.path} has the logs of {known} "
            f"processes: set processes = {known}, or use another data directory"
            if known > 1
            else f"processes = {processes}: data directory {datadir.path} has the log of one "
            "process: set processes = 1, or use another data directory"
        )
    if not known and processes > 1:
        datadir.write_private(file, f"{processes}\n")


class Supervisor:
    """Runs the broker processes until SIGTERM or SIGINT.

    When all processes take connections, ``announce`` is called with the addresses of the listeners,
    the data directory and the NATS server. ``beside`` is entered with the data directory before the
    processes are started, and left when they have ended.
    """

    def __init__(
        self,
        source: ListenerSource,
        announce: Callable[[list[Endpoint], DataDir, str], None],
        count: int,
        beside: Callable[[DataDir], AbstractAsyncContextManager[object]],
    ) -> None:
        self.settings = source.settings
        self._source = source
        self._announce = announce
        self._beside = beside
        self.notifier = Notifier()
        self._stop = asyncio.Event()
        self._hangup = asyncio.Event()
        self._signals_members = False
        """Whether the processes are to reload as well."""
        self._reloaded = b""
        """The message about the last reload; empty: there was none."""
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.members = [Member(self, number) for number in range(count)]
        self._facts: dict[str, str] = {}
        self.nats_clients: ServerOfClients | None = None
        """The NATS server for NATS clients; None: there is none."""
        self._edges: ProcessEdges | None = None
        self.ending = False
        """Whether a process that ends is not started again."""

    async def run(self) -> None:
        """Run; raises the FoldmqError that prevents it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self.notifier.telling())
            datadir = stack.enter_context(DataDir(self.settings.data_dir))
            listeners = await self.prepare(stack, datadir)
            stack.callback(listeners.close)
            listening = listeners.bind()
            await stack.enter_async_context(self._beside(datadir))
            running = [asyncio.create_task(one.run(), name=one.name) for one in self.members]
            running.append(asyncio.create_task(self._reload_on_hangup(listeners), name="reload"))
            try:
                await self.serve(listeners, listening, datadir)
                await self.until(asyncio.ensure_future(self._stop.wait()))
            finally:
                self.notifier.stopping("draining")
                listeners.stop()
                self.ending = True
                await self._end_members()
                await listeners.flushed(_LAST_BYTES)
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
        self._stop.set()

    async def prepare(self, stack: contextlib.AsyncExitStack, datadir: DataDir) -> ProcessListeners:
        """Start what the processes need, and create their data directories."""
        count = len(self.members)
        check_process_count(datadir, count)
        if self.settings.nats_url is None:
            await self._start_nats(stack, datadir)
        self.nats_clients = await start_for_clients(stack, self.settings, datadir)
        visitors = self.nats_clients.server.facts if self.nats_clients is not None else {}
        names = partition_names(datadir.node(), count)
        for member, name in zip(self.members, names, strict=True):
            member.prepare(datadir, name, names, self._facts, visitors)
        limits, most = self._source.limits()
        key = self._source.pseudonym_key(datadir)
        self._edges = edges = ProcessEdges(
            count,
            lambda number, end: self.members[number].give(PASSED_ON, end),
            limits,
            most,
            SystemClock().monotonic,
            key,
        )
        handover = Handover(
            count,
            lambda number, listener, client, waited: self.members[number].give(
                listener, client, waited
            ),
            wait=self.settings.connect_timeout,
            most=self.settings.max_connections,
            pseudonym_key=key,
        )
        return ProcessListeners(self._source, edges, handover)

    async def serve(
        self, listeners: ProcessListeners, listening: list[Endpoint], datadir: DataDir
    ) -> None:
        """Accept clients as soon as all processes take them."""
        await self.until(asyncio.gather(*(one.ready.wait() for one in self.members)))
        if self._stop.is_set():
            return
        listeners.listen()
        where = f"embedded NATS at {self._facts['url']}" if self._facts else "NATS"
        logs = ", ".join(one.name for one in self.members)
        self._announce(listening, datadir, f"{where}, logs {logs}")
        self.notifier.ready(self.describe)

    async def until(self, done: asyncio.Future[Any]) -> None:
        """Wait until something is done, the process is asked to stop, or a process fails."""
        stopped = asyncio.ensure_future(self._stop.wait())
        waits: set[asyncio.Future[Any]] = {done, stopped, self._failed}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for waiting in (done, stopped):
            waiting.cancel()
        if self._failed.done():
            self._failed.result()

    async def _start_nats(self, stack: contextlib.AsyncExitStack, datadir: DataDir) -> None:
        server = EmbeddedServer(datadir, sync=self.settings.sync, log=lambda line: _log.info(line))
        await server.start()
        stack.push_async_callback(server.stop)
        watching = asyncio.create_task(DiskRecovery(datadir, server).watch(), name="disk watch")
        watching.add_done_callback(self._disk_failed)
        stack.push_async_callback(end_tasks, [watching])
        self._facts = {"url": server.url, "user": server.user, "password": server.password}

    def _disk_failed(self, watching: asyncio.Task[None]) -> None:
        """Stop everything when the disk failed: what is stored may differ from what was synced."""
        if not watching.cancelled() and isinstance(error := watching.exception(), FoldmqError):
            self.fail(error)

    def describe(self) -> str:
        """Return a status line of the running processes."""
        away = [str(one.number) for one in self.members if not one.ready.is_set()]
        return f"restarting processes: {', '.join(away)}" if away else ""

    def _on_hangup(self) -> None:
        self._signals_members = True
        self._hangup.set()

    def reload_itself(self) -> None:
        """Read the settings again in this process: the others have."""
        self._hangup.set()

    async def _reload_on_hangup(self, listeners: ProcessListeners) -> None:
        """Let all processes read the settings again, this one included."""
        while True:
            await self._hangup.wait()
            self._hangup.clear()
            self.notifier.reloading()
            if self._signals_members:
                self._signals_members = False
                for member in self.members:
                    member.signal(signal.SIGHUP)
            failure = ""
            try:
                await listeners.reload()
                if self.nats_clients is not None:
                    await asyncio.to_thread(nats_tls, self.settings)
                    await self.nats_clients.server.renew_tls()
            except (FoldmqError, OSError, ValueError) as error:
                failure = str(error)
                _log.error("settings not reloaded in the main process", reason=failure)
            except Exception as error:  # noqa: BLE001 - the next SIGHUP must be handled
                failure = "internal error, please report it"
                _log.error("settings not reloaded", reason=failure, exc_info=error)
            finally:
                self.notifier.reloaded()
            self.note_reload(ReloadOutcome(SystemClock().time_ms(), failure))

    def note_reload(self, outcome: ReloadOutcome) -> None:
        """Let the processes report a reload of this one."""
        self._reloaded = reloaded_message(outcome)
        for member in self.members:
            member.send(self._reloaded)

    def takes(self, member: Member) -> None:
        """Pass clients on to a process: it takes connections."""
        if self._reloaded:
            member.send(self._reloaded)
        if self._edges is not None:
            self._edges.ready(member.number, member.name)

    def away(self, member: Member) -> None:
        """Let clients of a process wait: it has ended."""
        if self._edges is not None:
            self._edges.away(member.number)

    async def _end_members(self) -> None:
        """Shut all processes down cleanly."""
        for member in self.members:
            member.signal(signal.SIGTERM)
        await asyncio.gather(
            *(one.ended(self.settings.commit_timeout + _GRACE) for one in self.members)
        )

    def fail(self, error: FoldmqError) -> None:
        """Stop everything with an error."""
        if not self._failed.done():
            self._failed.set_exception(error)


class Member:
    """One broker process, as its parent sees it."""

    def __init__(self, supervisor: Supervisor, number: int) -> None:
        self._supervisor = supervisor
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
            self.number, list(names), str(own.path), nats, 0, cluster, nats_clients
        )

    async def run(self) -> None:
        """Run the process, and restart it when it ends."""
        failures, pause = 0, _BACK_OFF
        while True:
            code = await self._run_once()
            if self._supervisor.ending:
                return
            was_ready = self.ready.is_set()
            self.ready.clear()
            failures = 0 if was_ready else failures + 1
            pause = _BACK_OFF if was_ready else min(2 * pause, _MAX_BACK_OFF)
            if failures >= _STARTS or (failures and 0 < code != 75):
                self._supervisor.fail(ProcessFailed(self.number, code))
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
            self._supervisor.away(self)

    def _heard(self) -> None:
        """Note that the process takes connections, or asks for a reload."""
        channel = self._channel
        if channel is None:
            return
        try:
            said = channel.recv(_MAX_SAID)
        except OSError:
            said = b""
        if said.startswith(READY):
            self.doubts = doubts_of(orjson.loads(said.removeprefix(READY)))
            self.ready.set()
            self._supervisor.takes(self)
        elif said == RELOAD:
            self._supervisor.reload_itself()
        else:  # it ends
            asyncio.get_running_loop().remove_reader(channel.fileno())

    def give(self, listener: int, client: socket.socket, waited: float = 0.0) -> bool:
        """Pass a socket to the process; return False while it takes none.

        ``waited`` are the seconds for which its client has waited.
        """
        channel = self._channel
        if channel is None or not self.ready.is_set():
            return False
        try:
            socket.send_fds(channel, [GIVEN.pack(listener, waited)], [client.fileno()])
        except OSError:  # the process has ended, or does not keep up
            return False
        return True

    def tell_counts(self, clients: int, parked: int) -> None:
        """Report the numbers of clients of the log that are passed on, and that wait."""
        self.send(COUNTS.pack(clients, parked))

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
