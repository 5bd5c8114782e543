"""``foldmq serve``: puts the broker together, runs it, and takes it down."""

import asyncio
import contextlib
import dataclasses
import errno
import gc
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import structlog

from actors.attestation import Attestor, subject_of
from actors.auth import Anonymous, Authenticator, PasswordFile
from actors.broker import Broker
from actors.clock import SystemClock
from actors.options import Options
from cli import logs
from cli.ready import Facts, Progress, announce
from cli.settings import RELOADABLE, ConfigError, Settings, check, load
from cli.store import Store, answer_requests, fit, open_store
from cli.units import Address
from eventstore.datadir import DataDir
from protocol.errors import FoldmqError

log = structlog.get_logger("foldmq")

T = TypeVar("T")
# Descriptors for all that is no client: listeners, NATS, files, those of the interpreter.
SPARE_DESCRIPTORS = 64
# Wake-ups of the broker in a second below which it has time for the garbage collector.
QUIET_TURNS = 20


class ListenError(FoldmqError):
    """An address that cannot be listened on."""

    exit_code = 69  # EX_UNAVAILABLE

    def __init__(self, place: Address, error: OSError) -> None:
        reasons = {
            errno.EADDRINUSE: "another program listens there; stop it or choose another --listen",
            errno.EACCES: "not permitted; ports below 1024 need privileges",
            errno.EADDRNOTAVAIL: "this machine does not have that address",
        }
        reason = reasons.get(error.errno or 0) or error.strerror or str(error)
        if isinstance(error, socket.gaierror):
            reason = "this name has no address"
        super().__init__(f"cannot listen on {place}: {reason}")


class DrainError(FoldmqError):
    """The broker had to end without writing all of its log."""

    exit_code = 74  # EX_IOERR

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"ended although the log could not be written for {seconds:g} s; "
            "nothing that was acknowledged is lost"
        )


def run(flags: Mapping[str, object], config: Path | None) -> None:
    """Serve until SIGTERM or SIGINT; raises the FoldmqError that ends the broker otherwise."""
    settings = load(flags, os.environ, config)
    logs.configure(settings.log_level, settings.log_format)

    def reread() -> Settings:
        return load(flags, os.environ, config)

    with asyncio.Runner(loop_factory=loop_factory(settings.event_loop)) as runner:
        runner.run(Service(settings, reread).run())


