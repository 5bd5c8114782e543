"""What the broker's behaviour depends on, already validated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from actors.configuration.limit_options import LimitOptions

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Limits and choices; bytes and seconds where nothing else is said."""

    node: str
    """Name of this node: every record carries it."""
    max_connections: int = 65_536
    max_sessions: int = 1_000_000
    max_packet_size: int = 16 * MIB
    connect_timeout: float = 10.0
    """Time within which a new connection must send its CONNECT."""
    max_ack_pending: int = 1024
    """In-flight window of a subscription, messages."""
    ack_wait: float = 30.0
    """Time after which an unacknowledged message is sent again; 0 = never while connected."""
    session_expiry: float = 0.0
    """Time after which a persistent session that is not connected is removed; 0 = never. A client
    at level 5 may ask for less, not for more."""
    max_topic_aliases: int = 32
    """Topic aliases that a client at level 5 may use."""
    receive_maximum: int = 65_535
    """QoS 1 and 2 messages that a client at level 5 may send without waiting for an answer."""
    max_queued_messages: int = 1_000_000
    """Messages waiting for one session."""
    max_queued_bytes: int = 1024 * MIB
    """Their payload bytes."""
    max_outbound_bytes: int = 16 * MIB
    """Bytes waiting for one slow reader before QoS 0 messages to it are dropped."""
    jail_time: float = 1.0
    """How long a client identifier that two clients fight over is held back."""
    bounds: LimitOptions = field(default_factory=LimitOptions)
    """What clients may take, all together, of an address, of a user."""
    close_denied: bool = False
    """Close a connection that publishes what it may not, instead of dropping that."""
    pseudonym_key: bytes = field(default=b"", repr=False)
    """Key of the hash that stands for client identifiers; empty: they stand for themselves."""
    users_elsewhere: bool = False
    """Others than the permission file say which groups a user is in, or what it may do."""
    reject_qos2_publish: bool = False
    downgrade_qos2_subscribe: bool = False
    shared_strategy: Literal["balanced", "topic"] = "balanced"
    """How messages of a shared subscription are divided: by the room that its members have, or all
    of a topic to one member."""
    shared_for_mqtt3: bool = True
    """Clients below level 5 may share subscriptions."""
    commit_timeout: float = 30.0
    """Time for which the log may be unwritable before connections are closed."""
    keep: float = 7 * 86_400.0
    """Time for which the log goes back at least; 0 = for ever."""
    keep_bytes: int = 0
    """Bytes that the log may take, whatever ``keep`` says; 0 = no bound."""
    keep_until_archived: bool = False
    """Cut off nothing that no archive has."""
    sys_interval: float = 10.0
    """Time between updates of ``$SYS/broker/...``; 0 = there are none."""
    max_record: int = 8 * MIB
    """Size at which a record of the log is closed, at most half of NATS's max_payload."""
    message_cache: int = 64 * MIB
    """Memory for messages published recently."""
