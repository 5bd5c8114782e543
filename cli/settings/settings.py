"""All settings of ``foldmq serve``: their fields, what SIGHUP reloads, and contradictions.

A setting has the same name everywhere: ``max_ack_pending`` in the file, ``FOLDMQ_MAX_ACK_PENDING``
in the environment, ``--max-ack-pending`` as a flag.
"""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
)

from actors.limits.broker_options import BrokerOptions
from cli.common.units import Address
from cli.settings.access_settings import AccessFields, access_contradictions
from cli.settings.bridge_settings import BridgeFields, bridge_contradictions
from cli.settings.connection_settings import (
    ConnectionSettings,
    connection_contradictions,
    read_connections,
)
from cli.settings.limit_settings import LimitFields
from cli.settings.listener_settings import (
    Listen,
    ListenerFields,
    Origins,
    listed_twice,
    problem,
)
from cli.settings.log_settings import INDEX_BYTES, LogSettings, log_contradictions
from cli.settings.setting_sources import ConfigError, UnknownSettingError, read_layers
from cli.settings.setting_types import (
    HostNames,
    OptionalAddress,
    OptionalSize,
    Seconds,
    Size,
    allowed,
    checked_kind,
    read_settings,
)
from cli.settings.sink_settings import (
    GroupRoles,
    LogFilters,
    SinkSettings,
    Streams,
    read_sinks,
    sink_contradictions,
)
from cli.settings.storage_settings import (
    ClusterFields,
    StorageFields,
    cluster_contradictions,
    personal_contradictions,
    storage_contradictions,
)

_MIB = 2**20
MIN_KEPT = 16 * _MIB
"""Least ``keep_bytes`` that is not 0."""
_OPTIONS = BrokerOptions(node="")


