"""A broker process of ``--processes N``: its settings, its connections and the other processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import orjson
import structlog

from actors.connection.admission import Admission
from actors.connection.listener import Listener, ListenerOptions
from actors.exchange.exchange import ExchangeLink, LogExchange, OtherLog
from actors.node.reload_outcome import ReloadOutcome
from actors.session.node_context import NodeContext
from cli.common.memory import tune_collector
from cli.common.units import Address
from cli.serve.log_store import Store
from cli.serve.process_edges import PASSED_ON
from cli.settings.settings import Settings
from cluster.peer_listener import PeerListener
from eventstore.datadir import DataDir
from eventstore.display import escaped
from eventstore.log.jetstream_log import EventLog
from eventstore.log.key_file import KeyReader, file_of_log, file_of_process
from eventstore.log.keyed_store import KeyedStore
from eventstore.nats.connection import ConnectionOptions
from eventstore.nats.direct_client import DirectClient
from eventstore.server.client_server import access_of
from projections.log_proof import SHOWN_AT_START, Doubt

_log = structlog.get_logger("foldmq")

MEMBER_VARIABLE: Final = "_FOLDMQ_PROCESS"
"""Environment variable that makes ``foldmq serve`` one of several processes."""
READY: Final = b"ready"
RELOAD: Final = b"reload"
"""Messages to the main process; behind the first one, in JSON, what is not proven of the log."""
COUNTS: Final = struct.Struct("!II")
"""A message of the main process: clients that it passes on, and those that wait for a leader."""
GIVEN: Final = struct.Struct("!Bf")
"""The number of the listener of a socket, and the seconds that its client has waited; then follows
what the client has sent already."""
_MAX_MESSAGE: Final = 33 * 1024
"""Maximum bytes of a message of the main process."""
_MAX_ERROR: Final = 500
"""Maximum characters of the error of a reload in such a message: each is at most 6 bytes."""
ORPHANED: Final = 75
"""Exit code of a broker process whose main process has ended."""
_AT_ONCE = 16
_MAIN_RELOADS: Final = 10.0
"""Maximum seconds of a reload in the main process."""
_TIMEOUT: Final = 15.0
"""Seconds without an answer about another log after which the NATS server is changed, over which
this process writes its own log."""
_EXCHANGE: Final = "foldmq.exchange.{}.{}"
"""Subject of messages between broker processes, of the log of a name."""
_PROTOCOL_ROOM: Final = 1024
_SEQUENCE: Final = 8
"""Bytes of the stream sequence before a record."""
_OF_NATS_CLIENTS: Final = (
    "nats_listen",
    "nats_users",
    "nats_tls_cert",
    "nats_tls_key",
    "nats_tls_client_ca",
)


class MemberFacts(NamedTuple):
    """The facts that the main process passes to a broker process."""

    number: int
    names: list[str]
    """Names of the logs of all processes."""
    data_dir: str
    nats: dict[str, str]
    """URL, user and password of the embedded NATS server; empty: it is an external one."""
    channel: int
    """Descriptor of the socket to the main process."""
    cluster: bool
    """Whether the logs are those of a cluster."""
    nats_clients: dict[str, str]
    """Options of a connection to the embedded NATS server for NATS clients; empty: there is
    none."""
    record_format: int = 1
    """Newest format of records that the main process can read, and so can all that it started.

    A process that is started again may have newer code: the files were replaced meanwhile."""

    def encode(self) -> str:
        """Return the value of the environment variable."""
        return orjson.dumps(self._asdict()).decode()


def member_settings(settings: Settings, facts: MemberFacts) -> Settings:
    """Return the settings of a broker process."""
    changed: dict[str, object] = {"data_dir": Path(facts.data_dir), "web": None}
    # The main process runs the NATS server for NATS clients.
    changed |= dict.fromkeys(_OF_NATS_CLIENTS) | {"nats_anonymous": False}
    if facts.nats:
        # That server has the logs only.
        if not facts.nats_clients and settings.bridge_url is None:
            changed["bridge"] = False
        changed["nats_url"] = facts.nats["url"]
        changed["nats_user"] = facts.nats["user"]
        changed["nats_password"] = facts.nats["password"]
    if settings.personal_key_file is not None:
        changed["personal_key_file"] = file_of_process(settings.personal_key_file, facts.number)
    if settings.metrics is not None:
        host, port = settings.metrics
        changed["metrics"] = Address(host, port + facts.number if port else 0)
    if facts.cluster:
        changed["cluster"] = facts.names[facts.number]
        changed["partitions"] = 1  # it has one of them
        for name in ("cluster_listen", "cluster_advertise"):
            place = getattr(settings, name)
            if place is not None and place.port:
                changed[name] = place._replace(port=place.port + facts.number)
        if settings.metrics is not None and settings.metrics.port:  # the main process has that one
            changed["metrics"] = settings.metrics._replace(
                port=settings.metrics.port + 1 + facts.number
            )
    copied = settings.model_copy(update=changed)
    # A copied setting counts as set only if it was set.
    names = settings.model_fields_set | (changed.keys() - {"metrics"})
    copied.model_fields_set.intersection_update(names)
    return copied


def reloaded_message(outcome: ReloadOutcome) -> bytes:
    """Return the message of the main process about its last reload."""
    error = escaped(outcome.error, _MAX_ERROR)
    return orjson.dumps({"time_ms": outcome.time_ms, "error": error})


class ProcessMember:
    """One of several broker processes of a machine: the one that runs this code."""

    def __init__(self, facts: MemberFacts) -> None:
        self.facts = facts
        self._channel = socket.socket(fileno=facts.channel)
        self._channel.setblocking(False)
        self._take: Callable[[int, float, bytes, socket.socket], object] = _close
        """Takes a socket for the listener of a number, and what its client has sent already."""
        self.counts = 0, 0
        """The numbers of clients of this log that the main process passes on, and that wait for a
        leader."""
        self.reload: ReloadOutcome | None = None
        """The last reload in the main process, if this process is to report it."""
        self.on_reload: Callable[[], object] = lambda: None
        """Called when ``reload`` has changed."""
        self._reloaded = asyncio.Event()

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> ProcessMember | None:
        """Return this process, if it is one of several; its variable is removed."""
        value = environment.pop(MEMBER_VARIABLE, "")
        return cls(MemberFacts(**orjson.loads(value))) if value else None

    @property
    def logs_of_cluster(self) -> int:
        """The number of logs of the cluster that this process is a node of; 1 without a cluster."""
        return len(self.facts.names) if self.facts.cluster else 1

    @property
    def owner(self) -> DataDir:
        """The data directory of the main process, in which is that of this one."""
        return DataDir(Path(self.facts.data_dir).parent)

    @property
    def log_owner(self) -> DataDir | None:
        """The data directory of the embedded NATS server that the main process runs, or None."""
        return self.owner if self.facts.nats else None

    @property
    def nats_clients(self) -> ConnectionOptions | None:
        """How to connect to the NATS server that the main process runs for NATS clients."""
        return access_of(self.facts.nats_clients) if self.facts.nats_clients else None

    def watch(self) -> None:
        """Read the messages of the main process, and end with it.

        Until :meth:`take_connections` no socket may be sent: it would be closed.
        """
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._read)

    def ready(self, doubts: Sequence[Doubt] = ()) -> None:
        """Tell the main process that this one has started, and what is not proven of its log."""
        with contextlib.suppress(OSError):  # it is noticed when reading
            self._channel.send(READY + orjson.dumps([*map(list, doubts)]))

    def follows(self) -> None:
        """Tell the main process that this one has read the log, and follows it."""
        tune_collector()
        self.ready()

    @property
    def _reports_main(self) -> bool:
        """Whether this process reports reloads of the main process; in a cluster any may lead."""
        return self.facts.cluster or not self.facts.number

    async def reload_main(self) -> str:
        """Let the main process read its settings again; return why it refuses them."""
        if not self._reports_main:
            return ""
        self._reloaded.clear()
        try:
            self._channel.send(RELOAD)
            async with asyncio.timeout(_MAIN_RELOADS):
                await self._reloaded.wait()
        except (OSError, TimeoutError):
            return "the main process does not answer"
        return self.reload.error if self.reload is not None else ""

    async def join(
        self,
        join: Callable[[Sequence[str], Sequence[OtherLog], ExchangeLink], LogExchange],
        store: Store,
        key_file: Path | None,
    ) -> None:
        """Exchange messages with the other processes; ``join`` is that of the broker.

        ``key_file`` has the keys of the contents of this process.
        """
        names = self.facts.names
        link = NatsExchangeLink(store.client, names[self.facts.number])
        readers = {name: await store.connect_reader() for name in names if name != link.name}
        others = [OtherLog(name, _log_of(store, reader, name)) for name, reader in readers.items()]
        if key_file is not None:
            for name, log in others:
                log.key_reader = KeyReader(file_of_log(key_file, link.name, name), name)
        await link.listen(join(names, others, link), readers)

    def take_connections(
        self, node: NodeContext, admission: Admission, listeners: Sequence[ListenerOptions]
    ) -> None:
        """Take the connections that the main process passes on, for the listeners by number."""
        for options in listeners:
            admission.listen(options, [])
        names = [options.name for options in listeners]
        passed_on = PeerListener(node, admission, b"")

        def take(number: int, waited: float, data: bytes, client: socket.socket) -> None:
            client.setblocking(False)
            make: Callable[[], asyncio.BaseProtocol] = passed_on.accept
            if number != PASSED_ON:
                listener = admission.listeners[names[number]]
                if not _admitted(admission, listener, client):
                    client.close()
                    return
                make = partial(_BegunClient, partial(admission.accept, listener, waited), data)
            node.spawn_task(_connect(make, client))

        self._take = take
        self.watch()
        self.ready(node.state.proof.doubts[-SHOWN_AT_START:])

    def stop_taking(self) -> None:
        """Take no more connections."""
        self._take = _close

    def _read(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                message, descriptors, _, _ = socket.recv_fds(self._channel, _MAX_MESSAGE, 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                message, descriptors = b"", []
            if not message:
                # As after a kill: nothing that is not in the log was acknowledged.
                _log.error("the main process has ended: this one stops")
                os._exit(ORPHANED)
            for descriptor in descriptors:
                client = socket.socket(fileno=descriptor)
                number, waited = GIVEN.unpack_from(message)
                self._take(number, waited, message[GIVEN.size :], client)
            if not descriptors and len(message) == COUNTS.size:
                self.counts = COUNTS.unpack(message)
            elif not descriptors and self._reports_main:
                self.reload = ReloadOutcome(**orjson.loads(message))
                self.on_reload()
                self._reloaded.set()


class NatsExchangeLink:
    """The link of a process to the others on core NATS; ``name`` is that of its log.

    It carries new records and the ends of logs, members of shared subscriptions, messages of QoS 0,
    and the topic filters that the bridges to NATS subscribe to for each other.
    """

    def __init__(self, client: DirectClient, name: str) -> None:
        self._client = client
        self.name = name
        self._stored, self._records, self._messages, self._members, self._filters = (
            _EXCHANGE.format(name, what)
            for what in ("stored", "records", "messages", "members", "filters")
        )
        self.largest = client.max_payload - _PROTOCOL_ROOM

    async def listen(self, exchange: LogExchange, others: Mapping[str, DirectClient]) -> None:
        """Pass the messages of other processes to the exchange.

        Records come over the connections for reading the ``others``: if too many wait there, the
        server ends only that connection, and they are read from the log.
        """
        takes: dict[str, Callable[[str, bytes], object]] = {
            "stored": lambda other, data: exchange.heard(other, int(data)),
            "records": lambda other, data: exchange.heard(
                other, int.from_bytes(data[:_SEQUENCE]), data[_SEQUENCE:]
            ),
            "messages": exchange.arrived,
            "members": exchange.reported,
            "filters": exchange.reported_filters,
            f"to.{self.name}": exchange.pushed,
            f"topics.{self.name}": exchange.reported_topics,
        }
        reads = "records", f"to.{self.name}"
        for other, reader in others.items():
            for what, take in takes.items():
                await (reader if what in reads else self._client).listen(
                    _EXCHANGE.format(other, what), partial(_without_subject, take, other)
                )

    def announce(self, log: str, sequence: int, record: bytes) -> None:
        """Tell the other processes that this process's log is stored up to a record."""
        del log  # it is that of this process
        if record:
            self._client.publish_now(self._records, sequence.to_bytes(_SEQUENCE) + record)
        else:
            self._client.publish_now(self._stored, b"%d" % sequence)

    def push(self, to: str, records: bytes) -> bool:
        """Send records to the process of one log."""
        return self._client.publish_now(_EXCHANGE.format(self.name, f"to.{to}"), records)

    def report_topics(self, to: str, topics: bytes) -> None:
        """Tell the process of a log which topics are wanted and which are not."""
        self._client.publish_now(_EXCHANGE.format(self.name, f"topics.{to}"), topics)

    def pass_on(self, batch: bytes) -> bool:
        """Send a batch of QoS 0 messages to the other processes."""
        return self._client.publish_now(self._messages, batch)

    def report(self, members: bytes) -> bool:
        """Tell the other processes about the members of shared subscriptions."""
        return self._client.publish_now(self._members, members)

    def report_filters(self, filters: bytes) -> bool:
        """Tell the bridges of the other processes about the topic filters of clients."""
        return self._client.publish_now(self._filters, filters)


