"""The stream of the log: its creation, and the durability of its acknowledgements.

Everything that a client can check is checked before the first record is written. What a client
cannot check (when an external server syncs its files) is described in ``StreamState.promise``.
"""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import nats.errors
import orjson
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from eventstore.errors import (
    EventStoreError,
    LogUnavailable,
    LostLog,
    NatsTooOld,
    NodeBusy,
    TooManyReplicas,
    UnknownLogFormat,
    WeakDurability,
)
from eventstore.format.record_size import MIN_RECORD
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from eventstore.nats.jetstream import NO_CLUSTER, NO_PEERS, NO_STREAM, require
from eventstore.nats.replication import (
    DEFAULT_REPLICAS,
    check_all_servers,
    in_cluster,
    replicas_in_step,
    set_replicas,
)

_log = structlog.get_logger("foldmq.nats")

LOG_FORMAT: Final = 1
"""The version of the log's layout, kept in the stream's metadata."""
FORMAT_KEY: Final = "foldmq.log"
IDENTITY_KEY: Final = "foldmq.cluster"
"""Metadata key that identifies the log's cluster; the log of a single node has none."""
PARTITIONS_KEY: Final = "foldmq.partitions"
"""Metadata key with the number of the cluster's logs, if there are several."""
_NEW_SECONDS: Final = 5.0
"""Seconds to wait for the replicas of a new stream; one server of three may be down."""


