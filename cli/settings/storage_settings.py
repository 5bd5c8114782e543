"""The settings of where the log is stored and which nodes share it, and their contradictions."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from cli.settings.setting_types import (
    Elements,
    ExpandedPath,
    OptionalAddress,
    Seconds,
    SettingsGroup,
    SyncOrSeconds,
    also_needs,
    several,
)
from eventstore.display import escaped

if TYPE_CHECKING:
    from cli.settings.settings import Settings


_PORTS = 65_536
_SHORTEST_KEEP = 3600.0
_LONGEST_CLUSTER = 28
"""Characters: a suffix with the number of the log follows."""
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - compared with


Patterns = Annotated[tuple[str, ...], Elements(several, noun="pattern")]


class StorageFields(SettingsGroup):
    """Settings of the event log: the data directory, or the NATS server that stores it."""

    nats_replicas: int | None = Field(None, ge=1, le=5)
    """Number of replicas of the log in the cluster of --nats-url; a log with fewer is extended.
    Default: unchanged; for a new log 3 in a cluster of three servers or more, otherwise 1."""
    sync: Annotated[Literal["always"] | Seconds, SyncOrSeconds] = "always"
    """When the embedded NATS server syncs to disk: "always" before it acknowledges, or at this
    interval. An interval is faster, but a power loss can lose acknowledged messages."""

    personal_topics: Annotated[tuple[str, ...], Elements(several, noun="topic filter")] = ()
    """Filter of topics whose contents 'foldmq erase' can erase: they are sealed in the log, under a
    key for each topic. May be repeated."""
    personal_clients: Patterns = ()
    """Pattern of client identifiers, such as phone-*, that tokens replace in the log and everywhere
    else. May be repeated."""
    personal_users: Patterns = ()
    """Pattern of user names that tokens replace, likewise. May be repeated."""
    personal_key_file: ExpandedPath | None = None
    """File with the keys of personal topics and names, outside the data directory; made at the
    first start. Several processes add -pN; a cluster shares its directory."""
    personal_keep: Seconds = Field(0.0, ge=0)
    """Age at which contents of --personal-topics are erased, up to a 30th later; at least 1h. 0:
    never."""


def personal_contradictions(settings: "Settings") -> Iterator[str]:
    """Yield one message for each contradiction of the settings of personal topics."""
    from protocol.mqtt.topics import TopicError, validate_topic_filter

    path = settings.personal_key_file
    for pattern in settings.personal_topics:
        shown = escaped(pattern)
        if "{" in pattern:
            yield f"personal_topics = {shown}: names in topics are not replaced: write + for a name"
            continue
        try:
            validate_topic_filter(pattern)
        except TopicError as error:
            yield f"personal_topics = {shown}: {error}"
        if pattern.startswith("$"):
            yield f"personal_topics = {shown}: topics that begin with $ are not sealed"
    yield from _name_contradictions(settings)
    keep = settings.personal_keep
    if 0 < keep < _SHORTEST_KEEP:
        yield f"personal_keep = {keep:g}s: must be at least 1h, or 0"
    if path is None:
        if settings.personal_topics:
            yield "personal_topics also needs personal_key_file, the file with the keys"
        elif keep:
            yield "personal_keep also needs personal_topics and personal_key_file"
        return
    if path.resolve().is_relative_to(settings.data_dir.resolve()):
        yield (
            f"personal_key_file = {path}: must not be in the data directory, whose copies would "
            "have the keys: move it"
        )


def _name_contradictions(settings: "Settings") -> Iterator[str]:
    """Yield the contradictions of the patterns of names."""
    for setting in ("personal_clients", "personal_users"):
        patterns = getattr(settings, setting)
        if not patterns:
            continue
        for pattern in patterns:
            if not pattern or "{" in pattern:
                shown = escaped(pattern) or "(empty)"
                yield f"{setting} = {shown}: write * for the name of a person, such as phone-*"
        if settings.personal_key_file is None:
            yield f"{setting} also needs personal_key_file, the file with the keys"
        if settings.pseudonyms:
            yield f"{setting} and pseudonyms cannot be combined: both replace names"
    if settings.personal_users and settings.bridge_user_map:
        yield "personal_users and bridge_user_map cannot be combined: it needs the users' names"
    if settings.personal_users and settings.web_api_jwt:
        yield "personal_users and web_api_jwt cannot be combined: the log has its users' names"


def storage_contradictions(settings: "Settings") -> Iterator[str]:
    """Yield one message for each contradiction among these settings, with the remedy."""
    if settings.nats_url is None and settings.nats_replicas not in (None, 1):
        yield "nats_replicas needs nats_url: the embedded NATS server is a single server"
    if settings.nats_url is not None and settings.sync != "always":
        yield (
            "sync is for the embedded NATS server: set sync_interval in the "
            "configuration of the server at nats_url"
        )


class ClusterFields(SettingsGroup):
    """Settings of a cluster, and of several processes on one machine."""

    processes: int = Field(1, ge=1, le=32)
    """Number of broker processes, for machines with several cores. Each has a log of its own and
    the sessions of some clients, by a hash of the client identifier; all clients connect to the
    same address. The number cannot change later."""

    cluster_key_file: ExpandedPath | None = None
    """File whose first line is the key of the cluster, at least 16 characters. Nodes with another
    key are refused."""
    cluster_listen: OptionalAddress = None
    """Address at which this node, while it leads, accepts the connections of other nodes. With it,
    nodes that do not lead accept clients too, and pass them on. Default: clients connect to the
    leader only."""
    cluster_advertise: OptionalAddress = None
    """Address at which other nodes reach --cluster-listen. Default: the same."""
    cluster_tls_cert: ExpandedPath | None = None
    """Certificate of this node for connections between nodes, in PEM."""
    cluster_tls_key: ExpandedPath | None = None
    """Private key of --cluster-tls-cert."""
    cluster_tls_ca: ExpandedPath | None = None
    """CA certificates that the certificates of other nodes are verified against. Any certificate of
    this CA counts as that of a node."""
    failover_grace: Seconds = Field(5.0, ge=0)
    """How long the wills of connected clients wait for their clients when another node takes over,
    or the leader closes its clients because it may have been replaced. 0: they are published at
    once."""


def cluster_contradictions(settings: "Settings") -> Iterator[str]:
    """Yield one message for each contradiction among these settings, with the remedy."""
    if settings.processes > 1:
        several = f"processes = {settings.processes}"
        if settings.cluster is not None:
            yield f"{several} and cluster cannot be combined: set partitions instead of processes"
        yield from _too_high(settings, "metrics", several, settings.processes)
        yield from _not_with_several_logs(settings, several, "one process")
    elif settings.partitions > 1:
        yield from _partition_contradictions(settings)
    if settings.cluster is None:
        yield from also_needs(settings, "cluster", "cluster_key_file", "cluster_listen")
        if settings.partitions > 1:
            yield "partitions also needs cluster: use processes for several logs of one machine"
    elif settings.pseudonyms and settings.cluster_key_file is None:
        yield "pseudonyms in a cluster also needs cluster_key_file: all nodes need the same key"
    yield from _peer_contradictions(settings)


def _peer_contradictions(settings: "Settings") -> Iterator[str]:
    """Yield the contradictions about connections between nodes."""
    place, files = (
        settings.cluster_listen,
        ("cluster_tls_cert", "cluster_tls_key", "cluster_tls_ca"),
    )
    yield from also_needs(settings, "cluster_listen", "cluster_advertise", *files)
    tls = [getattr(settings, name) is not None for name in files]
    if any(tls) and not all(tls):
        yield "cluster_tls_cert, cluster_tls_key and cluster_tls_ca are needed together"
    if place is None:
        return
    trusted = settings.cluster_key_file is not None or all(tls)
    if not place.loopback and not trusted:
        yield (
            f"cluster_listen = {place} can be reached from other machines: set cluster_key_file, "
            "or cluster_tls_cert, cluster_tls_key and cluster_tls_ca"
        )
    if settings.tls_client_certs != "none" and not trusted:
        yield (
            "cluster_listen with tls_client_certs also needs cluster_key_file, or "
            "cluster_tls_cert, cluster_tls_key and cluster_tls_ca"
        )
    if settings.cluster_advertise is None and place.host in _EVERYWHERE:
        yield (
            f"cluster_listen = {place} also needs cluster_advertise, the address at which other "
            "nodes reach this one"
        )


def _partition_contradictions(settings: "Settings") -> Iterator[str]:
    """Yield the contradictions of a cluster with several logs."""
    several = f"partitions = {settings.partitions}"
    place = settings.cluster_listen
    if settings.cluster is not None:
        if place is None:
            yield f"{several} also needs cluster_listen: clients connect to any node"
        for name in ("cluster_listen", "cluster_advertise"):
            yield from _too_high(settings, name, several, settings.partitions)
        yield from _too_high(settings, "metrics", several, settings.partitions + 1)
        if len(settings.cluster) > _LONGEST_CLUSTER:
            yield (
                f"cluster = {settings.cluster}: must be at most {_LONGEST_CLUSTER} characters with "
                "several logs"
            )
    yield from _not_with_several_logs(settings, several, "one log")


def _too_high(settings: "Settings", name: str, several: str, ports: int) -> Iterator[str]:
    """Yield a message if too few ports follow that of a setting."""
    place = getattr(settings, name)
    if place is not None and place.port + ports > _PORTS:
        yield (
            f"{name} = {place}: {several} needs {ports} ports, from this one on: "
            f"choose one below {_PORTS - ports + 1}"
        )


def _not_with_several_logs(settings: "Settings", several: str, single: str) -> Iterator[str]:
    """Yield a message for each setting that several logs do not support."""
    for name in ("bridge_user_map", "keep_until_archived", "auth_subject", "record_qos0"):
        if getattr(settings, name) and name in settings.model_fields_set:
            yield f"{several} and {name} cannot be combined yet: use {single} for {name}"
