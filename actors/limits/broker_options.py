"""The validated options of the broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from actors.limits.destination_options import DestinationOptions
from actors.limits.limit_options import LimitOptions
from eventstore.format.records import FORMAT

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Options of the broker; in bytes and seconds unless noted."""

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
    """Time after which an offline persistent session is removed; 0 = never. An MQTT 5 client may
    request a shorter time, not a longer one."""
    max_clock_gap: float = 86_400.0
    """Longest time since the last record that counts at a start; a longer one counts as a jump of
    the clock; 0 = any counts."""
    will_grace: float = 0.0
    """Time for which wills wait for their clients when the broker ended, not the client; 0 = they
    do not wait. It is 0 unless another node can take over."""
    max_keep_alive: float = 0.0
    """Longest keep alive of MQTT 5 clients, used if they request a longer one or none; 0: any."""
    max_topic_aliases: int = 32
    """Maximum topic aliases that an MQTT 5 client may use."""
    topic_aliases_out: int = 0
    """Maximum topics with an alias in packets to MQTT 5 clients that accept aliases."""
    receive_maximum: int = 65_535
    """Maximum unacknowledged QoS 1 and 2 PUBLISH packets from an MQTT 5 client."""
    check_payload_format: bool = False
    """Refuse messages declared as UTF-8 whose payload is not UTF-8 (MQTT 5)."""
    response_information: str = ""
    """Response Information of a CONNACK, for clients that request it; ``%c`` is the client
    identifier; empty: none."""
    max_queued_messages: int = 1_000_000
    """Maximum messages queued for one session."""
    max_queued_bytes: int = 1024 * MIB
    """Maximum payload bytes queued for one session."""
    max_outbound_bytes: int = 16 * MIB
    """Maximum bytes waiting for one slow reader before QoS 0 messages to it are dropped."""
    takeover_delay: float = 1.0
    """Delay of a CONNECT while two clients keep taking over the same client identifier."""
    bounds: LimitOptions = field(default_factory=LimitOptions)
    """Limits of all clients, of an address and of a user."""
    close_denied: bool = False
    """Close a connection on a denied PUBLISH instead of dropping the message."""
    clear_denied_retained: bool = False
    """Remove retained messages when a reload withdraws their publisher's permission."""
    pseudonym_key: bytes = field(default=b"", repr=False)
    """Key for hashing client identifiers; empty: they are not hashed."""
    personal_topics: tuple[str, ...] = ()
    """Filters of the topics whose contents are sealed."""
    personal_keep: float = 0.0
    """Time after which contents of personal topics are erased; 0: never."""
    personal_clients: tuple[str, ...] = ()
    """Patterns of client identifiers that tokens replace."""
    personal_users: tuple[str, ...] = ()
    """Patterns of user names that tokens replace."""
    users_digest: str = ""
    """Digest of the password file and of the keys for tokens; empty: there are none."""
    users_elsewhere: bool = False
    """Whether groups or permissions may come from other sources than the permission file."""
    record_qos0: tuple[str, ...] = ()
    """Filters of topics on which messages at QoS 0 are recorded, too."""
    streams: tuple[str, ...] = ()
    """Names of filters that clients replay with $stream/NAME, as NAME=FILTER."""
    reject_qos2_publish: bool = False
    downgrade_qos2_subscribe: bool = False
    shared_strategy: Literal["balanced", "topic"] = "balanced"
    """How messages of a shared subscription are divided: in proportion to the room of its members,
    or by topic, all messages of a topic to one member."""
    shared_for_mqtt3: bool = True
    """Whether clients below MQTT 5 may share subscriptions."""
    commit_delay: float = 0.003
    """Time for which messages may wait for others, to share a record with them."""
    ack_delay: float = 1.0
    """Time for which acknowledgements of clients need not be on disk."""
    commit_timeout: float = 30.0
    """Time for which the log may be unwritable before connections are closed."""
    keep: float = 7 * 86_400.0
    """Minimum retention time of the log; 0 = unlimited."""
    keep_bytes: int = 0
    """Maximum size of the log, regardless of ``keep``; 0 = unlimited."""
    keep_until_archived: bool = False
    """Do not delete records before they are archived."""
    destinations: tuple[DestinationOptions, ...] = ()
    """Destinations of the outbox."""
    sys_interval: float = 10.0
    """Time between updates of ``$SYS/broker/...``; 0 disables them."""
    max_record: int = 8 * MIB
    """Size at which a record of the log is closed, at most half of NATS's max_payload."""
    record_format: int = FORMAT
    """Newest format of records that all processes of this node can read."""
    message_cache: int = 64 * MIB
    """Memory for recently published messages."""
