"""The settings that bound what clients may take."""

from typing import Annotated

from pydantic import BaseModel, Field

from actors.configuration.limit_options import LimitOptions
from cli.settings.setting_types import Seconds, Size

_DEFAULTS = LimitOptions()
"""The limits of ``actors``: their defaults are stated there."""
_MIB = 2**20
_GIB = 2**30

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class LimitFields(BaseModel):
    """How much, how many and how often."""

    max_connections: int = Field(
        default=65536, ge=1, description="Connected clients, of the broker or of one listener."
    )
    max_connections_per_address: int = Field(
        default=_DEFAULTS.address.connections,
        ge=0,
        description="Connections from one address (IPv6: /64); 0: no bound.",
    )
    max_connections_per_user: int = Field(
        default=_DEFAULTS.user.connections,
        ge=0,
        description="Connections of one user; 0: no bound.",
    )
    connection_rate: Rate = Field(
        default=0, description="New connections a second of each listener; 0: no bound."
    )
    connection_rate_per_address: Rate = Field(
        default=int(_DEFAULTS.address.connection_rate),
        description="New connections a second from one address; 0: no bound.",
    )
    connection_rate_per_user: Rate = Field(
        default=int(_DEFAULTS.user.connection_rate),
        description="New connections a second of one user; 0: no bound.",
    )
    publish_rate: Rate = Field(
        default=0,
        description="Messages a second that each listener takes; topic filters of SUBSCRIBE and "
        "UNSUBSCRIBE count as well. 0: no bound.",
    )
    publish_rate_per_address: Rate = Field(
        default=int(_DEFAULTS.address.publish_rate),
        description="As publish_rate, from one address; 0: no bound.",
    )
    publish_rate_per_user: Rate = Field(
        default=int(_DEFAULTS.user.publish_rate),
        description="As publish_rate, of one user; 0: no bound.",
    )
    publish_rate_per_client: Rate = Field(
        default=int(_DEFAULTS.client.publish_rate),
        description="As publish_rate, of one client; 0: no bound.",
    )
    publish_bytes: Size = Field(
        default=0,
        ge=0,
        description="Bytes a second that each listener takes, whatever they are; 0: no bound.",
    )
    publish_bytes_per_address: Size = Field(
        default=int(_DEFAULTS.address.publish_bytes),
        ge=0,
        description="As publish_bytes, from one address; 0: no bound.",
    )
    publish_bytes_per_user: Size = Field(
        default=int(_DEFAULTS.user.publish_bytes),
        ge=0,
        description="As publish_bytes, of one user; 0: no bound.",
    )
    publish_bytes_per_client: Size = Field(
        default=int(_DEFAULTS.client.publish_bytes),
        ge=0,
        description="As publish_bytes, of one client; 0: no bound.",
    )
    rate_patience: Seconds = Field(
        default=_DEFAULTS.publish_patience,
        ge=0,
        description="A client that is slowed down to its own publish rate (..._per_client) for so "
        "long without a break is closed; 0: never.",
    )
    max_sessions: int = Field(default=1_000_000, ge=1, description="Sessions, connected or not.")
    max_subscriptions: int = Field(
        default=_DEFAULTS.max_subscriptions,
        ge=1,
        description="Subscriptions of one session; more get 0x80.",
    )
    subscribe_rate: Rate = Field(
        default=int(_DEFAULTS.subscribe_rate),
        description="Topic filters that one client may subscribe to and unsubscribe from in a "
        "second, in the mean, beyond the first max_subscriptions; it waits for more. 0: no bound.",
    )
    max_topic_levels: int = Field(
        default=_DEFAULTS.max_topic_levels,
        ge=0,
        description="Levels of a topic or topic filter; 0: no bound.",
    )
    max_wildcards: int = Field(
        default=_DEFAULTS.max_wildcards,
        ge=0,
        description="Levels of a topic filter that are wildcards; a connection may subscribe to "
        "one filter with more. 0: no bound.",
    )
    max_wildcard_patterns: int = Field(
        default=_DEFAULTS.max_wildcard_patterns,
        ge=0,
        description="Wildcard patterns of one session: the different sets of levels that are + in "
        "its topic filters. A filter with one more gets 0x80. 0: no bound.",
    )
    max_wildcard_patterns_total: int = Field(
        default=_DEFAULTS.max_wildcard_patterns_total,
        ge=0,
        description="The same of all sessions together; it bounds the time that matching a topic "
        "takes. A user, or an address without users, may bring half of those that are left. 0: no "
        "bound.",
    )
    max_packet_size: Size = Field(
        default=16 * _MIB,
        ge=1024,
        le=268_435_460,
        description="Largest packet taken from a client; what the log cannot hold is refused.",
    )
    min_packet_rate: Size = Field(
        default=int(_DEFAULTS.packet_rate),
        ge=0,
        description="Bytes a second at which a packet that is not complete must arrive: of a "
        "client that sends less only whole packets count for its keep alive. 0: any byte counts.",
    )
    max_outbound_bytes: Size = Field(
        default=16 * _MIB, ge=65536, description="Bytes that may wait for one slow client."
    )
    max_unread_bytes: Size = Field(
        default=_DEFAULTS.max_unread_bytes,
        ge=_MIB,
        description="Bytes that may wait for all clients that are too slow; then those for whom "
        "most waits are closed.",
    )
    slow_reader_time: Seconds = Field(
        default=_DEFAULTS.slow_reader_time,
        ge=0,
        description="Close a client that takes nothing of what waits for it for so long; 0: never.",
    )
    connect_timeout: Seconds = Field(
        default=10.0,
        gt=0,
        description="Time a new connection has to send CONNECT, TLS and WebSocket included.",
    )
    max_unauthenticated: int = Field(
        default=_DEFAULTS.max_unauthenticated,
        ge=1,
        description="Connections whose CONNECT was not accepted yet; at most half of those that "
        "there is room for.",
    )
    max_unauthenticated_bytes: Size = Field(
        default=_DEFAULTS.max_unauthenticated_bytes,
        ge=_MIB,
        description="Bytes kept of all connections whose CONNECT was not accepted yet.",
    )
    login_failures: int = Field(
        default=10,
        ge=0,
        description="Failed logins of a user from an address, within --login-jail, after which no "
        "password of theirs is looked at for that time; 0: no bound.",
    )
    login_failures_per_address: int = Field(
        default=200, ge=0, description="The same of an address, whatever the users; 0: no bound."
    )
    login_jail: Seconds = Field(
        default=60.0, gt=0, description="Time for which failed logins count."
    )
    max_faults_per_address: int = Field(
        default=_DEFAULTS.address_faults,
        ge=0,
        description="Connections from one address, within --fault-jail, that break the standard, "
        "fail in TLS, send no CONNECT in time or are closed for too much, after which it is turned "
        "away for that time; 0: no bound.",
    )
    fault_jail: Seconds = Field(
        default=_DEFAULTS.fault_jail,
        gt=0,
        description="Time for which such faults are held against an address.",
    )
    flapping_connects: int = Field(
        default=_DEFAULTS.flapping_connects,
        ge=0,
        description="Connects of one client identifier, within --flapping-jail, after which it is "
        "turned away for that time; 0: no bound.",
    )
    flapping_jail: Seconds = Field(
        default=_DEFAULTS.flapping_jail,
        gt=0,
        description="Time for which connecting too often is held against it.",
    )
    overload_lag: Seconds = Field(
        default=_DEFAULTS.overload_lag,
        ge=0,
        description="Turn new clients away while the event loop is late by more, again and again; "
        "0: never.",
    )
    overload_commit: Seconds = Field(
        default=_DEFAULTS.overload_commit,
        ge=0,
        description="Turn new clients away while writing to the log takes longer; 0: never.",
    )
    max_ack_pending: int = Field(
        default=1024, ge=1, le=65535, description="Unacknowledged deliveries per subscription."
    )
    max_queued_messages: int = Field(
        default=1_000_000, ge=1, description="Messages queued for one offline session."
    )
    max_queued_bytes: Size = Field(
        default=_GIB, ge=1, description="Payload bytes queued for one offline session."
    )
    jail_time: Seconds = Field(
        default=1.0, ge=0, description="Wait before clients that fight over one client id."
    )
