"""The reasons in events and counters for drops, and for the ends of connections and sessions.

Commands and the web page show the sentences, and words in the columns of lists; events and JSON
output have the codes. Names of settings are in backticks, which the functions remove.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from eventstore.display import escaped

DROP_REASONS: Final[Mapping[str, str]] = {
    "queue_messages": "the queue had as many messages as `max_queued_messages` allows",
    "queue_bytes": "the queue had as many bytes as `max_queued_bytes` allows",
    "slow_reader": "the client had as many bytes of unread output as `max_outbound_bytes` allows",
    "unsubscribed": "the client unsubscribed while the message waited",
    "reserved_topic": "the topic is reserved for the broker",
    "not_permitted": "the permissions do not let the client publish or read this topic "
    "(`permissions`)",
    "topic_levels": "the topic has more levels than `max_topic_levels` allows",
    "personal_keys": "the topic is personal, and there is no room for further keys "
    "(`personal_keep`)",
    "packet_too_large": "larger than the Maximum Packet Size of the client",
    "payload_format": "the payload is not UTF-8 although its Payload Format Indicator says so "
    "(`check_payload_format`)",
    "lost": "it was in a record of the log that was damaged and given up (`foldmq salvage`)",
    "erased": "its content was erased (`foldmq erase`)",
    "other_prefix": "it came from NATS for other users (`bridge_user_map`)",
}
"""Values of MessageDropped.reason."""

_COUNTED_REASONS: Final[Mapping[str, str]] = {
    "expired": "expired before it was sent (Message Expiry Interval)",
    "message_too_large": "too large for a record of the log",
    "bridge_unavailable": "the NATS server of the bridge is not available",
    "bridge_slow": "the NATS server of the bridge does not keep up",
    "bridge_too_large": "too large for the other side of the bridge",
    "bridge_not_permitted": "the permissions do not let NATS clients publish to this topic "
    "(`permissions`)",
    "bridge_reply": "an answer to a request from NATS that no longer waits for it",
    "bridge_unknown_user": "it is not known which user published it (`bridge_user_map`)",
    "bridge_loop": "it came back from another broker, having passed this one before",
    "bridge_cut": "cut off from the log before NATS had it",
    "exchange_unavailable": "QoS 0 for another log or broker, which was not available",
    "exchange_replaced": "QoS 0 from a replaced leader of another log",
    "exchange_slow": "QoS 0 from another log, faster than this broker routes messages",
    "exchange_too_large": "QoS 0 for another log, too large to pass on",
}
"""Reasons for which drops are counted and not recorded."""

_WITH_VALUE: Final[Mapping[str, tuple[str, str]]] = {
    "queue_messages": (
        "max_queued_messages",
        "the queue was full: {} messages waited, as many as {} allows",
    ),
    "queue_bytes": (
        "max_queued_bytes",
        "the queue was full: with this message it would have exceeded the {} bytes that {} allows",
    ),
    "slow_reader": (
        "max_outbound_bytes",
        "the client did not read: {} bytes of output waited, as many as {} allows",
    ),
}
"""Reason of a drop -> its setting, and the sentence with the value of the setting."""
_OF_PUBLISHER: Final[Mapping[str, str]] = {
    "not_permitted": "the permissions do not let the client publish to this topic (`permissions`)",
}
_OF_RECEIVER: Final[Mapping[str, str]] = {
    "not_permitted": "the permissions do not let the client read this topic (`permissions`)",
}
_OF_SHARED: Final[Mapping[str, str]] = {
    "slow_reader": "no connected member reads fast enough (`max_outbound_bytes`)",
    "not_permitted": "the permissions let no connected member read this topic (`permissions`)",
    "packet_too_large": "larger than the Maximum Packet Size of each connected member",
}


class CloseReason(NamedTuple):
    """How the reason for the end of a connection is shown."""

    words: str
    """In a column of a list."""
    sentence: str


CLOSE_REASONS: Final[Mapping[str, CloseReason]] = {
    "disconnect": CloseReason("disconnect", "the client sent DISCONNECT"),
    "closed": CloseReason("closed", "the client closed the connection without a DISCONNECT"),
    "error": CloseReason("network error", "the network connection failed"),
    "keep_alive": CloseReason(
        "keep alive", "the client sent no packet for one and a half times its keep alive"
    ),
    "protocol_error": CloseReason("protocol error", "the client violated the protocol"),
    "message_too_large": CloseReason(
        "large message", "the client published a message that fits into no record of the log"
    ),
    "packet_too_large": CloseReason(
        "large packet", "a required answer exceeded the client's Maximum Packet Size (MQTT 5)"
    ),
    "qos2_rejected": CloseReason(
        "QoS 2 refused", "the client published at QoS 2 and `reject_qos2_publish` is set"
    ),
    "not_permitted": CloseReason(
        "not permitted", "the permissions denied a publication and `denied_publish` is `close`"
    ),
    "login_expired": CloseReason("login expired", "the client's credentials expired"),
    "login_revoked": CloseReason(
        "login revoked", "the user was removed from the password file, or the password changed"
    ),
    "reauthentication_failed": CloseReason(
        "failed AUTH", "the client failed to authenticate again (AUTH, MQTT 5)"
    ),
    "receive_maximum": CloseReason(
        "receive maximum",
        "the client had more messages unacknowledged than `receive_maximum` allows",
    ),
    "publish_rate": CloseReason(
        "publish rate",
        "the client exceeded its publish rate continuously for `throttle_timeout`",
    ),
    "slow_reader": CloseReason(
        "slow reader", "the client read none of its pending output for `slow_reader_time`"
    ),
    "unread_bytes": CloseReason(
        "unread bytes", "slow clients had too much unread output in total (`max_unread_bytes`)"
    ),
    "kicked": CloseReason("kicked", "an operator disconnected the client"),
    "taken_over": CloseReason("taken over", "another connection used the same client identifier"),
    "log_unavailable": CloseReason(
        "log unavailable",
        "the log could not be written for `commit_timeout`, or the node did not know whether it "
        "leads its cluster",
    ),
    "failed": CloseReason("internal error", "the actor of the connection failed"),
    "session_failed": CloseReason("session failed", "the actor of the session failed"),
    "session_lost": CloseReason(
        "session lost", "the session belongs to another connection or has ended"
    ),
    "broker_stopped": CloseReason("broker stopped", "the broker was stopped"),
    "shared": CloseReason("shared", "it is a shared subscription, which never has a connection"),
    "broker_restarted": CloseReason(
        "broker ended",
        "the broker did not end the connection: it crashed or was killed, or the log is a copy",
    ),
}
"""Values of SessionClosed.reason."""

BROKER_ENDS: Final = frozenset({"broker_restarted", "broker_stopped", "log_unavailable"})
"""Those caused by the broker, not the client."""

EXPIRY_REASONS: Final[Mapping[str, str]] = {
    "expired": "it expired",
    "removed": "an operator removed it",
    "no_members": "its last member left",
}
"""Values of SessionExpired.reason."""

CUT_REASONS: Final[Mapping[str, str]] = {
    "keep": "its records were older than `keep`",
    "keep_bytes": "it was larger than `keep_bytes`",
    "archived": "an archive has its records",
    "salvage": "foldmq salvage left out records that it could not read",
    "imported": "there were none: the log begins with the state of another broker",
}
"""Values of LogCut.reason."""

LEADER_CAUSES: Final[Mapping[str, str]] = {
    "first": "the log had no leader before",
    "stopped": "the leader before it was stopped",
    "dead": "the process of the leader before it had ended",
    "silent": "the leader before it did not answer",
}
"""Values of BrokerStarted.cause."""

RESEND_REASONS: Final[Mapping[str, str]] = {
    "resumed": "the client connected again",
    "ack_wait": "it was not acknowledged for `ack_wait`",
}
"""Values of Redelivered.cause."""

PAUSE_REASONS: Final[Mapping[str, str]] = {
    "connect": "its CONNECT is not answered yet",
    "log": "the disk does not keep up",
    "slow_reader": "it publishes to a client that does not read fast enough",
    "loading": "messages of its session are read from the log first",
    "drain": "the broker is shutting down",
    "nats": "it publishes faster than the bridge sends to NATS",
    "rate": "it exceeds its publish rate (`publish_rate`)",
    "turn": "other clients have priority",
    "work": "its earlier packets are still being handled",
    "backlog": "it publishes faster than its receivers read",
}
"""Why a connection is not read."""


def drop_text(reason: str, *, received: bool | None = None, shared: bool = False) -> str:
    """Return why messages were dropped, as a sentence; an unknown reason is returned unchanged.

    ``received`` says whether the client was the receiver; None: it is not known whether it received
    or published them. ``shared`` says that the receiver is a shared subscription.
    """
    apart = _OF_SHARED if shared else {}
    if not shared and received is not None:
        apart = _OF_RECEIVER if received else _OF_PUBLISHER
    return _plain(reason, apart, DROP_REASONS, _COUNTED_REASONS)


def drop_text_with_limit(
    reason: str, limits: Mapping[str, Any] | None, *, shared: bool = False
) -> str:
    """Return why a message was not delivered, with the value of the limit, if there is one.

    ``limits`` are the limits that applied, by the names of their settings; None: not recorded.
    """
    text = drop_text(reason, received=True, shared=shared)
    if reason not in _WITH_VALUE:
        return text
    setting, sentence = _WITH_VALUE[reason]
    value = (limits or {}).get(setting)
    if isinstance(value, int):
        return sentence.format(f"{value:,}", setting)
    return f"{text}; its value is not recorded"


def close_text(reason: str) -> str:
    """Return why a connection ended, as a sentence; an unknown reason is returned unchanged."""
    close_reason = CLOSE_REASONS.get(reason)
    return close_reason.sentence.replace("`", "") if close_reason is not None else escaped(reason)


def close_words(reason: str) -> str:
    """Return why a connection ended, in a word or two; an unknown reason is returned unchanged."""
    close_reason = CLOSE_REASONS.get(reason)
    return close_reason.words if close_reason is not None else escaped(reason)


def expiry_text(reason: str) -> str:
    """Return why a session ended that had outlived its connection."""
    return _plain(reason, EXPIRY_REASONS)


def cut_text(reason: str) -> str:
    """Return why the log was cut, as a sentence; an unknown reason is returned unchanged."""
    return _plain(reason, CUT_REASONS)


def resend_text(cause: str) -> str:
    """Return why packets were sent again, as a sentence; an unknown cause is returned unchanged."""
    return _plain(cause, RESEND_REASONS)


def pause_text(reason: str) -> str:
    """Return why a connection is not read, as a sentence; an unknown reason is unchanged."""
    return _plain(reason, PAUSE_REASONS)


def leader_text(cause: str) -> str:
    """Return why another node became the leader, as a sentence; an unknown cause is unchanged."""
    return _plain(cause, LEADER_CAUSES)


def _plain(reason: str, *tables: Mapping[str, str]) -> str:
    for table in tables:
        if reason in table:
            return table[reason].replace("`", "")
    return escaped(reason)


def dropped_by(reasons: Mapping[str, int]) -> Iterator[str]:
    """Yield a line for each reason for which messages were dropped, the most frequent first."""
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
        if count:
            yield f"{count:,}: {drop_text(reason)}"