def _without_subject(
    take: Callable[[str, bytes], object], other: str, _subject: str, data: bytes
) -> None:
    take(other, data)


class _BegunClient(asyncio.Protocol):
    """The first protocol of a client's socket: what the main process has read comes first."""

    def __init__(self, make: Callable[[], asyncio.Protocol], data: bytes) -> None:
        self._make = make
        self._data = data

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Continue with the protocol of the listener."""
        protocol = self._make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if not transport.is_closing():
            protocol.data_received(self._data)


def _admitted(admission: Admission, listener: Listener, client: socket.socket) -> bool:
    """Return whether a listener takes a client."""
    try:
        address = client.getpeername()
    except OSError:  # the client is gone
        return False
    # A Unix socket has no address.
    return admission.admits(listener, address[0] if isinstance(address, tuple) else "")


def _close(_number: int, _waited: float, _data: bytes, client: socket.socket) -> None:
    """Close a socket that cannot be served."""
    client.close()


async def _connect(make: Callable[[], asyncio.BaseProtocol], client: socket.socket) -> None:
    """Begin with the protocol of an accepted socket."""
    await asyncio.get_running_loop().connect_accepted_socket(make, client)


def _log_of(store: Store, client: DirectClient, name: str) -> EventLog:
    """Return the log of another process, for reading on a connection of its own."""
    kept = KeyedStore(client, f"FOLDMQ_STATE_{name}", f"foldmq.state.{name}.")
    return EventLog(
        client,
        f"FOLDMQ_LOG_{name}",
        f"foldmq.log.{name}",
        projections=kept,
        replicas=store.log.replicas,
        max_wait=_TIMEOUT,
    )
