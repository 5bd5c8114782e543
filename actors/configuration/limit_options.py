"""The bounds as they are set; 0 is always "no bound"."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Quota:
    """What one party may do: a listener, an address, a user or a single connection."""

    connections: int = 0
    """Open at a time."""
    connection_rate: float = 0.0
    """New connections in a second, in the mean."""
    publish_rate: float = 0.0
    """PUBLISH packets in a second, in the mean."""
    publish_bytes: float = 0.0
    """Bytes that are read in a second, in the mean: of all packets, not of PUBLISH alone."""


NO_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """The bounds of a node beside those of its listeners; bytes and seconds."""

    address: Quota = NO_QUOTA
    """For all connections of an IPv4 address, or of a /64 of IPv6."""
    user: Quota = NO_QUOTA
    """For all connections of a user."""
    client: Quota = NO_QUOTA
    """For each connection: its publish rate and bytes."""
    burst: float = 2.0
    """How many seconds' worth of any rate may come at once."""
    publish_patience: float = 60.0
    """For how long a client may be held back without a break before it is disconnected."""
    max_unauthenticated: int = 32_768
    """Connections whose CONNECT is not accepted yet."""
    max_unauthenticated_bytes: int = 64 * MIB
    """Memory for all of them."""
    flapping_connects: int = 300
    """Accepted CONNECTs of one client id within ``flapping_window`` that are not yet flapping."""
    flapping_window: float = 60.0
    flapping_jail: float = 60.0
    """How long a flapping client id is refused."""
    address_faults: int = 0
    """Connections of an address, within ``fault_jail``, that ended through their own fault; after
    one more, new ones are refused for that time."""
    fault_jail: float = 60.0
    packet_rate: float = 256.0
    """Bytes a second at which an incomplete packet must arrive for its client not to be silent."""
    slow_reader_time: float = 60.0
    """For how long a client may take nothing of what waits for it."""
    max_unread_bytes: int = 512 * MIB
    """Bytes that wait for all clients which do not take them."""
    overload_lag: float = 1.0
    """Lag of the event loop from which on the broker is overloaded."""
    overload_commit: float = 10.0
    """Time that a record takes to be on disk from which on it is."""
    overload_after: float = 5.0
    """For how long that must last."""
    max_subscriptions: int = 10_000
    """Subscriptions of one session."""
    max_topic_levels: int = 0
    """Levels of a topic or a topic filter."""
    max_wildcards: int = 16
    """Levels of a topic filter that are wildcards."""
    subscribe_rate: float = 1000.0
    """Topic filters that one session may subscribe to and unsubscribe from in a second, in the
    mean; as many as it may have subscriptions may come at once."""
    max_wildcard_patterns: int = 64
    """Different positions of ``+`` in the topic filters of one session."""
    max_wildcard_patterns_total: int = 4096
    """The same in those of all sessions."""
