"""The Prometheus metrics: names, meanings, and the place of each number in the status.

The documentation is generated from ``METRICS`` (``tools/metrics_table.py``). No label contains
names chosen by clients.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

Status = Mapping[str, Any]
Labels = tuple[str, ...]
Numbers = dict[Labels, float]
"""Numbers by label values."""

REFUSED = (
    "connect_timeout",
    "connections",
    "flapping",
    "framing",
    "logins",
    "message_too_large",
    "overload",
    "protocol_error",
    "publish_rate",
    "sessions",
    "slow_reader",
    "tls_handshake",
    "unauthenticated",
)
"""Limits exported before they are first reached."""
DENIED = ("bridge", "publish", "subscribe", "will")
"""Actions that can be denied."""
TLS_FAILED = (
    "busy",
    "certificate",
    "cipher",
    "client_refused",
    "closed",
    "no_certificate",
    "other",
    "plaintext",
    "timeout",
    "version",
)
"""Why TLS handshakes fail (``actors.transports.handshakes.HandshakeError``)."""
DROPPED = (
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


class Meter(NamedTuple):
    """One metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    read: Callable[[Status], Any]
    """Returns a number, :data:`Numbers` or a histogram of the status; None if unknown."""
    labels: Labels = ()


def _at(*path: str) -> Callable[[Status], Any]:
    """Return a function that gets a value of the status, or None if the path does not exist."""

    def find(status: Status) -> Any:
        found: Any = status
        for step in path:
            if found is None:
                return None
            found = found.get(step)
        return found

    return find


def _of(part: str, read: Callable[[Any], Any]) -> Callable[[Status], Any]:
    """Return a function that reads a part of the status; None if it does not exist."""

    def find(status: Status) -> Any:
        found = status.get(part)
        return None if found is None else read(found)

    return find


def _by_qos(direction: str) -> Callable[[Status], Any]:
    return _of(
        "messages",
        lambda found: {(str(qos),): count for qos, count in enumerate(found[direction])},
    )


def _by_reason(*shown: str) -> Callable[[Status], Numbers]:
    """Return a function that returns numbers by reason, those of ``shown`` even if 0."""

    def count(counts: Status) -> Numbers:
        return {(why,): number for why, number in {**dict.fromkeys(shown, 0), **counts}.items()}

    return count


def _logins(counts: list[tuple[str, str, int]]) -> Numbers:
    return {(method, result): number for method, result, number in counts}


def _sessions(sessions: Status) -> Numbers:
    connected = sessions["connected"]
    return {("connected",): connected, ("offline",): sessions["total"] - connected}


def _unfinished(census: Status) -> Numbers:
    return {
        ("sent",): census["inflight"],
        ("releasing",): census["releasing"],
        ("received",): census["inbound"],
    }


def _writable(log: Status) -> float:
    return float(log["trouble"] is None)


def _unprojected(log: Status) -> int | None:
    if log["projected"] is None:
        return None
    return max(0, int(log["durable"]) - int(log["projected"]))


def _build(status: Status) -> Numbers | None:
    if "node" not in status:
        return None
    return {(status["software"], platform.python_version(), status["node"]): 1}


def _actors(actors: Status) -> Numbers:
    return {(kind,): count for kind, count in actors["by_type"].items()}