def loop_factory(choice: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Give what makes the event loop, None for asyncio's own.

    Raises ConfigError when uvloop is asked for and not installed.
    """
    if choice == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        if choice == "uvloop":
            raise ConfigError("event_loop = uvloop: it is not installed") from None
        return None
    return uvloop.new_event_loop


def make_authenticator(settings: Settings) -> Authenticator:
    """Give what decides who may connect; raises PasswordFileError for a bad password file."""
    if settings.password_file is None:
        return Anonymous()
    return PasswordFile.load(settings.password_file, allow_anonymous=settings.anonymous)


def make_options(settings: Settings, node: str, largest: int) -> Options:
    """Give the broker's part of the settings for a NATS that takes ``largest`` bytes a message.

    Raises ConfigError when max_packet_size is more than that leaves room for.
    """
    settings = fit(settings, largest)
    values: dict[str, Any] = {
        field.name: getattr(settings, field.name)
        for field in dataclasses.fields(Options)
        if field.name in Settings.model_fields
    }
    options = Options(node=node, **values)
    return dataclasses.replace(
        options,
        max_connections=affordable_connections(settings),
        max_record=min(options.max_record, largest // 2),
    )


class Service:
    """One life of the broker: start, serve, reload on SIGHUP, drain on SIGTERM and SIGINT."""

    def __init__(self, settings: Settings, reread: Callable[[], Settings]) -> None:
        """Take the settings and what reads them again."""
        self._settings = settings
        self._reread = reread
        self._stop = asyncio.Event()
        self._hangup = asyncio.Event()
        self._authenticator: Authenticator = Anonymous()
        self._node = ""
        self._largest = 0

    async def run(self) -> None:
        """Serve; raises the FoldmqError because of which the broker must stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._hangup.set)
        async with contextlib.AsyncExitStack() as stack:
            broker = await self._unless_stopped(self._start(stack))
            if broker is None:
                log.info("stopped while starting")
                return
            reloading = asyncio.create_task(self._reload_on_hangup(broker))
            collecting = asyncio.create_task(_collect_when_quiet(broker))
            try:
                await self._until_stopped(broker)
            finally:
                reloading.cancel()
                collecting.cancel()
            await self._drain(broker)
        log.info("stopped")

    async def _start(self, stack: contextlib.AsyncExitStack) -> Broker:
        settings = self._settings
        for place in settings.listen:
            probe(place)
        self._authenticator = make_authenticator(settings)
        stack.callback(lambda: self._authenticator.close())
        datadir = stack.enter_context(DataDir(settings.data_dir))
        self._node = datadir.node()
        store = await open_store(stack, settings, datadir)
        self._largest = store.largest
        options = make_options(settings, self._node, self._largest)
        broker = Broker(options, store.log, self._authenticator, SystemClock())
        await _recover(broker)
        await answer_requests(store.client, subject_of(self._node), Attestor(broker).answer)
        listening = [await _listen(broker, place) for place in settings.listen]
        self._announce(listening, datadir, store)
        return broker

    def _announce(self, listening: list[Address], datadir: DataDir, store: Store) -> None:
        users = self._authenticator
        facts = Facts(
            listening=listening,
            users=users.user_count if isinstance(users, PasswordFile) else 0,
            data=str(datadir.path),
            node=self._node,
            nats=store.where,
            promise=store.promise,
            durable=store.durable,
        )
        announce(self._settings, facts)

    async def _unless_stopped(self, starting: Coroutine[Any, Any, T]) -> T | None:
        """Give the result, or None when a signal came first; what was begun is undone."""
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
        waiting: set[asyncio.Future[Any]] = {stopped, broker.failed}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if broker.failed.done():
            raise broker.failed.result()

    async def _drain(self, broker: Broker) -> None:
        """End in good order; raises DrainError when the log could not be written to the end."""
        log.info("draining: no new connections, what is in flight is committed")
        limit = self._settings.commit_timeout
        try:
            await asyncio.wait_for(broker.drain(), limit)
        except TimeoutError:
            raise DrainError(limit) from None

    def _on_stop_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            # Nothing acknowledged depends on an orderly end; the next start replays the log.
            log.warning("stopping at once", signal=number.name)
            os._exit(128 + number)
        self._stop.set()

    async def _reload_on_hangup(self, broker: Broker) -> None:
        while True:
            await self._hangup.wait()
            self._hangup.clear()
            try:
                await self._reload(broker)
            except FoldmqError as error:
                log.error("settings not reloaded, the old ones stay", reason=str(error))  # noqa: TRY400 -- its sentence says it all

    async def _reload(self, broker: Broker) -> None:
        """Take over what can change; raises FoldmqError and changes nothing if anything is bad."""
        new = await asyncio.to_thread(self._reread)
        merged = self._settings.model_copy(update={name: getattr(new, name) for name in RELOADABLE})
        # The new users together with the addresses that stay.
        check(merged)
        options = make_options(merged, self._node, self._largest)
        authenticator = await asyncio.to_thread(make_authenticator, merged)
        broker.reload(options, authenticator)
        self._authenticator, self._settings = authenticator, merged
        later = [
            name
            for name in Settings.model_fields
            if name not in RELOADABLE and getattr(new, name) != getattr(merged, name)
        ]
        if later:
            log.warning("these settings change at the next start", settings=", ".join(later))
        log.info("settings reloaded")
        logs.set_level(merged.log_level)


def tune_collector() -> None:
    """Look for garbage cycles rarely, and never among what recovery made.

    The broker breaks its own cycles; what it makes by the hundred thousand are messages, which
    end without the collector's help. A walk through all of them stops the world for a tenth of a
    second: it is left to ``_collect_when_quiet``.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 5, 1_000_000)


async def _collect_when_quiet(broker: Broker) -> None:
    """Run the collector once a minute if nobody is there to notice."""
    while True:
        await asyncio.sleep(60)
        before = broker.kernel.turns
        await asyncio.sleep(1)
        if broker.kernel.turns - before < QUIET_TURNS:
            gc.collect()


def probe(place: Address) -> None:
    """Raise ListenError when ``place`` is taken: better now than after a long replay."""
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        for family, kind, number, _, where in found:
            with socket.socket(family, kind, number) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind(where)
                listener.listen(1)
    except OSError as error:
        raise ListenError(place, error) from None


async def _recover(broker: Broker) -> None:
    begun = time.monotonic()
    progress = Progress()
    try:
        await broker.recover(progress)
    finally:
        progress.close()
    tune_collector()
    seconds = round(time.monotonic() - begun, 3)
    log.info(
        "log replayed", records=broker.node.applied, entries=broker.node.entries, seconds=seconds
    )


async def _listen(broker: Broker, place: Address) -> Address:
    try:
        return Address(*await broker.listen(place.host, place.port))
    except OSError as error:
        raise ListenError(place, error) from None


def affordable_connections(settings: Settings) -> int:
    """Raise the limit on open files as far as the system lets us; give what it leaves room for.

    That is ``max_connections``, or less: one connection more would fail where nobody sees it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        wanted = max(hard, SPARE_DESCRIPTORS + 1)
        tell = log.warning if "max_connections" in settings.model_fields_set else log.info
        tell(
            "max_connections lowered to what the limit on open files allows (ulimit -Hn)",
            max_connections=wanted - SPARE_DESCRIPTORS,
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted - SPARE_DESCRIPTORS