class LogIdentityMismatch(EventStoreError):  # noqa: N818 - as in eventstore.errors
    """The stream contains the log of a node instead of a cluster, or of another cluster."""

    exit_code = 75


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream that may contain the log: its bounds, and the durability of its acknowledgements."""

    first_seq: int
    last_seq: int
    created: bool
    promise: str
    max_msg_size: int
    """Size in bytes of the largest message that the stream accepts, -1: no limit."""
    replicas: int = 1
    servers: str = ""
    """The servers with replicas, for the banner; empty if there is only one."""


async def ensure_stream(
    client: Client,
    name: str,
    subjects: Sequence[str],
    *,
    replicas: int | None = None,
    sync: str | float | None = None,
    must_exist: bool = False,
    seconds: float | None = None,
    identity: str | None = None,
    partitions: int = 1,
) -> StreamState:
    """Return the state of the log's stream, which is created if it is missing.

    ``replicas`` None keeps the present number; a new stream then has three in a cluster of
    three servers or more, and otherwise one. A stream with fewer gets more, one with more keeps
    them.

    ``sync`` is the embedded server's setting, None for an external server, which does not report
    it. ``must_exist`` says that a log existed before: then a missing stream is damage. (Without it,
    NATS fills the created stream with the messages of the old one that it finds, which can be used
    to repair it.) ``seconds`` is the time limit for an existing stream's answer (None: 10).
    ``identity`` identifies the log's cluster among others of its name; None: the log of a single
    node. ``partitions`` is the number of the cluster's logs.

    Raises LogIdentityMismatch when the log has another identity, WeakDurability with the setting
    that guarantees less, UnknownLogFormat for a log of a later foldmq, LostLog when a log that must
    exist is missing, TooManyReplicas or NatsTooOld when the servers cannot keep the replicas,
    LogUnavailable while JetStream has no leader, NatsUnavailable or DiskFull when the stream cannot
    be created.
    """
    reply = await require(client, f"STREAM.INFO.{name}", accept=(NO_STREAM,), seconds=seconds)
    created = "error" in reply
    if created:
        if must_exist:
            raise LostLog(name)
        made = _stream_config(name, subjects, identity, partitions)
        reply = await _create(client, made, replicas)
    config = reply["config"]
    check_stream(config, subjects=subjects)
    _check_identity(config, identity)
    logs = _partitions_in(config)
    if logs != partitions:
        raise LogIdentityMismatch(f"it has {logs} logs, this node is for {partitions}")
    have = config.get("num_replicas") or 1
    if replicas is not None and have < replicas:
        await check_all_servers(client, replicas)
        reply = await set_replicas(client, config, replicas)
        have = replicas
    else:
        await check_all_servers(client, have)
    state = reply["state"]
    promise = durability_promise(have, sync)
    most = config.get("max_msg_size") or -1
    servers = _placed(reply.get("cluster") or {}) if have > 1 else ""
    return StreamState(state["first_seq"], state["last_seq"], created, promise, most, have, servers)


async def read_partitions(client: Client, cluster: str) -> int | None:
    """Return the number of logs of a cluster; None: it has none yet.

    Raises LogUnavailable while JetStream has no leader, NatsUnavailable.
    """
    for name, several in ((f"{cluster}-p0", True), (cluster, False)):
        stream = f"{LOG_STREAM_PREFIX}{name}"
        reply = await require(client, f"STREAM.INFO.{stream}", accept=(NO_STREAM,))
        if "error" not in reply:
            logs = _partitions_in(reply["config"])
            if logs > 1 or not several:
                return logs
    return None


async def check_cluster_identity(client: Client, cluster: str, identity: str) -> None:
    """Raise LogIdentityMismatch if the first of several logs of a cluster has another identity.

    Raises LogUnavailable while JetStream has no leader, NatsUnavailable.
    """
    stream = f"{LOG_STREAM_PREFIX}{cluster}-p0"
    reply = await require(client, f"STREAM.INFO.{stream}", accept=(NO_STREAM,))
    if "error" not in reply:
        _check_identity(reply["config"], identity)


def _partitions_in(config: Mapping[str, Any]) -> int:
    """Return the number of logs of the cluster of a stream."""
    number = (config.get("metadata") or {}).get(PARTITIONS_KEY, "1")
    return int(number) if number.isdecimal() else 1


async def _create(
    client: Client, config: Mapping[str, object], replicas: int | None
) -> dict[str, Any]:
    """Create a stream with a number of replicas, None: as many as fit the cluster, up to three."""
    method = f"STREAM.CREATE.{config['name']}"
    count = replicas
    if count is None:
        count = await _default_replicas(client)
    else:
        await check_all_servers(client, count)
    accept = () if count == 1 else (NO_PEERS, NO_CLUSTER)
    request = {**config, "num_replicas": count}
    try:
        reply = await require(client, method, request, accept=accept)
    except LogUnavailable:
        # The answer is lost if the leader of the cluster changes meanwhile. If the stream was
        # created, a request with the same configuration gets the same answer.
        reply = await require(client, method, request, accept=accept)
    if "error" in reply and replicas is None:
        return await require(client, method, {**config, "num_replicas": 1})
    if "error" in reply:
        raise TooManyReplicas(count, reply["error"].get("description", ""))
    if count == 1:
        return reply
    return await replicas_in_step(client, str(config["name"]), count, _NEW_SECONDS)


async def _default_replicas(client: Client) -> int:
    """Return the number of replicas to request: one where servers are too old for more."""
    if not in_cluster(client):
        return 1
    try:
        await check_all_servers(client, DEFAULT_REPLICAS)
    except NatsTooOld as error:
        _log.warning("the log gets one replica", reason=str(error))
        return 1
    return DEFAULT_REPLICAS


def _placed(cluster: Mapping[str, Any]) -> str:
    """Return the names of the servers with replicas, the leader first."""
    others = [
        f"{replica['name']} (behind)" if not replica.get("current") else str(replica["name"])
        for replica in sorted(
            cluster.get("replicas") or [], key=lambda replica: str(replica["name"])
        )
    ]
    return ", ".join([cluster.get("leader") or "no leader", *others])


def check_stream(config: Mapping[str, Any], *, subjects: Sequence[str]) -> None:
    """Raise WeakDurability, or UnknownLogFormat, unless a stream so configured can hold the log.

    ``config`` is the ``config`` object of JetStream's stream info.
    """
    where = f"stream {config.get('name')}"
    for setting, allowed, needed in _NEEDED:
        if (value := config.get(setting)) not in allowed:
            raise WeakDurability(where, setting, _shown(value), needed)
    for setting in ("max_msgs", "max_bytes"):
        if (config.get(setting) or -1) > 0 and config.get("discard") != "new":
            value = f"{config[setting]} with discard old"
            raise WeakDurability(where, setting, value, "-1: old records must stay")
    if 0 < (size := config.get("max_msg_size") or -1) < MIN_RECORD:
        raise WeakDurability(where, "max_msg_size", size, f"{MIN_RECORD} at least, or -1: no bound")
    present = config.get("subjects") or []
    if not set(subjects) <= set(present):
        raise WeakDurability(where, "subjects", _shown(present), ", ".join(subjects))
    version = (config.get("metadata") or {}).get(FORMAT_KEY, str(LOG_FORMAT))
    if version != str(LOG_FORMAT):
        raise UnknownLogFormat(
            f"{where} holds a log of format {version}, this foldmq reads format {LOG_FORMAT}: "
            "use the foldmq that wrote it, or a later one"
        )


_NOTHING: Final[tuple[object, ...]] = (None, 0, -1, False, "", [], {})
_NEEDED: Final[tuple[tuple[str, tuple[object, ...], str], ...]] = (
    ("storage", ("file",), "file: memory does not survive a restart"),
    ("retention", ("limits",), "limits: other policies remove records that were read"),
    ("persist_mode", (None, "", "default"), "default: async acknowledges before writing"),
    ("no_ack", _NOTHING, "false: without acknowledgements nothing is guaranteed"),
    ("max_age", _NOTHING, "0: old records must stay"),
    ("max_msgs_per_subject", _NOTHING, "-1: old records must stay"),
    ("sealed", _NOTHING, "false: a sealed stream accepts no records"),
    ("mirror", _NOTHING, "none: a mirror accepts no records"),
    ("sources", _NOTHING, "none: one broker writes a log"),
    ("subject_transform", _NOTHING, "none: records keep their subject"),
    ("allow_direct", (True,), "true: records are read directly"),
)
"""(setting, the accepted values, the requirement and its reason)"""


def durability_promise(replicas: int, sync: str | float | None) -> str:
    """Return the meaning of an acknowledgement of such a stream, for the banner."""
    copies = "on one server" if replicas == 1 else f"on a majority of {replicas} servers"
    if sync == "always":
        return f"acknowledged messages are on disk {copies} (synced before each acknowledgement)"
    if sync is not None:
        return (
            f"acknowledged messages are written {copies}, synced every {sync} s: "
            f"they survive a crash of the programs, a power failure may undo the last {sync} s"
        )
    return (
        f"acknowledged messages are written {copies}; the NATS server syncs them to disk every "
        "sync_interval, which clients cannot see: with the default, 2 minutes, a power failure may "
        "undo that much; with 'always', nothing"
    )


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _check_identity(config: Mapping[str, Any], identity: str | None) -> None:
    present = (config.get("metadata") or {}).get(IDENTITY_KEY)
    if present == identity:
        return
    if present is None:
        raise LogIdentityMismatch("its log belongs to a single node")
    raise LogIdentityMismatch(
        "its key is different" if identity else "its log belongs to a cluster"
    )


def _stream_config(
    name: str, subjects: Sequence[str], identity: str | None, partitions: int
) -> dict[str, object]:
    metadata = {FORMAT_KEY: str(LOG_FORMAT)}
    if partitions > 1:
        metadata[PARTITIONS_KEY] = str(partitions)
    if identity is not None:
        metadata[IDENTITY_KEY] = identity
    return {
        "name": name,
        "description": "foldmq's event log: written by one broker, never trimmed by NATS",
        "subjects": list(subjects),
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "max_age": 0,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_msg_size": -1,
        "max_msgs_per_subject": -1,
        "max_consumers": -1,
        "compression": "none",
        "allow_direct": True,
        "deny_delete": False,
        "deny_purge": False,
        # the expected sequence makes appends unique; this is the minimum that the server accepts
        "duplicate_window": 100_000_000,
        "metadata": metadata,
    }


# The lock of a node id: a running broker answers requests for its id on NATS.
#
# Two brokers with the same node id on one server would fence each other off in turn. The expected
# sequence of each append keeps the log correct in any case; the lock prevents the start of the
# second broker.

_ANSWER_SECONDS = 2.0
"""Seconds to wait for an answer; a broker that does not answer has ended, or will be fenced off."""


async def lock_node(client: Client, node: str, where: str) -> None:
    """Answer for a node until the client is closed; raise NodeBusy if another broker does."""
    subject = f"foldmq.node.{node}"
    try:
        reply = await client.request(subject, b"", timeout=_ANSWER_SECONDS)
    except (TimeoutError, nats.errors.Error):
        pass
    else:
        raise NodeBusy(node, where, _described(reply.data))
    me = orjson.dumps({"pid": os.getpid(), "host": socket.gethostname()})

    async def answer(message: Msg) -> None:
        await message.respond(me)

    await client.subscribe(subject, cb=answer)
    await client.flush()


def _described(answer: bytes) -> str:
    try:
        owner = orjson.loads(answer)
        return f"process {owner['pid']} on {owner['host']}"
    except (ValueError, KeyError, TypeError):
        return "a broker that does not name its process"