METRICS = (
    Meter(
        "foldmq_build_info",
        "gauge",
        "Always 1; the labels hold the versions.",
        _build,
        ("version", "python", "node"),
    ),
    Meter(
        "foldmq_ready",
        "gauge",
        "1 if clients are served and the log can be written, as in /readyz.",
        lambda status: float(status["ready"]),
    ),
    Meter("foldmq_connections", "gauge", "Open connections.", _at("connections", "open")),
    Meter(
        "foldmq_connections_limit",
        "gauge",
        "Maximum number of open connections.",
        _at("connections", "limit"),
    ),
    Meter(
        "foldmq_connections_paused",
        "gauge",
        "Connections paused because the log does not keep up.",
        _at("connections", "paused"),
    ),
    Meter(
        "foldmq_connections_accepted_total",
        "counter",
        "Accepted connections.",
        _at("connections", "accepted"),
    ),
    Meter(
        "foldmq_connections_refused_total",
        "counter",
        "Connections and subscriptions refused or ended, by the limit reached.",
        _of("refused", _by_reason(*REFUSED)),
        ("limit",),
    ),
    Meter(
        "foldmq_listener_connections",
        "gauge",
        "Open connections, by listener.",
        _of("listeners", _by_reason()),
        ("listener",),
    ),
    Meter(
        "foldmq_connections_unauthenticated",
        "gauge",
        "Open connections whose CONNECT is not accepted yet.",
        _at("connections", "unauthenticated"),
    ),
    Meter(
        "foldmq_unauthenticated_bytes",
        "gauge",
        "Approximate memory held by unauthenticated connections.",
        _at("connections", "unauthenticated_bytes"),
    ),
    Meter(
        "foldmq_logins_total",
        "counter",
        "Authenticated CONNECT packets, by authentication backend and outcome.",
        _of("logins", _logins),
        ("method", "result"),
    ),
    Meter(
        "foldmq_denied_total",
        "counter",
        "Actions denied by the permissions, by action.",
        _of("denied", _by_reason(*DENIED)),
        ("what",),
    ),
    Meter(
        "foldmq_overloaded",
        "gauge",
        "1 while new connections are refused, by reason.",
        lambda status: {
            (reason,): float(status.get("overload") == reason)
            for reason in ("commit_latency", "loop_lag")
        },
        ("reason",),
    ),
    Meter(
        "foldmq_accepting",
        "gauge",
        "1 while connections are accepted, 0 while file descriptors are exhausted.",
        _of("accepting", float),
    ),
    Meter(
        "foldmq_accept_pauses_total",
        "counter",
        "Number of times that file descriptors were exhausted.",
        _at("accept_pauses"),
    ),
    Meter(
        "foldmq_tls_handshakes_total",
        "counter",
        "Completed TLS handshakes.",
        _of("tls", lambda tls: tls["handshakes"]),
    ),
    Meter(
        "foldmq_tls_resumed_total",
        "counter",
        "Resumed TLS sessions.",
        _of("tls", lambda tls: tls["resumed"]),
    ),
    Meter(
        "foldmq_tls_failed_total",
        "counter",
        "Failed TLS handshakes, by reason.",
        _of("tls", lambda tls: _by_reason(*TLS_FAILED)(tls["failed"])),
        ("reason",),
    ),
    Meter(
        "foldmq_tls_handshake_seconds_total",
        "counter",
        "Processor time of all TLS handshakes.",
        _of("tls", lambda tls: tls["cpu_s"]),
    ),
    Meter(
        "foldmq_sessions", "gauge", "Sessions, by state.", _of("sessions", _sessions), ("state",)
    ),
    Meter(
        "foldmq_sessions_passive",
        "gauge",
        "Offline sessions that are frozen, without an actor.",
        _at("sessions", "passive"),
    ),
    Meter(
        "foldmq_sessions_limit", "gauge", "Maximum number of sessions.", _at("sessions", "limit")
    ),
    Meter(
        "foldmq_sessions_expired_total",
        "counter",
        "Expired sessions.",
        _at("sessions", "expired"),
    ),
    Meter("foldmq_subscriptions", "gauge", "Subscriptions.", _at("subscriptions")),
    Meter("foldmq_retained_messages", "gauge", "Retained messages.", _at("retained", "count")),
    Meter(
        "foldmq_retained_bytes",
        "gauge",
        "Payload bytes of retained messages.",
        _at("retained", "bytes"),
    ),
    Meter(
        "foldmq_messages_received_total",
        "counter",
        "PUBLISH packets from clients.",
        _by_qos("in"),
        ("qos",),
    ),
    Meter(
        "foldmq_messages_sent_total",
        "counter",
        "PUBLISH packets to clients, including redeliveries.",
        _by_qos("out"),
        ("qos",),
    ),
    Meter(
        "foldmq_messages_dropped_total",
        "counter",
        "Messages not delivered, by reason.",
        _of("dropped", _by_reason(*DROPPED)),
        ("reason",),
    ),
    Meter(
        "foldmq_publish_received_bytes_total",
        "counter",
        "Bytes of PUBLISH packets from clients.",
        _at("publish_bytes", "in"),
    ),
    Meter(
        "foldmq_publish_sent_bytes_total",
        "counter",
        "Bytes of PUBLISH packets to clients.",
        _at("publish_bytes", "out"),
    ),
    Meter(
        "foldmq_packets_received_total",
        "counter",
        "Packets of all types from clients.",
        _at("packets", "in"),
    ),
    Meter(
        "foldmq_packets_sent_total",
        "counter",
        "Packets of all types to clients.",
        _at("packets", "out"),
    ),
    Meter("foldmq_received_bytes_total", "counter", "Bytes from clients.", _at("bytes", "in")),
    Meter("foldmq_sent_bytes_total", "counter", "Bytes to clients.", _at("bytes", "out")),
    Meter(
        "foldmq_inflight_messages",
        "gauge",
        "Messages in flight: sent and not acknowledged, releasing (QoS 2, PUBREL sent), "
        "received (QoS 2, not released by the client yet). At most 5 s old.",
        _of("census", _unfinished),
        ("stage",),
    ),
    Meter(
        "foldmq_queued_messages",
        "gauge",
        "Messages in the queues of sessions. At most 5 s old.",
        _at("census", "queued"),
    ),
    Meter(
        "foldmq_queued_bytes",
        "gauge",
        "Payload bytes in the queues of sessions. At most 5 s old.",
        _at("census", "queued_bytes"),
    ),
    Meter(
        "foldmq_commit_seconds",
        "histogram",
        "Time from the first event of a record until the record is on disk.",
        _at("commit"),
    ),
    Meter("foldmq_record_events", "histogram", "Events in a record.", _at("record_events")),
    Meter(
        "foldmq_log_records_total",
        "counter",
        "Records written to disk since the start.",
        _at("log", "records"),
    ),
    Meter("foldmq_log_events_total", "counter", "Events in those records.", _at("log", "events")),
    Meter(
        "foldmq_log_entries_total",
        "counter",
        "Positions in those records: each message of an event counts.",
        _at("log", "entries"),
    ),
    Meter(
        "foldmq_log_written_bytes_total",
        "counter",
        "Bytes of those records.",
        _at("log", "bytes"),
    ),
    Meter(
        "foldmq_log_writable",
        "gauge",
        "1 while the log can be written, 0 after a failed append.",
        _of("log", _writable),
    ),
    Meter(
        "foldmq_log_last_record",
        "gauge",
        "Stream sequence of the last record on disk.",
        _at("log", "durable"),
    ),
    Meter(
        "foldmq_log_first_record",
        "gauge",
        "Stream sequence of the first record of the log.",
        _at("log", "first"),
    ),
    Meter(
        "foldmq_log_archived_record",
        "gauge",
        "Stream sequence of the last archived record; 0 without an archive.",
        _at("log", "archived"),
    ),
    Meter(
        "foldmq_log_unprojected_records",
        "gauge",
        "Records that the next start would replay.",
        _of("log", _unprojected),
    ),
    Meter(
        "foldmq_log_stream_bytes",
        "gauge",
        "Size of the log in JetStream in bytes. Updated periodically.",
        _at("log", "stream_bytes"),
    ),
    Meter(
        "foldmq_log_disk_free_bytes",
        "gauge",
        "Free disk space of the embedded NATS server in bytes. Updated periodically.",
        _at("log", "disk_free"),
    ),
    Meter(
        "foldmq_log_pending_records",
        "gauge",
        "Records not acknowledged by JetStream yet.",
        _at("log", "pending_records"),
    ),
    Meter(
        "foldmq_log_pending_bytes",
        "gauge",
        "Bytes of events not on disk yet.",
        _at("log", "pending_bytes"),
    ),
    Meter(
        "foldmq_gate_bytes",
        "gauge",
        "Bytes to clients held back until their events are on disk.",
        _at("log", "gated_bytes"),
    ),
    Meter(
        "foldmq_bridge_connected",
        "gauge",
        "1 while the bridge is connected to NATS. The metrics of the bridge exist only while it "
        "is enabled.",
        _of("bridge", lambda bridge: int(bridge["connected"])),
    ),
    Meter(
        "foldmq_bridge_filters",
        "gauge",
        "Distinct topic filters subscribed to in NATS.",
        _at("bridge", "filters"),
    ),
    Meter(
        "foldmq_bridge_subscriptions",
        "gauge",
        "Subscriptions in NATS for these topic filters.",
        _at("bridge", "subscriptions"),
    ),
    Meter(
        "foldmq_bridge_sent_messages_total",
        "counter",
        "Messages sent to NATS.",
        _at("bridge", "sent"),
    ),
    Meter(
        "foldmq_bridge_offered_messages_total",
        "counter",
        "Messages that could be sent to NATS, with or without a subscriber there.",
        _at("bridge", "offered"),
    ),
    Meter(
        "foldmq_bridge_received_messages_total",
        "counter",
        "Messages from NATS with a valid topic.",
        _at("bridge", "received"),
    ),
    Meter(
        "foldmq_loop_lag_seconds",
        "histogram",
        "Delay of timers on the event loop.",
        _at("lag"),
    ),
    Meter("foldmq_actors", "gauge", "Actors, by type.", _of("actors", _actors), ("type",)),
    Meter(
        "foldmq_actor_messages_total",
        "counter",
        "Messages handled by actors.",
        _at("kernel", "handled"),
    ),
    Meter("foldmq_turns_total", "counter", "Turns of the kernel.", _at("kernel", "turns")),
    Meter(
        "foldmq_turn_cuts_total",
        "counter",
        "Turns interrupted so that other actors could run.",
        _at("kernel", "cuts"),
    ),
    Meter(
        "foldmq_work_parts_total",
        "counter",
        "Slices of long work of one client that ran in a turn of their own.",
        _at("kernel", "parts"),
    ),
    Meter(
        "foldmq_turn_longest_seconds",
        "gauge",
        "Longest time that actors held the event loop in the last one or two minutes.",
        _at("kernel", "longest_turn_s"),
    ),
    Meter(
        "foldmq_mailbox_high_water",
        "gauge",
        "Highest number of messages in a mailbox.",
        _at("kernel", "mailbox_high_water"),
    ),
)
