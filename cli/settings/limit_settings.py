"""The settings that limit clients."""

from typing import Annotated

from pydantic import Field

from actors.access.login_backoff import BackoffOptions
from actors.limits.broker_options import BrokerOptions
from cli.settings.setting_types import Seconds, SettingsGroup, Size

_OPTIONS = BrokerOptions(node="")
_DEFAULTS = _OPTIONS.bounds
"""The defaults of the broker's limits are defined in ``actors.limits``."""
_BACKOFF = BackoffOptions()
_MIB = 2**20

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class LimitFields(SettingsGroup):
    """Limits on connections, rates, memory, sessions and topics."""

    max_connections: int = Field(_OPTIONS.max_connections, ge=1)
    """Maximum number of connected clients. In the settings of one listener: of that listener,
    within the limit of the broker."""
    max_connections_per_address: int = Field(_DEFAULTS.address.connections, ge=0)
    """Maximum number of connections from one address (IPv6: /64 network). 0: unlimited."""
    max_connections_per_user: int = Field(_DEFAULTS.user.connections, ge=0)
    """Maximum number of connections of one user. 0: unlimited."""
    connection_rate: Rate = 0
    """Maximum number of new connections per second on each listener. 0: unlimited."""
    connection_rate_per_address: Rate = int(_DEFAULTS.address.connection_rate)
    """Maximum number of new connections per second from one address. 0: unlimited."""
    connection_rate_per_user: Rate = int(_DEFAULTS.user.connection_rate)
    """Maximum number of new connections per second of one user. 0: unlimited."""
    publish_rate: Rate = 0
    """Maximum number of messages per second on each listener; topic filters in SUBSCRIBE and
    UNSUBSCRIBE count as messages. 0: unlimited."""
    publish_rate_per_address: Rate = int(_DEFAULTS.address.publish_rate)
    """Like --publish-rate, for one address. 0: unlimited."""
    publish_rate_per_user: Rate = int(_DEFAULTS.user.publish_rate)
    """Like --publish-rate, for one user. 0: unlimited."""
    publish_rate_per_client: Rate = int(_DEFAULTS.client.publish_rate)
    """Like --publish-rate, for one client. 0: unlimited."""
    publish_bytes: Size = Field(0, ge=0)
    """Maximum number of bytes per second that each listener reads, of all packets. 0: unlimited."""
    publish_bytes_per_address: Size = Field(int(_DEFAULTS.address.publish_bytes), ge=0)
    """Like --publish-bytes, for one address. 0: unlimited."""
    publish_bytes_per_user: Size = Field(int(_DEFAULTS.user.publish_bytes), ge=0)
    """Like --publish-bytes, for one user. 0: unlimited."""
    publish_bytes_per_client: Size = Field(int(_DEFAULTS.client.publish_bytes), ge=0)
    """Like --publish-bytes, for one client. 0: unlimited."""
    throttle_timeout: Seconds = Field(_DEFAULTS.throttle_timeout, ge=0)
    """Disconnect a client that is slowed down to --publish-rate-per-client or
    --publish-bytes-per-client without a break for this long. 0: never."""
    max_sessions: int = Field(_OPTIONS.max_sessions, ge=1)
    """Maximum number of sessions, connected or not."""
    max_subscriptions: int = Field(_DEFAULTS.max_subscriptions, ge=1)
    """Maximum number of subscriptions of one session."""
    max_subscriptions_total: int = Field(_DEFAULTS.max_subscriptions_total, ge=0)
    """Maximum number of subscriptions of all sessions together, which bounds their memory. One
    user, or one address of clients without a user, may have at most as many as are left. 0:
    unlimited."""
    max_shared_members: int = Field(_DEFAULTS.max_shared_members, ge=0)
    """Maximum number of members of one shared subscription, connected or not. 0: unlimited."""
    max_replays: int = Field(_DEFAULTS.max_replays, ge=0)
    """Maximum number of replays ($replay/...) of all connected clients; those of resumed sessions
    wait. 0: clients cannot replay messages."""
    max_replays_per_client: int = Field(_DEFAULTS.max_replays_per_client, ge=1)
    """Maximum number of replays of one session."""
    subscribe_rate: Rate = int(_DEFAULTS.subscribe_rate)
    """Topic filters per second that one client may subscribe to and unsubscribe from, on average,
    beyond the first --max-subscriptions; the client is slowed down to this rate. 0: unlimited."""
    max_topic_levels: int = Field(_DEFAULTS.max_topic_levels, ge=0)
    """Maximum number of levels of a topic or topic filter. 0: unlimited."""
    max_wildcards: int = Field(_DEFAULTS.max_wildcards, ge=0)
    """Maximum number of wildcards in a topic filter; each connection may subscribe to one filter
    with more. 0: unlimited."""
    max_wildcard_patterns: int = Field(_DEFAULTS.max_wildcard_patterns, ge=0)
    """Maximum number of wildcard patterns of one session. Topic filters that have + at the same
    levels share a pattern. 0: unlimited."""
    max_wildcard_patterns_total: int = Field(_DEFAULTS.max_wildcard_patterns_total, ge=0)
    """Maximum number of wildcard patterns of all sessions together, which bounds the time to match
    a topic. One user, or one address of clients without a user, may use at most half of the
    remaining ones. 0: unlimited."""
    max_packet_size: Size = Field(_OPTIONS.max_packet_size, ge=1024, le=268_435_460)
    """Maximum size of a packet from a client. The log may impose a lower limit."""
    min_packet_rate: Size = Field(int(_DEFAULTS.min_packet_rate), ge=0)
    """Minimum rate, in bytes per second, at which an incomplete packet must arrive. Below it, only
    complete packets count for the client's keep alive. 0: every byte counts."""
    max_outbound_bytes: Size = Field(_OPTIONS.max_outbound_bytes, ge=65536)
    """Maximum number of bytes buffered for one client that reads slowly."""
    max_unread_bytes: Size = Field(_DEFAULTS.max_unread_bytes, ge=_MIB)
    """Maximum number of bytes buffered for all slow clients together. Beyond it, the clients with
    the most buffered bytes are disconnected."""
    slow_reader_time: Seconds = Field(_DEFAULTS.slow_reader_time, ge=0)
    """Disconnect a client that has read none of its buffered bytes for this long. 0: never."""
    connect_timeout: Seconds = Field(_OPTIONS.connect_timeout, gt=0)
    """How long a new connection may take until its CONNECT is accepted, including the TLS and
    WebSocket handshakes and AUTH packets. A client that authenticates again has as much time."""
    max_unauthenticated: int = Field(_DEFAULTS.max_unauthenticated, ge=1)
    """Maximum number of connections whose CONNECT is not accepted yet; at most half of
    --max-connections."""
    max_unauthenticated_bytes: Size = Field(_DEFAULTS.max_unauthenticated_bytes, ge=_MIB)
    """Maximum number of bytes buffered for all connections whose CONNECT is not accepted yet."""
    max_auth_steps: int = Field(_DEFAULTS.max_auth_steps, ge=0)
    """Maximum number of packets that a client may send in one authentication exchange (MQTT 5), its
    CONNECT included. 0: unlimited."""
    max_auth_bytes: Size = Field(_DEFAULTS.max_auth_bytes, ge=0)
    """Maximum number of bytes of Authentication Data in one authentication exchange (MQTT 5). 0:
    unlimited."""
    max_reauthentications: int = Field(_DEFAULTS.max_reauthentications, ge=0)
    """Maximum number of re-authentications of a connected client per minute (MQTT 5). 0: unlimited.
    """
    login_failures: int = Field(_BACKOFF.failures, ge=0)
    """Failed logins per user and address within --login-backoff before further ones are slowed for
    that time: verified one after the other, with pauses. 0: unlimited."""
    login_failures_per_address: int = Field(_BACKOFF.address_failures, ge=0)
    """Failed logins per address, of all users together, within --login-backoff before wrong ones
    are answered late for that time. 0: unlimited."""
    login_backoff: Seconds = Field(_BACKOFF.duration, gt=0)
    """How long failed logins count, and how long further ones are then slowed."""
    max_faults_per_address: int = Field(_DEFAULTS.max_faults_per_address, ge=0)
    """Connections from one address within --fault-backoff that violate MQTT, fail the TLS
    handshake, send no CONNECT in time or exceed a limit, before the address is refused for that
    time. 0: unlimited."""
    fault_backoff: Seconds = Field(_DEFAULTS.fault_backoff, gt=0)
    """How long the faults of an address count, and how long an address that has too many is then
    refused."""
    flapping_connects: int = Field(_DEFAULTS.flapping_connects, ge=0)
    """Connects of one client identifier within --flapping-backoff before it is refused for that
    time. 0: unlimited."""
    flapping_backoff: Seconds = Field(_DEFAULTS.flapping_backoff, gt=0)
    """How long connects of a client identifier count, and how long a client identifier with too
    many is then refused."""
    overload_lag: Seconds = Field(_DEFAULTS.overload_lag, ge=0)
    """Refuse new clients while the event loop is repeatedly late by more than this. 0: never."""
    overload_commit: Seconds = Field(_DEFAULTS.overload_commit, ge=0)
    """Refuse new clients while writing to the log takes longer than this. 0: never."""
    max_ack_pending: int = Field(_OPTIONS.max_ack_pending, ge=1, le=65535)
    """Maximum number of unacknowledged deliveries per subscription."""
    max_queued_messages: int = Field(_OPTIONS.max_queued_messages, ge=1)
    """Maximum number of messages queued for one session."""
    max_queued_bytes: Size = Field(_OPTIONS.max_queued_bytes, ge=1)
    """Maximum number of payload bytes queued for one session."""
    takeover_delay: Seconds = Field(_OPTIONS.takeover_delay, ge=0)
    """How long to delay a client when several clients keep taking over the same client identifier.
    """
