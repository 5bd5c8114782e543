"""What the broker tells Prometheus: names, meanings, and where in its status each number stands.

The documentation is made from ``METRICS`` (``tools/metrics_table.py``). No label holds what a
client chose.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

Status = Mapping[str, Any]
Labels = tuple[str, ...]
Numbers = dict[Labels, float]
"""By the values of the labels."""

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
"""Limits that are shown before anything met them."""
DENIED = ("bridge", "publish", "subscribe", "will")
"""What may be denied."""
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
"""Why TLS handshakes come to nothing (``actors.transports.handshakes.HandshakeError``)."""
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
"""Reasons that are shown before anything was dropped for them."""


class Meter(NamedTuple):
    """One metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    read: Callable[[Status], Any]
    """Gives a number, :data:`Numbers` or a histogram of the status; None where it is unknown."""
    labels: Labels = ()


def _at(*path: str) -> Callable[[Status], Any]:
    """Return what finds a value in the status; None where a part of the path is not there."""

    def find(status: Status) -> Any:
        found: Any = status
        for step in path:
            if found is None:
                return None
            found = found.get(step)
        return found

    return find


def _of(part: str, read: Callable[[Any], Any]) -> Callable[[Status], Any]:
    """Return what reads a part of the status; None when it is not there."""

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
    """Return what gives numbers by reason; those of ``shown`` also while they are 0."""

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
        "Always 1; the labels say what runs.",
        _build,
        ("version", "python", "node"),
    ),
    Meter(
        "foldmq_ready",
        "gauge",
        "1 while clients are served and the log can be written, as /readyz says.",
        lambda status: float(status["ready"]),
    ),
    Meter("foldmq_connections", "gauge", "Connections that are open.", _at("connections", "open")),
    Meter(
        "foldmq_connections_limit",
        "gauge",
        "Connections that may be open at a time.",
        _at("connections", "limit"),
    ),
    Meter(
        "foldmq_connections_paused",
        "gauge",
        "Connections that are not read because the log does not keep up.",
        _at("connections", "paused"),
    ),
    Meter(
        "foldmq_connections_accepted_total",
        "counter",
        "Connections that were accepted.",
        _at("connections", "accepted"),
    ),
    Meter(
        "foldmq_connections_refused_total",
        "counter",
        "Connections and subscriptions that were refused or ended, by the limit that they met.",
        _of("refused", _by_reason(*REFUSED)),
        ("limit",),
    ),
    Meter(
        "foldmq_listener_connections",
        "gauge",
        "Open connections, by the listener that they came to.",
        _of("listeners", _by_reason()),
        ("listener",),
    ),
    Meter(
        "foldmq_connections_unauthenticated",
        "gauge",
        "Open connections whose CONNECT was not accepted yet.",
        _at("connections", "unauthenticated"),
    ),
    Meter(
        "foldmq_unauthenticated_bytes",
        "gauge",
        "Memory that those take, about.",
        _at("connections", "unauthenticated_bytes"),
    ),
    Meter(
        "foldmq_logins_total",
        "counter",
        "CONNECT packets that were decided on, by what decided and how.",
        _of("logins", _logins),
        ("method", "result"),
    ),
    Meter(
        "foldmq_denied_total",
        "counter",
        "What the permissions did not allow, by what was asked for.",
        _of("denied", _by_reason(*DENIED)),
        ("what",),
    ),
    Meter(
        "foldmq_overloaded",
        "gauge",
        "1 while new connections are turned away, for the reason given.",
        lambda status: {
            (reason,): float(status.get("overload") == reason)
            for reason in ("commit_latency", "loop_lag")
        },
        ("reason",),
    ),
    Meter(
        "foldmq_accepting",
        "gauge",
        "1 while connections are accepted, 0 while there are no file descriptors for them.",
        _of("accepting", float),
    ),
    Meter(
        "foldmq_accept_pauses_total",
        "counter",
        "How often there were no file descriptors for new connections.",
        _at("accept_pauses"),
    ),
    Meter(
        "foldmq_tls_handshakes_total",
        "counter",
        "TLS handshakes that were finished.",
        _of("tls", lambda tls: tls["handshakes"]),
    ),
    Meter(
        "foldmq_tls_resumed_total",
        "counter",
        "Those of them that went on with an earlier session of the client.",
        _of("tls", lambda tls: tls["resumed"]),
    ),
    Meter(
        "foldmq_tls_failed_total",
        "counter",
        "TLS handshakes that came to nothing, by reason.",
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
        "Sessions that are offline and frozen, without an actor.",
        _at("sessions", "passive"),
    ),
    Meter(
        "foldmq_sessions_limit", "gauge", "Sessions that there may be.", _at("sessions", "limit")
    ),
    Meter(
        "foldmq_sessions_expired_total",
        "counter",
        "Sessions that expired.",
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
        "PUBLISH packets to clients, those that are sent again included.",
        _by_qos("out"),
        ("qos",),
    ),
    Meter(
        "foldmq_messages_dropped_total",
        "counter",
        "Messages that were not delivered, by reason.",
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
        "Messages on their way: sent and not acknowledged, releasing (QoS 2, PUBREL sent), "
        "received (QoS 2, not released yet by the client). At most 5 s old.",
        _of("census", _unfinished),
        ("stage",),
    ),
    Meter(
        "foldmq_queued_messages",
        "gauge",
        "Messages that wait in the queues of sessions. At most 5 s old.",
        _at("census", "queued"),
    ),
    Meter(
        "foldmq_queued_bytes",
        "gauge",
        "Payload bytes that wait in the queues of sessions. At most 5 s old.",
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
        "Records that are on disk since the start.",
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
        "1 while the log can be written; 0 from the moment at which an append fails.",
        _of("log", _writable),
    ),
    Meter(
        "foldmq_log_last_record",
        "gauge",
        "Stream sequence of the last record that is on disk.",
        _at("log", "durable"),
    ),
    Meter(
        "foldmq_log_first_record",
        "gauge",
        "Stream sequence with which the log begins.",
        _at("log", "first"),
    ),
    Meter(
        "foldmq_log_archived_record",
        "gauge",
        "Stream sequence of the last record that an archive has, 0 if none is known to have any.",
        _at("log", "archived"),
    ),
    Meter(
        "foldmq_log_unprojected_records",
        "gauge",
        "Records that the next start would have to replay.",
        _of("log", _unprojected),
    ),
    Meter(
        "foldmq_log_stream_bytes",
        "gauge",
        "Bytes that the log takes in JetStream. Looked up now and then.",
        _at("log", "stream_bytes"),
    ),
    Meter(
        "foldmq_log_disk_free_bytes",
        "gauge",
        "Bytes that are free where the embedded NATS server stores. Looked up now and then.",
        _at("log", "disk_free"),
    ),
    Meter(
        "foldmq_log_pending_records",
        "gauge",
        "Records that JetStream has not acknowledged.",
        _at("log", "pending_records"),
    ),
    Meter(
        "foldmq_log_pending_bytes",
        "gauge",
        "Bytes of events that are not on disk.",
        _at("log", "pending_bytes"),
    ),
    Meter(
        "foldmq_gate_bytes",
        "gauge",
        "Bytes that leave for clients when the events that they depend on are on disk.",
        _at("log", "gated_bytes"),
    ),
    Meter(
        "foldmq_bridge_connected",
        "gauge",
        "1 while the bridge is connected to NATS. This one and the next ones are there while there "
        "is a bridge.",
        _of("bridge", lambda bridge: int(bridge["connected"])),
    ),
    Meter(
        "foldmq_bridge_filters",
        "gauge",
        "Distinct topic filters whose messages are taken from NATS.",
        _at("bridge", "filters"),
    ),
    Meter(
        "foldmq_bridge_subscriptions",
        "gauge",
        "Subscriptions in NATS for them.",
        _at("bridge", "subscriptions"),
    ),
    Meter(
        "foldmq_bridge_sent_messages_total",
        "counter",
        "Messages that NATS clients were sent.",
        _at("bridge", "sent"),
    ),
    Meter(
        "foldmq_bridge_offered_messages_total",
        "counter",
        "Messages that NATS clients could have had, whether any wanted them or not.",
        _at("bridge", "offered"),
    ),
    Meter(
        "foldmq_bridge_received_messages_total",
        "counter",
        "Messages from NATS for which there is a topic.",
        _at("bridge", "received"),
    ),
    Meter(
        "foldmq_loop_lag_seconds",
        "histogram",
        "Time by which the event loop came late to a timer.",
        _at("lag"),
    ),
    Meter("foldmq_actors", "gauge", "Actors, by type.", _of("actors", _actors), ("type",)),
    Meter(
        "foldmq_actor_messages_total",
        "counter",
        "Messages that actors handled.",
        _at("kernel", "handled"),
    ),
    Meter("foldmq_turns_total", "counter", "Turns of the kernel.", _at("kernel", "turns")),
    Meter(
        "foldmq_turn_cuts_total",
        "counter",
        "How often a turn was cut, so that others came in between.",
        _at("kernel", "cuts"),
    ),
    Meter(
        "foldmq_work_parts_total",
        "counter",
        "Parts of longer work of one client that had a turn of their own.",
        _at("kernel", "parts"),
    ),
    Meter(
        "foldmq_turn_longest_seconds",
        "gauge",
        "Longest time of the last minute or two for which actors kept the event loop.",
        _at("kernel", "longest_turn_s"),
    ),
    Meter(
        "foldmq_mailbox_high_water",
        "gauge",
        "The most messages that any mailbox ever held.",
        _at("kernel", "mailbox_high_water"),
    ),
)
