"""``foldmq serve``: builds the broker, runs it, and shuts it down."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import structlog

from actors.access.backend_selection import BackendSelection
from actors.broker.broker import Broker
from actors.inspection.broker_status import resident_and_peak
from actors.kernel.clock import SystemClock
from actors.limits.broker_options import BrokerOptions
from actors.maintenance.cluster_hooks import ClusterHooks
from actors.maintenance.state_digests import StateDigestService, subject_of
from actors.node.counters import watch_loop
from actors.node.reload_outcome import ReloadOutcome
from actors.session.node_context import NodeContext
from cli.common import logging_setup
from cli.common.endpoints import Endpoint
from cli.common.memory import GarbageCollector, trim_after_peaks, tune_collector
from cli.common.units import Address
from cli.logs.index_process import IndexProcess, LogGrowth
from cli.logs.key_files import store_key
from cli.logs.source import index_path
from cli.serve.auth_factory import (
    Access,
    pseudonym_key,
    scram_secret,
    users_digest,
)
from cli.serve.banner import Facts, Progress, announce, at_rest
from cli.serve.broker_process import ProcessMember
from cli.serve.certificates import CertificateWatch
from cli.serve.cluster_member import ClusterMember, SteppedDown
from cli.serve.edge_factory import PeerSockets
from cli.serve.http_monitor import HttpMonitor
from cli.serve.key_checks import check_keys
from cli.serve.limits_factory import (
    affordable_connections,
    limit_options,
    make_bridge,
    make_options,
)
from cli.serve.listener_factory import Listeners
from cli.serve.log_bound import LogBound, log_bound
from cli.serve.log_store import (
    Store,
    answer_requests,
    check_files,
    fit_packet_size,
    nats_tls,
    open_store,
)
from cli.serve.main_process import check_process_count
from cli.serve.microservice import serve_inspector
from cli.serve.outbox_process import OutboxProcess
from cli.serve.recovery import DrainError, recover, take_over
from cli.serve.systemd_notify import Notifier
from cli.serve.web_process import WebProcess
from cli.settings.access_files import make_permissions
from cli.settings.settings import Settings, check_settings
from cli.settings.sink_settings import check_sink_files
from cluster.leader import Replaced
from cluster.standby import FellBehind, Leadership
from eventstore.datadir import DataDir
from eventstore.errors import Fenced, StoreGone
from eventstore.format.record_size import largest_packet
from eventstore.format.records import FORMAT
from eventstore.log.key_file import KeyReader
from eventstore.log.shared_keys import check_directory, open_keys, watch_directory
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from projections.log_proof import SHOWN_AT_START, Doubt, statement

log = structlog.get_logger("foldmq")

T = TypeVar("T")
_DRAIN_LEAST = 1.0
"""Seconds to drain when the log could not be written for ``commit_timeout`` before the stop."""
_NOT_RELOADED = "settings not reloaded, previous settings stay in effect"
_OF_MAIN = "in the main process: "


class Service:
    """One run of the broker: start, serve, reload on SIGHUP, drain on SIGTERM and SIGINT."""

    def __init__(
        self,
        settings: Settings,
        reread: Callable[[], Settings],
        refused: int = 0,
        process: ProcessMember | None = None,
    ) -> None:
        """Use these settings, and their sources for reloads.

        ``refused`` is the size in bytes of a record that the log refused, or 0; ``process`` is this
        process among several of the machine.
        """
        self._process = process
        self._refused = refused
        self._settings = settings
        self._reread = reread
        self._notifier = Notifier()
        self._monitor = HttpMonitor()
        self._metrics: Address | None = None
        self._web = WebProcess(settings)
        self._index = IndexProcess()
        self._outbox = OutboxProcess()
        self._stop = asyncio.Event()
        self._hangup = asyncio.Event()
        self._reloading = asyncio.Lock()
        self._outcome: ReloadOutcome | None = None
        """The last reload in this process; None: there was none."""
        self._listeners: Listeners
        self._access: Access
        self._authenticator: BackendSelection
        self._member: ClusterMember | None = None
        self._peers: PeerSockets | None = None
        self._places: dict[str, Endpoint] = {}
        """The addresses of the listeners that were bound while another node led."""
        self._move = asyncio.Event()
        self._moves_to = ""
        """The node that this one hands over to; empty: it does not."""
        self._certificates = CertificateWatch(logs=process is None or not process.facts.number)
        self._node = ""
        self._bound: LogBound
        self._datadir: DataDir
        self._log_owner: DataDir | None = None
        """The data directory whose embedded NATS server has the log; None: an external one has."""
        self._largest = 0
        self._key = self._secret = b""
        self._renew_nats_tls: Callable[[], Awaitable[None]]

    async def run(self) -> None:
        """Serve; raises the FoldmqError that stops the broker."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._hangup.set)
        if self._process is not None and self._process.facts.cluster:
            self._process.watch()
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._notifier.telling())
            broker = await self._unless_stopped(self._led(self._start(stack)))
            if broker is None:
                log.info("stopped while starting")
                self._notifier.stopping("stopped while starting")
                return
            broker.node.dropped_lines = logging_setup.dropped_lines
            broker.node.memory = resident_and_peak
            self._notifier.ready(self._describe)
            garbage = GarbageCollector(lambda: broker.kernel.turns)
            beside = [
                self._reload_on_hangup(broker),
                garbage.collect_young(),
                garbage.collect_when_idle(),
                trim_after_peaks(
                    lambda: broker.node.counters.accepted - len(broker.admission.connections)
                ),
                watch_loop(broker.node.counters, broker.admission.sample),
                self._certificates.watch(broker.node, lambda: self._settings),
                logging_setup.report_dropped_lines(),
                self._access.keep_known_users(self._datadir),
            ]
            tasks = [asyncio.create_task(work) for work in beside]
            try:
                await self._led(self._until_stopped(broker))
            finally:
                for task in tasks:
                    task.cancel()
            self._notifier.stopping("draining")
            if not self._moves_to:
                self._listeners.close_kept()
            await self._outbox.stop()
            await self._drain(broker)
            if self._restarts:
                reason = f"the leadership was handed over to node {self._moves_to}"
                raise SteppedDown(reason, self._listeners.inheritance(), ordered=True)
        log.info("stopped")

    @property
    def _restarts(self) -> bool:
        """Whether this process follows next: it hands over, and was not stopped meanwhile."""
        return bool(self._moves_to) and not self._stop.is_set()

    @property
    def _stream(self) -> str:
        return LOG_STREAM_PREFIX + self._node

    async def _led(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result; raises SteppedDown if another node of the cluster leads."""
        try:
            return await work
        except (Fenced, FellBehind, Replaced) as error:
            if self._member is None:
                raise
            raise SteppedDown(str(error), self._listeners.inheritance()) from None

    async def _start(self, stack: contextlib.AsyncExitStack) -> Broker:
        settings = self._settings
        self._listeners = Listeners(settings)
        stack.callback(self._listeners.close)
        if self._process is None:
            self._listeners.probe(settings)
        make_permissions(settings)
        self._metrics = await self._monitor.serve(stack, settings)
        await stack.enter_async_context(self._web)
        # Report invalid files before anything is started.
        Access(settings, "", None).authenticator(settings).close()
        check_files(settings)
        check_sink_files(settings)
        if self._process is None:
            check_keys(settings)
        datadir = stack.enter_context(DataDir(settings.data_dir))
        for line in datadir.narrowed:
            log.warning(line)
        if self._process is None:
            check_process_count(datadir, 1)
        datadir.node()  # created before the wait for NATS
        logs = self._process.logs_of_cluster if self._process is not None else 1
        visitors = self._process.nats_clients if self._process is not None else None
        disk_owner = self._process.log_owner if self._process is not None else None
        store = await open_store(
            stack, settings, datadir, self._refused, logs, visitors, disk_owner
        )
        self._node = store.name
        self._largest = store.largest
        self._renew_nats_tls = store.renew_nats_tls
        settings = self._settings = fit_packet_size(
            settings, store.largest, lower=self._refused > 0
        )
        process = self._process
        # All processes of a node have the same key, beside their directories.
        owner = datadir if process is None else process.owner
        self._key = pseudonym_key(settings, owner)
        leadership = await self._lead(stack, store, datadir)
        self._open_keys(stack, store, leadership)
        settings = self._settings
        waiting = self._member.edges.release() if self._member and self._member.edges else {}
        permissions = make_permissions(settings)
        self._secret = secret = scram_secret(datadir)  # a reload may name a password file
        users = users_digest(settings, secret)
        self._log_owner = datadir if settings.nats_url is None else disk_owner
        self._bound = log_bound(settings, self._log_owner, self._stream)
        options = self._options(settings, users, self._bound.bytes)
        self._access = access = Access(settings, self._node, store.clients, secret)
        access.load_known_users(datadir)
        stack.callback(lambda: access.store_known_users(datadir))
        self._datadir = datadir
        self._authenticator = self._access.authenticator(settings)
        stack.callback(lambda: self._authenticator.close())
        bridge = make_bridge(settings, 4 * options.max_outbound_bytes) if store.bridge else None
        broker = Broker(options, store.log, self._authenticator, SystemClock(), bridge, permissions)
        store.client.on_arrival = broker.kernel.yield_once
        self._monitor.inspection = broker.inspection
        broker.inspection.operations.reload = partial(self._reload_by_command, broker)
        key = store_key(settings.encryption_key_file)
        place = index_path(settings.data_dir, self._stream)
        broker.replays.reader.index.use(place, self._stream, key)
        self._note_reload(broker.node, self._outcome)
        if self._process is not None:
            await self._process.join(broker.join, store, settings.personal_key_file)
            self._process.on_reload = lambda: self._note_reload(broker.node, self._outcome)
        if leadership is not None:
            await take_over(broker.node, broker.adopt(leadership.followed))
        else:
            await recover(broker.node, broker.recover, self._notifier)
        if self._member is not None and leadership is not None:
            led = ClusterHooks(broker.node, broker.admission.connections)
            await self._member.begin(stack, led, leadership.epoch)
        await answer_requests(
            store.client, subject_of(self._node), StateDigestService(broker.node).answer
        )
        embedded = settings.nats_url is None or disk_owner is not None
        broker.inspection.storage.encryption = at_rest(settings, embedded=embedded)
        if embedded:
            broker.inspection.storage.free_bytes = datadir.free_bytes
        broker.inspection.storage.refresh()
        self._outbox.announce(settings, broker.node, store.client)
        await serve_inspector(stack, store.client, broker.inspection)
        if broker.bridge is not None and store.bridge is not None:
            await broker.bridge.start(store.bridge)
        if broker.exchange is not None:
            await broker.exchange.catch_up()
        listening = self._listen(broker, waiting)
        broker.node.certificates = await self._certificates.look(settings)
        self._monitor.listening = True
        if self._member is not None:
            peers = self._peers
            if peers is not None:
                peers.serve(broker.node, broker.admission, self._listeners.handshakes)
            self._member.serves_at(
                [str(place) for place in listening], peers.address if peers is not None else None
            )
        await self._web.start(datadir)
        await stack.enter_async_context(self._index)
        journal = broker.node.journal
        growth = LogGrowth(lambda: journal.durable, lambda: journal.stats.bytes, store.log.size)
        self._index.start(settings, datadir, growth)
        await stack.enter_async_context(self._outbox)
        names = self._process.facts.names if self._process is not None else ()
        self._outbox.start(settings, datadir, broker.node, listening, names)
        if self._process is None:
            self._announce(listening, datadir, store, broker.node.state.proof.doubts)
        else:
            log.info("broker process serves", process=self._process.facts.number, log=self._node)
        return broker

    async def _lead(
        self, stack: contextlib.AsyncExitStack, store: Store, datadir: DataDir
    ) -> Leadership | None:
        """Return the leadership once this node leads its cluster; None without a cluster."""
        cluster, keys = self._settings.cluster, self._settings.personal_key_file
        if cluster is None:
            return None
        if keys is not None:
            check_directory(keys)
            store.log.key_reader = KeyReader(keys, self._node)  # while another node leads
        member = ClusterMember(self._settings, store, cluster, datadir.node(), SystemClock())
        self._member = self._monitor.member = member
        member.on_move = self._on_move
        log.info("node of a cluster", cluster=cluster, node=datadir.node(), nats=store.where)
        process, on_following = self._process, tune_collector
        if process is not None:
            # The main process passes clients on.
            member.listening += [str(listener.endpoint) for listener in self._settings.listen]
            member.count = lambda: process.counts
            member.spreads = process.logs_of_cluster
            on_following = process.follows
            self._peers = PeerSockets(self._settings)
            stack.callback(self._peers.close)
        else:
            self._listeners.keep()
            if self._settings.cluster_listen is not None:
                self._pass_on(stack, member, datadir.node())
        progress = Progress(tell=self._notifier.starting)
        member.certificates = await self._certificates.look(self._settings)
        following = asyncio.create_task(self._reload_while_following(member))
        watching = [asyncio.create_task(self._certificates.watch(member, lambda: self._settings))]
        if keys is not None:
            work = watch_directory(keys, lambda: member.leader_epoch)
            watching.append(asyncio.create_task(work))
        if process is not None:
            process.on_reload = lambda: self._note_reload(member, self._outcome)
        try:
            self._notifier.ready(member.waiting)
            return await member.lead(stack, progress, on_following)
        finally:
            progress.close()
            for task in (following, *watching):
                task.cancel()

    def _open_keys(
        self, stack: contextlib.AsyncExitStack, store: Store, leadership: Leadership | None
    ) -> None:
        """Open the keys of sealed contents, if there are any; raises KeyFileError."""
        path = self._settings.personal_key_file
        if path is None:
            return
        epoch = leadership.epoch if leadership is not None else None
        store.log.keys = open_keys(path, self._node, epoch)
        stack.callback(store.log.keys.close)

    def _pass_on(self, stack: contextlib.AsyncExitStack, member: ClusterMember, node: str) -> None:
        """Accept clients while another node leads, and pass them on to it."""
        settings = self._settings
        self._peers = peers = PeerSockets(settings)
        stack.callback(peers.close)
        # Each client takes two descriptors here.
        most = affordable_connections(settings, each=2)
        member.edges = edges = peers.edges(settings, node, most, SystemClock())
        stack.callback(edges.close)
        holding = self._listeners.options(settings, largest_packet(self._largest))
        for own, options in zip(settings.listeners(), holding, strict=True):
            where, bound = self._listeners.bind(own)
            edges.listen(options, bound, self._listeners.clients(options.name))
            self._places[options.name] = where
            member.listening.append(str(where))

    def _on_move(self, to: str) -> None:
        """Hand over to another node, as an operator has asked."""
        self._moves_to = to
        self._move.set()

    async def _reload_while_following(self, member: ClusterMember) -> None:
        """Read the settings again on SIGHUP; they are used when this node leads."""
        while True:
            await self._hangup.wait()
            self._hangup.clear()
            reload = partial(self._reload_follower, member)
            self._note_reload(member, await self._notifier.reload(reload, _NOT_RELOADED))

    async def _reload_follower(self, member: ClusterMember) -> tuple[str, ...]:
        merged = self._settings.reloaded(await asyncio.to_thread(self._reread))
        check_settings(merged)
        merged = fit_packet_size(merged, self._largest, lower=self._refused > 0)
        listeners = self._listeners.options(merged, largest_packet(self._largest))
        certificates = await self._certificates.look(merged)
        if member.edges is not None:
            most = affordable_connections(merged, each=2)
            member.edges.reload(limit_options(merged, most), most, listeners)
        member.certificates = certificates
        self._listeners.reloaded(merged)
        self._settings = merged
        log.info("settings reloaded")
        return ()

    def _listen(self, broker: Broker, waiting: dict[str, list[socket.socket]]) -> list[Endpoint]:
        """Accept clients at all listeners; return their addresses. Raises ListenError.

        ``waiting`` are the sockets of listeners that are bound already, by name.
        """
        places = []
        holding = self._listeners.options(self._settings, largest_packet(self._largest))
        if self._process is not None:
            self._process.take_connections(broker.node, broker.admission, holding)
            return [listener.endpoint for listener in self._settings.listen]
        for own, options in zip(self._settings.listeners(), holding, strict=True):
            if options.name in waiting:
                where, bound = self._places[options.name], waiting[options.name]
            else:
                where, bound = self._listeners.bind(own)
            broker.admission.listen(options, bound, self._listeners.clients(options.name))
            places.append(where)
        return places

    def _describe(self) -> str:
        """Return a status line of the serving broker."""
        inspection = self._monitor.inspection
        trouble = self._monitor.not_ready_reasons()
        if trouble or inspection is None:
            return "; ".join(trouble)
        return f"{inspection.node.directory.attached} clients"

    def _announce(
        self, listening: list[Endpoint], datadir: DataDir, store: Store, doubts: Sequence[Doubt]
    ) -> None:
        facts = Facts(
            listening=listening,
            metrics=self._metrics,
            web=self._web.address,
            web_token=self._web.token,
            users=self._authenticator.user_count,
            data=str(datadir.path),
            node=datadir.node(),
            nats=store.where,
            kept=self._bound.shown(self._settings.keep),
            promise=store.promise,
            durable=store.durable,
            nats_clients=store.nats_clients,
            nats_users=store.nats_users,
            not_proven=[statement(doubt) for doubt in doubts[-SHOWN_AT_START:]],
            bridge=store.bridge.where if store.bridge is not None else None,
        )
        announce(self._settings, facts)

    async def _unless_stopped(self, starting: Coroutine[Any, Any, T]) -> T | None:
        """Return the result, or None and undo everything if a signal came first."""
        task = asyncio.create_task(starting)
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            return None
        return task.result()

    async def _until_stopped(self, broker: Broker) -> None:
        stopped = asyncio.ensure_future(self._stop.wait())
        moved = asyncio.ensure_future(self._move.wait())
        waiting: set[asyncio.Future[Any]] = {stopped, moved, broker.node.failed}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        moved.cancel()
        if self._stop.is_set():
            self._moves_to = ""
        if broker.node.failed.done():
            raise broker.node.failed.result()

    async def _drain(self, broker: Broker) -> None:
        """Drain and stop; raises DrainError if the log could not be written completely."""
        log.info("draining: new connections are refused, pending events are written")
        if self._process is not None:
            self._process.stop_taking()
        if self._restarts:
            for connection in list(broker.admission.connections):
                client = connection.leave_socket()
                if client is not None:
                    self._listeners.keep_client(connection.listener.options.name, client)
        limit = self._settings.commit_timeout
        # A log that cannot be written gets no more time than before the stop.
        patience = max(_DRAIN_LEAST, limit - broker.outage_seconds())
        member, to = self._member, self._moves_to
        handed_over = None
        if member is not None and (to or member.has_followers):
            handed_over = partial(member.hand_over, to)
        try:
            async with asyncio.timeout(patience):
                await broker.drain(to, handed_over)
        except TimeoutError:
            damage = broker.node.writer.damage
            if damage is not None:
                raise StoreGone(damage) from None
            raise DrainError(max(limit, round(broker.outage_seconds()))) from None

    def _on_stop_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            # No acknowledged message depends on draining: the next start replays the log.
            log.warning("stopping immediately", signal=number.name)
            os._exit(128 + number)
        self._stop.set()

    async def _reload_on_hangup(self, broker: Broker) -> None:
        while True:
            await self._hangup.wait()
            self._hangup.clear()
            await self._try_reload(broker)

    async def _reload_by_command(self, broker: Broker) -> ReloadOutcome:
        """Reload as an operator has asked, also in the main process if there is one."""
        outcome = await self._try_reload(broker)
        if self._process is not None and not outcome.error:
            refusal = await self._process.reload_main()
            if refusal:
                return outcome._replace(error=f"{_OF_MAIN}{refusal}")
        return outcome

    def _note_reload(
        self, holder: "ClusterMember | NodeContext", outcome: ReloadOutcome | None
    ) -> None:
        """Keep the outcome of a reload for the status, or that of one that failed in main."""
        self._outcome = outcome
        main = self._process.reload if self._process is not None else None
        if main is not None and main.error and not (outcome is not None and outcome.error):
            outcome = main._replace(error=f"{_OF_MAIN}{main.error}")
        holder.reload = outcome

    async def _try_reload(self, broker: Broker) -> ReloadOutcome:
        """Reload, and remember the outcome."""
        async with self._reloading:
            outcome = await self._notifier.reload(partial(self._reload, broker), _NOT_RELOADED)
            self._note_reload(broker.node, outcome)
            return outcome

    def _options(self, settings: Settings, users: str, bound: int) -> "BrokerOptions":
        newest = FORMAT if self._process is None else self._process.facts.record_format
        newest = min(newest, FORMAT)
        return make_options(settings, self._node, self._largest, self._key, users, bound, newest)

    async def _reload(self, broker: Broker) -> tuple[str, ...]:
        """Apply reloadable settings; return the names of changed ones that need a restart.

        Raises FoldmqError and changes nothing if any is invalid.
        """
        new = await asyncio.to_thread(self._reread)
        merged = self._settings.reloaded(new)
        # The new users with the previous addresses.
        check_settings(merged)
        merged = fit_packet_size(merged, self._largest, lower=self._refused > 0)
        users = await asyncio.to_thread(users_digest, merged, self._secret)
        bound, before = self._bound, self._settings
        if (merged.keep_bytes, merged.keep) != (before.keep_bytes, before.keep):
            bound = log_bound(merged, self._log_owner, self._stream)
        options = self._options(merged, users, bound.bytes)
        largest = largest_packet(self._largest)
        listeners = await asyncio.to_thread(self._listeners.options, merged, largest)
        permissions = await asyncio.to_thread(make_permissions, merged)
        authenticator = await asyncio.to_thread(self._access.authenticator, merged)
        await asyncio.to_thread(nats_tls, merged)
        certificates = await self._certificates.look(merged)
        await self._renew_nats_tls()
        broker.reload(options, authenticator, permissions, listeners)
        broker.node.certificates = certificates
        self._listeners.reloaded(merged)
        self._access.reloaded(merged)
        self._outbox.reload(merged)
        self._authenticator, self._settings, self._bound = authenticator, merged, bound
        later = merged.differing(new)
        if later:
            log.warning("changed settings that need a restart", settings=", ".join(later))
        log.info("settings reloaded")
        logging_setup.set_level(merged.log_level)
        return later