class Settings(
    BridgeFields,
    StorageFields,
    LogSettings,
    ClusterFields,
    LimitFields,
    AccessFields,
    ListenerFields,
):
    """All settings of ``foldmq serve``. Sizes are in bytes and times in seconds.

    Both may be written with a unit: ``"16 MiB"``, ``"30s"``.
    """

    ack_wait: Seconds = Field(_OPTIONS.ack_wait, ge=0)
    """Redeliver a message that has not been acknowledged for this long. 0: never."""
    max_clock_gap: Seconds = Field(_OPTIONS.max_clock_gap, ge=0)
    """Longest time off that counts for expiry, between the last record of the log and a start.
    After a longer one, by the clock, the clock may as well be wrong: the time does not count, and
    nothing expires because of it. 0: any time counts."""
    session_expiry: Seconds = Field(_OPTIONS.session_expiry, ge=0)
    """Remove a session that has been offline for this long. 0: never."""
    max_keep_alive: Seconds = Field(_OPTIONS.max_keep_alive, ge=0, le=65_535)
    """Longest keep alive of MQTT 5 clients. If a client asks for a longer one, or for none, the
    broker uses this one instead and says so in CONNACK (Server Keep Alive). 0: any. MQTT 3.1.1
    clients keep theirs, because MQTT 3.1.1 has no Server Keep Alive."""
    max_topic_aliases: int = Field(_OPTIONS.max_topic_aliases, ge=0, le=65_535)
    """Maximum number of topic aliases that a client may use on a connection (MQTT 5). 0: none."""
    topic_aliases_out: int = Field(_OPTIONS.topic_aliases_out, ge=0, le=65_535)
    """Maximum number of topics to assign topic aliases to (MQTT 5): the first topics of at least 8
    bytes that are published. Clients that accept that many aliases receive the alias instead of the
    topic, which saves bytes and costs processor time. 0: none."""
    receive_maximum: int = Field(_OPTIONS.receive_maximum, ge=1, le=65_535)
    """Maximum number of unacknowledged PUBLISH packets at QoS 1 and 2 from an MQTT 5 client. A
    value below 65535 is announced in CONNACK (Receive Maximum), and a client that exceeds it is
    disconnected with 0x93. Some clients ignore it."""
    check_payload_format: bool = _OPTIONS.check_payload_format
    """Refuse a message or will whose Payload Format Indicator says UTF-8 but whose payload is not
    valid UTF-8 (MQTT 5), with 0x99; at QoS 0 drop it."""
    response_information: str = _OPTIONS.response_information
    """Topic prefix that CONNACK gives to clients that request response information (MQTT 5), for
    example reply/%c; %c is the client identifier. It grants no permission. Empty: none."""
    record_qos0: LogFilters = ()
    """Topic filter on which messages at QoS 0 are recorded, too, so that replays, history and why
    know them. Their deliveries do not wait for the disk. May be repeated. Not with several logs."""
    streams: Streams = ()
    """Topic filter that clients replay with $stream/NAME, as NAME=FILTER. May be repeated; in the
    file it may be a table."""
    reject_qos2_publish: bool = _OPTIONS.reject_qos2_publish
    """Close the connection of a client that publishes at QoS 2."""
    downgrade_qos2_subscribe: bool = _OPTIONS.downgrade_qos2_subscribe
    """Grant QoS 1 to subscriptions that request QoS 2."""
    shared_strategy: Literal["balanced", "topic"] = "balanced"
    """How messages of a shared subscription are divided among its members. balanced: each to the
    next member that has room; topic: all messages of a topic to the same member, in order, until
    the membership changes."""
    shared_for_mqtt3: bool = True
    """Also let clients below MQTT 5 share subscriptions ($share/NAME/FILTER)."""
    keep: Seconds = Field(_OPTIONS.keep, ge=0)
    """How long to keep the event log for replay and audits. Older records are deleted once they are
    no longer needed. 0: forever."""
    keep_bytes: OptionalSize = Field(None, ge=0)
    """Maximum size of the event log, even if that is less than --keep (at least 16 MiB). At this
    size, clients wait until records are deleted. 0: unlimited. Default: a quarter of the space that
    is free at the start, or a third more than the log already has; without --keep, and on an
    external NATS server, unlimited."""
    keep_until_archived: bool = _OPTIONS.keep_until_archived
    """Delete only records that 'foldmq spark archive' has archived, even if the log exceeds --keep
    or --keep-bytes."""
    index_bytes: Size = Field(INDEX_BYTES, ge=0)
    """Maximum size of the index of the event log. With it, why, log, replay and the web page read
    only the records that an answer needs. 0: no index."""
    commit_delay: Seconds = Field(_OPTIONS.commit_delay, ge=0, le=0.05)
    """How long messages of QoS 1 and 2 may wait for others, to share a record of the event log with
    them. They wait only while others are expected in this time, and clients do not wait for answers
    to send more. A longer time saves processor time and writes, for example 10ms with an SD card.
    0: they do not wait."""
    ack_delay: Seconds = Field(_OPTIONS.ack_delay, ge=0.01, le=60)
    """How long acknowledgements that clients send (PUBACK, PUBCOMP) may wait for a record of the
    event log that something else needs, before they get one of their own. After a crash, deliveries
    acknowledged in this time are sent again."""
    commit_timeout: Seconds = Field(_OPTIONS.commit_timeout, gt=0)
    """Disconnect all clients when the event log could not be written for this long."""

    metrics: OptionalAddress = Address("127.0.0.1", 18831)
    """Address of the HTTP server for /metrics (Prometheus), /healthz and /readyz, or "off". They
    contain no names of clients or topics and need no password."""
    metrics_hosts: HostNames = ()
    """Further host name under which /metrics is served, besides IP addresses, localhost and the
    host of --metrics. May be repeated."""
    web: OptionalAddress = Address("127.0.0.1", 18830)
    """Address of the web page, or "off". It asks for a token: the one in the data directory, or one
    created with 'foldmq web-token'."""
    web_api: bool = True
    """Serve the HTTP API below /api/v1 at the address of the web page. It asks for a token as well.
    """
    web_api_jwt: bool = False
    """Accept JSON Web Tokens (jwt_keys) in the HTTP API: their users may read the messages of the
    past for which the permission file gives them the right history; see also --web-api-jwt-roles.
    """
    web_api_jwt_roles: GroupRoles = ()
    """Role of JSON Web Tokens with a group in the HTTP API, as GROUP=ROLE: view, view-all or
    publish. The first that fits counts. May be repeated, or a table."""
    web_cors: Origins = ()
    """Origin of other web pages that may use the HTTP API, with a token. May be repeated. Default:
    none."""
    web_operate: bool = False
    """Permit tokens with the role operate to disconnect clients, and to remove sessions and
    retained messages, on the web page."""
    web_idle: Seconds = Field(300.0, ge=0)
    """Time without a connection after which the process of the web page ends; it starts with the
    first connection. 0: it always runs."""
    sys_interval: Seconds = Field(_OPTIONS.sys_interval, ge=0)
    """Interval between updates of the topics $SYS/broker/... 0 disables them."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level of the lines logged to stderr."""
    log_format: Literal["text", "json"] = "text"
    """Format of the lines logged to stderr."""
    event_loop: Literal["auto", "uvloop", "asyncio"] = "auto"
    """Event loop; auto uses uvloop if it is installed."""

    _sinks: dict[str, "SinkSettings"] = PrivateAttr(default_factory=dict)
    _connections: dict[str, "ConnectionSettings"] = PrivateAttr(default_factory=dict)

    @property
    def sinks(self) -> dict[str, "SinkSettings"]:
        """The destinations of the outbox by name: the tables ``[sink.NAME]``."""
        return self._sinks

    @property
    def connections(self) -> dict[str, "ConnectionSettings"]:
        """The connections to other brokers by name: the tables ``[connection.NAME]``."""
        return self._connections

    @property
    def destinations(self) -> dict[str, "SinkSettings | ConnectionSettings"]:
        """The destinations of the outbox by name; connections only with messages out."""
        connections = {name: each for name, each in self._connections.items() if each.filters}
        return {**self._sinks, **connections}

    def take_destinations(
        self, sinks: dict[str, "SinkSettings"], connections: dict[str, "ConnectionSettings"]
    ) -> None:
        """Set the results of :attr:`sinks` and :attr:`connections`."""
        self._sinks, self._connections = sinks, connections

    @property
    def anonymous(self) -> bool:
        """Return whether clients without a user name may connect to all listeners."""
        if self.allow_anonymous is not None:
            return self.allow_anonymous
        if self.authenticates or self.tls_identity != "none":
            return False
        if self.tls_client_certs == "required":
            return self.certified
        return not self.reachable

    def listeners(self) -> list["Settings"]:
        """Return the settings of each listener; each has only that listener in its ``listen``.

        Raises ConfigError for the first invalid setting of a listener.
        """
        return [_for_listener(self, listener) for listener in self.listen]

    def reloaded(self, new: "Settings") -> "Settings":
        """Return these settings with the reloadable ones replaced by those of ``new``."""
        names = set(RELOADABLE)
        if [listener.endpoint for listener in new.listen] == [
            listener.endpoint for listener in self.listen
        ]:
            names.add("listen")  # with the settings of single listeners
        merged = self.model_copy(update={name: getattr(new, name) for name in names})
        # A copied setting counts as set only if it was set.
        asked = (self.model_fields_set - names) | (new.model_fields_set & names)
        merged.model_fields_set.intersection_update(asked)
        return merged

    def differing(self, new: "Settings") -> tuple[str, ...]:
        """Return the names of settings and tables that need a restart to be as in ``new``."""
        names = (name for name in type(self).model_fields if name not in RELOADABLE)
        fixed = (*names, "sinks", "connections")
        changed = (name for name in fixed if getattr(new, name) != getattr(self, name))
        return tuple(name.removesuffix("s") if name in fixed[-2:] else name for name in changed)


