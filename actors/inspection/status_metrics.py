"""The values of a broker's status that are read and not counted, and all Prometheus metrics.

Each value is one entry: name, meaning, place in the status, and the function that reads it.
Counters are declared where they are counted (:mod:`eventstore.metric_types`).
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from actors.bridge.bridge_stats import BridgeStats
from actors.inspection.destination_metrics import DESTINATION_METRICS
from actors.node.counters import Counters
from actors.session.node_context import NodeContext
from actors.transports.handshakes import TlsStats
from eventstore.log.journal_stats import JournalStats
from eventstore.metric_types import (
    Kind,
    Labels,
    Metric,
    Numbers,
    Status,
    by_reason,
    metrics_of,
    unchanged,
)

if TYPE_CHECKING:
    from actors.connection.admission import Admission
    from actors.inspection.status_sources import StatusSources

REFUSED = (
    "auth_bytes",
    "auth_steps",
    "authentication_method",
    "connect_timeout",
    "connections",
    "flapping",
    "framing",
    "logins",
    "message_too_large",
    "overload",
    "protocol_error",
    "publish_rate",
    "reauthentication",
    "reauthentications",
    "sessions",
    "slow_reader",
    "tls_handshake",
    "unauthenticated",
)
"""Limits exported before they are first reached."""
DENIED = ("bridge", "history", "publish", "subscribe", "will")
"""Actions that can be denied."""
DROPPED = (
    "bridge_loop",
    "bridge_not_permitted",
    "bridge_reply",
    "bridge_slow",
    "bridge_too_large",
    "bridge_unavailable",
    "message_too_large",
    "not_permitted",
    "queue_bytes",
    "queue_messages",
    "reserved_topic",
    "slow_reader",
)
"""Reasons exported before a message is first dropped for them."""


class StatusValue(NamedTuple):
    """A metric, and a function that reads its value; None: other values provide it."""

    metric: Metric
    value: Callable[[StatusSources], Any] | None


def _value(
    name: str,
    meaning: str,
    path: str,
    value: Callable[[StatusSources], Any] | None = None,
    *,
    labels: Labels = (),
    read: Callable[[Any], Any] = unchanged,
) -> StatusValue:
    kind: Kind = "counter" if name.endswith("_total") else "gauge"
    return StatusValue(Metric(name, kind, meaning, path, labels, read), value)


def _logins(admission: Admission) -> list[tuple[str, str, int]]:
    """Return the number of logins by method and result."""
    counts = admission.authenticator.counts
    return [(method, result, count) for (method, result), count in counts.items()]


def _by_type(node: NodeContext) -> dict[str, int]:
    return {kind.__name__.lower(): count for kind, count in node.kernel.population.items()}


def _build(status: Status) -> Numbers | None:
    if "node" not in status:
        return None
    return {(status["software"], platform.python_version(), status["node"]): 1}


def _reload_failed(status: Status) -> float | None:
    if "reload" not in status:
        return None
    return float(bool((status["reload"] or {}).get("error")))


def _sessions(counts: Status) -> Numbers:
    connected = counts["connected"]
    return {("connected",): connected, ("offline",): counts["total"] - connected}


def _unfinished(census: Status) -> Numbers:
    return {
        ("sent",): census["in_flight"],
        ("releasing",): census["releasing"],
        ("received",): census["inbound"],
    }


def _unprojected(log: Status) -> int | None:
    if log["projected"] is None:
        return None
    return max(0, int(log["durable"]) - int(log["projected"]))


def _overloaded(status: Status) -> Numbers:
    reasons = ("commit_latency", "loop_lag")
    return {(reason,): float(status.get("overload") == reason) for reason in reasons}


def _ends(rows: list[dict[str, Any]]) -> Numbers:
    return {(row["setting"], row["listener"]): row["ends_ms"] / 1000 for row in rows}


def _through(sources: StatusSources) -> int:
    archived = sources.node.state.archived
    return archived.event.through if archived is not None else 0


BROKER_VALUES = (
    _value(
        "foldmq_build_info",
        "Always 1; the labels contain the versions.",
        "",
        labels=("version", "python", "node"),
        read=_build,
    ),
    _value(
        "foldmq_ready",
        "1 if clients are served and the log can be written, as in /readyz.",
        "ready",
        lambda sources: not sources.node.not_ready_reasons(),
        read=float,
    ),
    _value(
        "foldmq_reload_failed",
        "1 if the last reload of the settings failed: the previous ones stay in effect.",
        "",
        read=_reload_failed,
    ),
    _value(
        "foldmq_certificate_expiry_timestamp_seconds",
        "Time (Unix) at which a certificate, revocation list, token key or NATS credential in use "
        "ends, by the setting that names the file, and the listener if it is of one.",
        "certificates",
        labels=("setting", "listener"),
        read=_ends,
    ),
    _value(
        "foldmq_log_lines_dropped_total",
        "Lines of the broker's log that were lost because stderr was not read.",
        "lines_dropped",
        lambda sources: sources.node.dropped_lines(),
    ),
    _value("foldmq_cluster_leader", "1 if this node leads its cluster.", "cluster.leader"),
    _value(
        "foldmq_cluster_epoch",
        "Number of times that a node of the cluster became the leader, as known to this node.",
        "cluster.epoch",
    ),
    _value(
        "foldmq_cluster_behind_records",
        "Records of the leader that this node has not folded yet.",
        "cluster.behind",
    ),
    _value(
        "foldmq_cluster_edge_clients",
        "Clients that this node passes on to the leader.",
        "cluster.edge_clients",
    ),
    _value(
        "foldmq_cluster_parked_clients",
        "Clients of this node that wait for a leader.",
        "cluster.parked",
    ),
    _value(
        "foldmq_connections",
        "Open connections.",
        "connections.open",
        lambda sources: len(sources.admission.connections),
    ),
    _value(
        "foldmq_connections_limit",
        "Maximum number of open connections.",
        "connections.limit",
        lambda sources: sources.node.options.max_connections,
    ),
    _value(
        "foldmq_connections_paused",
        "Connections paused because the log does not keep up.",
        "connections.paused",
        lambda sources: len(sources.node.paused),
    ),
    _value(
        "foldmq_connections_refused_total",
        "Connections and subscriptions refused or ended, by the limit reached.",
        "refused",
        lambda sources: dict(sources.node.limits.refused.counts),
        labels=("limit",),
        read=by_reason(*REFUSED),
    ),
    _value(
        "foldmq_listener_connections",
        "Open connections, by listener.",
        "listeners",
        lambda sources: {
            name: sources.node.limits.connections(name) for name in sources.admission.listeners
        },
        labels=("listener",),
        read=by_reason(),
    ),
    _value(
        "foldmq_connections_unauthenticated",
        "Open connections whose CONNECT is not accepted yet.",
        "connections.unauthenticated",
        lambda sources: len(sources.node.limits.unauthenticated),
    ),
    _value(
        "foldmq_unauthenticated_bytes",
        "Approximate memory held by unauthenticated connections.",
        "connections.unauthenticated_bytes",
        lambda sources: sources.node.limits.unauthenticated.bytes,
    ),
    _value(
        "foldmq_logins_total",
        "Logins, by authentication backend and outcome; re-authentications (MQTT 5) are included.",
        "logins",
        lambda sources: _logins(sources.admission),
        labels=("method", "result"),
        read=lambda counts: {(method, result): number for method, result, number in counts},
    ),
    _value(
        "foldmq_denied_total",
        "Actions denied by the permissions, by action.",
        "denied",
        lambda sources: dict(sources.node.permissions.refused.counts),
        labels=("what",),
        read=by_reason(*DENIED),
    ),
    _value(
        "foldmq_replays",
        "Replays of connected clients, by state.",
        "replays.states",
        lambda sources: sources.node.replays.states(),
        labels=("state",),
        read=by_reason("reading", "live", "withheld", "ended", "damaged", "waiting"),
    ),
    _value(
        "foldmq_replay_records_read_total",
        "Records of the log read for replays.",
        "replays.records_read",
        lambda sources: sources.node.replays.records_read,
    ),
    _value(
        "foldmq_replay_lag_records",
        "Records that the slowest replay of a connected client has not read yet.",
        "replays.lag_records",
        lambda sources: sources.node.replays.lag,
    ),
    _value(
        "foldmq_overloaded",
        "1 while new connections are refused, by reason.",
        "",
        labels=("reason",),
        read=_overloaded,
    ),
    _value(
        "foldmq_accepting",
        "1 while connections are accepted, 0 while file descriptors are exhausted.",
        "accepting",
        lambda sources: not any(acceptor.paused for acceptor in sources.admission.acceptors),
        read=float,
    ),
    _value(
        "foldmq_accept_pauses_total",
        "Number of times that file descriptors were exhausted.",
        "accept_pauses",
        lambda sources: sum(acceptor.pauses for acceptor in sources.admission.acceptors),
    ),
    _value(
        "foldmq_sessions",
        "Sessions, by state.",
        "sessions",
        lambda sources: {
            "total": len(sources.node.state.sessions),
            "connected": sources.node.directory.attached,
            "logs": log_sessions(sources.node),
        },
        labels=("state",),
        read=_sessions,
    ),
    _value(
        "foldmq_sessions_passive",
        "Offline sessions that are frozen, without an actor.",
        "sessions.frozen",
        lambda sources: len(sources.node.state.sessions) - len(sources.node.state.sessions.live),
    ),
    _value(
        "foldmq_sessions_limit",
        "Maximum number of sessions.",
        "sessions.limit",
        lambda sources: sources.node.options.max_sessions,
    ),
    _value(
        "foldmq_subscriptions",
        "Subscriptions.",
        "subscriptions",
        lambda sources: sources.node.router.subscriptions,
    ),
    _value(
        "foldmq_retained_messages",
        "Retained messages.",
        "retained.count",
        lambda sources: len(sources.node.state.retained),
    ),
    _value(
        "foldmq_retained_bytes",
        "Payload bytes of retained messages.",
        "retained.bytes",
        lambda sources: sources.node.state.retained.size,
    ),
    _value(
        "foldmq_messages_dropped_total",
        "Messages not delivered, by reason.",
        "dropped",
        lambda sources: dict(sources.node.dropped),
        labels=("reason",),
        read=by_reason(*DROPPED),
    ),
    _value(
        "foldmq_inflight_messages",
        "Messages in flight: sent (awaiting PUBACK or PUBREC), releasing (QoS 2, awaiting "
        "PUBCOMP), received (QoS 2, awaiting PUBREL). At most 5 s old.",
        "census",
        labels=("stage",),
        read=_unfinished,
    ),
    _value(
        "foldmq_queued_messages",
        "Messages in the queues of sessions. At most 5 s old.",
        "census.queued",
    ),
    _value(
        "foldmq_queued_bytes",
        "Payload bytes in the queues of sessions. At most 5 s old.",
        "census.queued_bytes",
    ),
    _value(
        "foldmq_memory_bytes",
        "Resident memory by purpose; their sum is the resident memory. Sizes of objects are "
        "estimated.",
        "memory",
        labels=("part",),
        read=by_reason(),
    ),
    _value(
        "foldmq_actors",
        "Actors, by type.",
        "actors.by_type",
        lambda sources: _by_type(sources.node),
        labels=("type",),
        read=by_reason(),
    ),
    _value(
        "foldmq_actor_messages_total",
        "Messages handled by actors.",
        "kernel.handled",
        lambda sources: sources.node.kernel.handled,
    ),
    _value(
        "foldmq_turns_total",
        "Turns of the kernel.",
        "kernel.turns",
        lambda sources: sources.node.kernel.turns,
    ),
    _value(
        "foldmq_turn_cuts_total",
        "Turns that were split: they yielded to the event loop before they continued.",
        "kernel.cuts",
        lambda sources: sources.node.kernel.splits,
    ),
    _value(
        "foldmq_work_parts_total",
        "Parts of long work that ran in separate turns.",
        "kernel.parts",
        lambda sources: sources.node.kernel.parts,
    ),
    _value(
        "foldmq_turn_longest_seconds",
        "Longest time that actors held the event loop in the last one or two minutes.",
        "kernel.longest_turn_s",
        lambda sources: round(sources.node.counters.longest_turn.recent, 6),
    ),
    _value(
        "foldmq_turn_longest_processor_seconds",
        "The same in processor time: much less if the host ran other programs meanwhile.",
        "kernel.longest_turn_processor_s",
        lambda sources: round(sources.node.counters.longest_turn.recent_work, 6),
    ),
    _value(
        "foldmq_mailbox_high_water",
        "Highest number of messages in a mailbox.",
        "kernel.mailbox_high_water",
        lambda sources: sources.node.kernel.high_water,
    ),
)
"""Values of any broker."""

LOG_VALUES = (
    _value(
        "foldmq_erasures_pending",
        "Erasures that are not finished.",
        "erasures.pending",
        lambda sources: int(bool(sources.node.state.keys.pending)),
    ),
    _value(
        "foldmq_personal_keys",
        "Keys of personal topics and names, at most a million.",
        "erasures.keys",
        lambda sources: sources.node.state.keys.count,
    ),
    _value(
        "foldmq_log_writable",
        "1 while the log can be written, 0 after a failed append.",
        "log",
        read=lambda log: float(log["trouble"] is None),
    ),
    _value(
        "foldmq_log_store_damaged",
        "1 if files of the log were removed, replaced or cut short while the broker runs, or a "
        "record of it is damaged.",
        "log",
        read=lambda log: float((log["store_damage"] or log["damage"]) is not None),
    ),
    _value(
        "foldmq_log_last_record",
        "Stream sequence of the last record on disk.",
        "log.durable",
        lambda sources: sources.node.journal.durable,
    ),
    _value(
        "foldmq_log_first_record",
        "Stream sequence of the first record of the log.",
        "log.first",
        lambda sources: sources.node.log.first,
    ),
    _value(
        "foldmq_log_archived_record",
        "Stream sequence of the last archived record; 0 without an archive.",
        "log.archived",
        _through,
    ),
    _value(
        "foldmq_log_unproven_parts",
        "Parts of the log about which nothing can be said: see foldmq status.",
        "log.unproven_parts",
        lambda sources: len(sources.node.state.proof.doubts),
    ),
    _value(
        "foldmq_log_missing_records",
        "Records that are known to be missing in these parts.",
        "log.missing",
        lambda sources: sum(doubt.missing for doubt in sources.node.state.proof.doubts),
    ),
    _value(
        "foldmq_log_unprojected_records",
        "Records that the next start would replay.",
        "log",
        read=_unprojected,
    ),
    _value(
        "foldmq_log_stream_bytes",
        "Size of the log in JetStream in bytes. Updated periodically.",
        "log.stream_bytes",
        lambda sources: sources.storage.stream_bytes,
    ),
    _value(
        "foldmq_log_limit_bytes",
        "Maximum size of the log in bytes (keep_bytes, or its default); 0: unlimited.",
        "log.limit",
        lambda sources: sources.node.options.keep_bytes,
    ),
    _value(
        "foldmq_log_disk_free_bytes",
        "Free disk space of the embedded NATS server in bytes. Updated periodically.",
        "log.disk_free",
        lambda sources: sources.storage.disk_free,
    ),
    _value(
        "foldmq_log_pending_records",
        "Records not acknowledged by JetStream yet.",
        "log.pending_records",
        lambda sources: len(sources.node.journal.pending),
    ),
    _value(
        "foldmq_log_pending_bytes",
        "Bytes of events not on disk yet.",
        "log.pending_bytes",
        lambda sources: sources.node.journal.pending_bytes,
    ),
    _value(
        "foldmq_gate_bytes",
        "Bytes to clients held back until their events are on disk.",
        "log.gated_bytes",
        lambda sources: sources.node.journal.gated,
    ),
)
"""Values of a broker that has recovered."""

BRIDGE_VALUES = (
    _value(
        "foldmq_bridge_filters",
        "Distinct topic filters subscribed to in NATS.",
        "bridge.filters",
        lambda sources: len(sources.bridge.interest) if sources.bridge is not None else 0,
    ),
    _value(
        "foldmq_bridge_subscriptions",
        "Subscriptions in NATS for these topic filters.",
        "bridge.subscriptions",
        lambda sources: sources.bridge.interest.subjects if sources.bridge is not None else 0,
    ),
)
"""Values of a broker with a bridge to NATS."""

METRICS = (
    *(value.metric for value in BROKER_VALUES),
    *metrics_of(Counters),
    *metrics_of(TlsStats),
    *(value.metric for value in LOG_VALUES),
    *metrics_of(JournalStats),
    *(value.metric for value in BRIDGE_VALUES),
    *metrics_of(BridgeStats),
    *DESTINATION_METRICS,
)


def log_sessions(node: NodeContext) -> int:
    """Return the number of sessions that represent the other logs of the node or cluster."""
    return node.exchange.sessions if node.exchange is not None else 0
