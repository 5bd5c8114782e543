"""The locations of logs: a NATS server, or a data directory with or without a running broker.

A data directory without a running broker is locked while it is read, and its embedded NATS server
runs for that time. Nothing is ever written to a log.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from nats.aio.client import Client

from eventstore.datadir import DataDir
from eventstore.display import name
from eventstore.encryption import StoreKey
from eventstore.errors import DataDirBusy, NatsUnavailable, NoLog, StoreGone
from eventstore.log.watermark import Watermark
from eventstore.nats.connection import ConnectionOptions, check_server, connect, disconnect
from eventstore.nats.discovery import LOG_STREAM_PREFIX, list_logs
from eventstore.nats.jetstream import check_jetstream
from eventstore.reading.log_source import LogSource, open_log
from eventstore.server.store_encryption import usable_key


@dataclass(frozen=True, slots=True)
class LogLocation:
    """A NATS server with logs."""

    access: ConnectionOptions
    where: str
    """The location, for messages."""
    live: bool
    """Whether a broker may be writing there."""
    named: str | None
    """The requested stream, or the only possible one."""
    datadir: DataDir | None = None
    """The data directory, if the server is its embedded one."""
    several: tuple[str, ...] = ()
    """The streams of a node or cluster with several logs."""
    key: StoreKey | None = None
    """The key of their indexes; None: these are not encrypted."""

    async def connect(self, stack: contextlib.AsyncExitStack) -> Client:
        """Return a connection to the server; ``stack`` closes it. Raises NatsUnavailable."""
        client = await connect(self.access)
        stack.push_async_callback(disconnect, client)
        check_server(client)
        await check_jetstream(client)
        return client

    async def streams(self, client: Client) -> list[str]:
        """Return the possible streams. Raises NoLog when there is none."""
        streams = [self.named] if self.named is not None else list(self.several)
        if not streams:
            streams = await list_logs(client)
        if not streams:
            raise NoLog(f"there is no log of foldmq on {self.where}")
        return streams

    async def open(self, client: Client, stream: str) -> LogSource:
        """Return a log for reading. Raises NoLog, LostLog, CorruptLog or NatsUnavailable."""
        mark = None
        if self.datadir is not None:
            if stream not in _stored(self.datadir):
                raise _missing(self.datadir, stream)
            mark = Watermark(_own_directory(self.datadir, stream) / "log.mark", stream, beside=True)
        source = await open_log(client, stream, self.where, live=self.live, mark=mark)
        return replace(source, key=self.key)

    def reading(self, streams: Iterable[str]) -> str:
        """Return a sentence that names the streams and the place."""
        state = ""
        if self.datadir is not None:
            how = "running" if self.live else "not running: its NATS server is started to read"
            state = f" ({how})"
        return f"reading {', '.join(streams)} at {self.where}{state}"


async def open_directory(
    stack: contextlib.AsyncExitStack,
    path: Path,
    stream: str | None,
    *,
    key: StoreKey | None = None,
    note: Callable[[str], object],
    server_log: Callable[[str], None],
) -> LogLocation:
    """Return the location of the logs in a data directory.

    If no broker runs on it, the directory is locked and its NATS server started, until ``stack``
    is closed. ``stream`` is the requested log; None: the log of the directory's own node, or of any
    of its processes. ``key`` is that of an encrypted directory.
    ``note`` is called with a line for each file of the directory whose mode was narrowed,
    ``server_log`` with the lines of the NATS server.

    Raises NoLog, DataDirError, NatsUnavailable, StoreKeyError, or another EventStoreError of the
    data directory.
    """
    datadir = DataDir(path)
    if not datadir.path.is_dir():
        raise NoLog(f"data directory {datadir.path}: does not exist")
    stored = _stored(datadir)
    if not stored:
        _check_unused(datadir)
        raise NoLog(
            f"data directory {datadir.path}: contains no log (for a log on a NATS server, set "
            "--nats-url)"
        )
    if stream is None and not datadir.processes.exists():
        stream = LOG_STREAM_PREFIX + datadir.node()
    if stream is not None and stream not in stored:
        raise _missing(datadir, stream)
    key = usable_key(datadir, key)
    here = partial(LogLocation, where=str(datadir.path), named=stream, datadir=datadir, key=key)
    try:
        datadir.lock()
    except DataDirBusy:
        return here(_running_access(datadir), live=True)
    stack.callback(datadir.unlock)
    for line in datadir.narrowed:
        note(line)
    from eventstore.server.embedded_server import EmbeddedServer

    server = EmbeddedServer(datadir, key=key, log=server_log)
    await server.start()
    stack.push_async_callback(server.stop)
    access = ConnectionOptions(urls=(server.url,), user=server.user, password=server.password)
    return here(access, live=False)


def _stored(datadir: DataDir) -> set[str]:
    """Return the streams of logs in the store of a data directory."""
    folders = datadir.jetstream.glob(f"jetstream/*/streams/{LOG_STREAM_PREFIX}*")
    return {path.name for path in folders}


def _check_unused(datadir: DataDir) -> None:
    """Raise StoreGone if a broker runs on a data directory that has lost its log."""
    if not datadir.nats_config.exists():
        return
    try:
        datadir.lock()
    except DataDirBusy:
        if not [*datadir.path.glob("log.mark"), *datadir.path.glob("p*/log.mark")]:
            raise NoLog(f"the broker on {datadir.path} is starting: it has no log yet") from None
        raise StoreGone(
            f"{datadir.jetstream} has no log although a broker runs: see foldmq status"
        ) from None
    datadir.unlock()


def _missing(datadir: DataDir, stream: str) -> NoLog:
    return NoLog(f"data directory {datadir.path}: contains no log {name(stream)}")


def _own_directory(datadir: DataDir, stream: str) -> Path:
    """Return the directory of the process that writes a log: of one of several, its own."""
    if not datadir.processes.exists():
        return datadir.path
    return datadir.path / stream.rpartition("-")[2]


def _running_access(datadir: DataDir) -> ConnectionOptions:
    """Return the connection options for the embedded server of the directory's running broker."""
    port = datadir.nats_port()
    if port is None:
        raise NatsUnavailable(
            f"data directory {datadir.path} is in use, but its nats.conf does not contain the port "
            "of its NATS server: try again"
        )
    return embedded_access(datadir, port)


def embedded_access(datadir: DataDir, port: int) -> ConnectionOptions:
    """Return the connection options for the embedded server of a data directory."""
    credentials = datadir.credentials()
    return ConnectionOptions(
        urls=(f"nats://127.0.0.1:{port}",), user=credentials.user, password=credentials.password
    )


def stream_of(path: Path) -> str | None:
    """Return the stream of a data directory's own node; None if it names none, or has several."""
    datadir = DataDir(path)
    if datadir.processes.exists() or not (datadir.path / "node").is_file():
        return None
    return LOG_STREAM_PREFIX + datadir.node()