def _for_listener(settings: Settings, listener: Listen) -> Settings:
    changed: dict[str, object] = {}
    for name, value in listener.own:
        field = Settings.model_fields[name]
        kind: Any = Annotated[
            field.annotation, field, BeforeValidator(partial(checked_kind, field))
        ]
        try:
            changed[name] = TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            shown = json.dumps(value, default=str)
            wrong = allowed(field, error.errors()[0])
            raise ConfigError(f"listen = {listener}: {name} = {shown}: {wrong}") from None
    return settings.model_copy(update={**changed, "listen": (listener,)})


# Settings that SIGHUP applies to a running broker; all others need a restart.
RELOADABLE = frozenset(
    {
        *LimitFields.model_fields,
        *AccessFields.model_fields,
        *ListenerFields.model_fields,
        "ack_delay",
        "ack_wait",
        "commit_delay",
        "commit_timeout",
        "downgrade_qos2_subscribe",
        "failover_grace",
        "keep",
        "keep_bytes",
        "keep_until_archived",
        "log_level",
        "record_qos0",
        "reject_qos2_publish",
        "session_expiry",
        "shared_for_mqtt3",
        "shared_strategy",
        "streams",
        "sys_interval",
    }
) - {"listen", "pseudonyms", "auth_nats_user", "auth_subject"}


def load_settings(
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    config: Path | None = None,
    *,
    contradictory: bool = False,
) -> Settings:
    """Load the settings; ``config`` or ``FOLDMQ_CONFIG`` names the TOML file.

    Raises ConfigError with a line for each problem: source, name, value and valid values.
    Contradictions are found only if all settings are valid, and if they may not be
    ``contradictory``.
    """
    problems: list[str] = []
    layers = read_layers(flags, environment, config, Settings.model_fields, problems)
    sinks = read_sinks(layers, problems)
    connections = read_connections(layers, problems)
    settings = read_settings(Settings, layers, problems)
    if problems:
        raise UnknownSettingError(*problems)
    settings.take_destinations(sinks, connections)
    if not contradictory:
        check_settings(settings)
    return settings


def check_settings(settings: Settings) -> None:
    """Raise ConfigError with the remedies if settings contradict each other."""
    problems: list[str] = []
    try:
        problems.extend(_contradictions(settings))
    except ConfigError as error:  # of a listener's own settings
        problems += error.args
    if problems:
        raise ConfigError(*dict.fromkeys(problems))


def _contradictions(settings: Settings) -> Iterator[str]:
    yield from _listener_problems(settings)
    if 0 < (settings.keep_bytes or 0) < MIN_KEPT:
        yield (
            f"keep_bytes = {settings.keep_bytes}: must be at least {MIN_KEPT // _MIB} MiB, or "
            "0 for unlimited"
        )
    if settings.keep_until_archived and not (settings.keep or settings.keep_bytes):
        yield (
            "keep_until_archived also needs keep or keep_bytes: without them no record is ever "
            "deleted"
        )
    for contradictions in (
        log_contradictions,
        storage_contradictions,
        personal_contradictions,
        cluster_contradictions,
        access_contradictions,
        bridge_contradictions,
        sink_contradictions,
        connection_contradictions,
    ):
        yield from contradictions(settings)


def _listener_problems(settings: Settings) -> Iterator[str]:
    twice = listed_twice(settings.listen)
    if twice is not None:
        yield f"listen = {twice}: another listener already has this address"
    for listener in settings.listen:
        try:
            wrong = problem(_for_listener(settings, listener))
        except ConfigError as error:
            wrong = str(error)
        if wrong is not None:
            yield wrong
