"""The configured limits; 0 means unlimited, unless stated otherwise."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of a listener, an address, a user or a single connection."""

    connections: int = 0
    """Open at a time."""
    connection_rate: float = 0.0
    """Average new connections per second."""
    publish_rate: float = 0.0
    """Average PUBLISH packets per second."""
    publish_bytes: float = 0.0
    """Average bytes read per second, of all packets."""


NO_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """The limits of a node besides those of its listeners, in bytes and seconds."""

    address: Quota = NO_QUOTA
    """For all connections of an IPv4 address or an IPv6 /64 network."""
    user: Quota = NO_QUOTA
    """For all connections of a user."""
    client: Quota = NO_QUOTA
    """For each connection: its publish rate and bytes."""
    burst: float = 2.0
    """Burst size of all rates, in seconds."""
    throttle_timeout: float = 60.0
    """Time for which a client may be throttled without a break before it is disconnected."""
    max_unauthenticated: int = 32_768
    """Maximum connections whose CONNECT is not accepted yet."""
    max_unauthenticated_bytes: int = 64 * MIB
    """Memory for all of them."""
    max_auth_steps: int = 10
    """Maximum number of packets from a client in one authentication by a method of MQTT 5,
    including its CONNECT or first AUTH."""
    max_auth_bytes: int = 64 * 1024
    """Maximum bytes of Authentication Data in these packets."""
    max_reauthentications: int = 10
    """Maximum re-authentications of a connection in a minute."""
    flapping_connects: int = 300
    """Accepted CONNECTs of one client identifier within ``flapping_backoff`` before it counts as
    flapping."""
    flapping_backoff: float = 60.0
    """Time for which a flapping client identifier is refused."""
    max_faults_per_address: int = 0
    """Connections of an address that may end with a protocol error within ``fault_backoff``; after
    one more, new connections are refused for that time."""
    fault_backoff: float = 60.0
    min_packet_rate: float = 256.0
    """Minimum rate of an incomplete packet, in bytes per second; below it the client counts as
    silent."""
    slow_reader_time: float = 60.0
    """Time for which a client may leave all data waiting for it unread."""
    max_unread_bytes: int = 512 * MIB
    """Maximum bytes waiting for all slow readers."""
    overload_lag: float = 1.0
    """Lag of the event loop from which the broker counts as overloaded."""
    overload_commit: float = 10.0
    """Commit latency from which it counts as overloaded."""
    overload_after: float = 5.0
    """Time for which the lag or latency must last."""
    max_subscriptions: int = 10_000
    """Maximum subscriptions of one session."""
    max_subscriptions_total: int = 1_000_000
    """Maximum subscriptions of all sessions."""
    max_shared_members: int = 1024
    """Maximum members of one shared subscription, connected or not."""
    max_topic_levels: int = 0
    """Maximum levels of a topic or topic filter."""
    max_wildcards: int = 16
    """Maximum wildcard levels of a topic filter."""
    max_replays: int = 64
    """Maximum replays of connected clients; 0: there are none."""
    max_replays_per_client: int = 4
    """Maximum replays of one session."""
    subscribe_rate: float = 1000.0
    """Average topic filters per second that one session may subscribe to and unsubscribe from; the
    burst is the maximum number of subscriptions."""
    max_wildcard_patterns: int = 64
    """Maximum number of wildcard patterns (positions of ``+``) in the topic filters of one
    session."""
    max_wildcard_patterns_total: int = 4096
    """The same for all sessions."""
