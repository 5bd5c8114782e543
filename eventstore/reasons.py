"""The reasons in events for drops, and for the ends of connections and sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

DROP_REASONS: Final[Mapping[str, str]] = {
    "queue_messages": "the session's queue has reached `max_queued_messages`",
    "queue_bytes": "the session's queue has reached `max_queued_bytes`",
    "slow_reader": "QoS 0 messages to a client with `max_outbound_bytes` of unread output",
    "unsubscribed": "the messages were still queued when the client unsubscribed",
    "reserved_topic": "a client published to a topic reserved for the broker",
    "not_permitted": "the permissions do not allow the client to publish or to receive it",
    "topic_levels": "the topic has more than `max_topic_levels` levels",
    "packet_too_large": "the packet is larger than the client accepts (MQTT 5)",
    "payload_format": "the payload is not UTF-8 as its Payload Format Indicator says, and "
    "`check_payload_format` is set",
    "other_prefix": "it came from NATS on a subject of other users (`bridge_user_map`)",
}
"""Values of MessageDropped.reason."""

CLOSE_REASONS: Final[Mapping[str, str]] = {
    "disconnect": "the client sent DISCONNECT: its will is discarded",
    "closed": "the client closed the connection without a DISCONNECT",
    "error": "the network connection failed",
    "keep_alive": "the client sent no packet for one and a half times its keep alive",
    "protocol_error": "the client violated the protocol",
    "message_too_large": "the client published a message that fits into no record of the log",
    "packet_too_large": "the client accepts no packet as large as an answer that it needs (MQTT 5)",
    "qos2_rejected": "the client published at QoS 2 and `reject_qos2_publish` is set",
    "not_permitted": "the permissions denied a publication and `denied_publish` is `close`",
    "login_expired": "the client's credentials expired",
    "login_revoked": "the user was removed from the password file, or the password changed",
    "reauthentication_failed": "the client failed to authenticate again (AUTH, MQTT 5)",
    "receive_maximum": "the client had more messages unacknowledged than `receive_maximum` allows",
    "publish_rate": "the client was paused at its publish rate for `throttle_timeout` without a "
    "break",
    "slow_reader": "the client read none of its pending output for `slow_reader_time`",
    "unread_bytes": "slow clients had too much unread output in total (`max_unread_bytes`)",
    "kicked": "an operator disconnected the client",
    "taken_over": "another connection used the same client identifier",
    "log_unavailable": "the log could not be written for `commit_timeout`",
    "failed": "the actor of the connection failed",
    "session_failed": "the actor of the session failed",
    "session_lost": "the session belongs to another connection or has ended",
    "broker_stopped": "the broker was stopped",
    "shared": "it is a shared subscription, which has no connection of its own",
    "broker_restarted": "found connected at the start: the previous broker crashed",
}
"""Values of SessionClosed.reason."""

BROKER_ENDS: Final = frozenset({"broker_restarted", "broker_stopped"})
"""Those for which the broker is the reason, not the client."""

EXPIRY_REASONS: Final[Mapping[str, str]] = {
    "expired": "its session expiry passed",
    "removed": "an operator removed it",
    "no_members": "the last member of the shared subscription left it",
}
"""Values of SessionExpired.reason."""
