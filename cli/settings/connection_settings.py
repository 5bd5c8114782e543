"""The settings of connections to other MQTT brokers: the tables ``[connection.NAME]``.

Most settings have mosquitto's names, and ``outbox.mqtt.options`` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field, ValidationError

from cli.common.endpoints import Endpoint
from cli.settings.setting_sources import Layer
from cli.settings.sink_settings import (
    DestinationSettings,
    check_filters,
    retention_contradictions,
    setting_error,
)
from eventstore.format.destination_events import NATS_DESTINATION

if TYPE_CHECKING:
    from cli.settings.settings import Settings

_MOST_CONNECTIONS: Final = 64
_LOOPBACK: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
_OWN: Final = {field.alias or name for name, field in DestinationSettings.model_fields.items()}
"""Settings that mosquitto does not have."""


class ConnectionSettings(DestinationSettings):
    """A connection to another broker, which gets messages."""

    kind: Literal["mqtt"] = "mqtt"
    filters: tuple[str, ...] = ()
    """Filters of messages out; empty: there are none."""
    live: tuple[str, ...] = ()
    """Filters of messages out at QoS 0, which are not in the log."""
    takes: bool = False
    """Whether messages come in."""
    has_paths: bool = True
    """Whether messages name the logs that they have passed, as in MQTT 5."""
    digest: str = ""
    """The digest of the settings that determine which messages are due."""
    user: str | None = None
    """User whose permissions decide which messages go out."""
    table: dict[str, Any] = Field(default_factory=dict, repr=False)
    """The settings with mosquitto's names."""


def read_connections(layers: list[Layer], problems: list[str]) -> dict[str, ConnectionSettings]:
    """Return the connections by name; a line for each problem is added to ``problems``."""
    connections: dict[str, ConnectionSettings] = {}
    for layer in layers:
        for name, table in layer.tables.get("connection", {}).items():
            where = f"{layer.where}: connection.{name}"
            if name == NATS_DESTINATION:
                problems.append(f"{where}: the bridge to NATS has this name: choose another name")
            if name in layer.tables.get("sink", {}):
                problems.append(f"{where}: there is a sink of this name: choose another name")
            try:
                connections[name] = _read(name, table)  # type: ignore[arg-type]  # a table
            except ValidationError as error:
                lines = [setting_error(where, DestinationSettings, each) for each in error.errors()]
                problems += lines
            except ValueError as error:
                problems.append(f"{where}: {error}")
    if len(connections) > _MOST_CONNECTIONS:
        problems.append(
            f"there are {len(connections)} connections: at most {_MOST_CONNECTIONS} are possible"
        )
    return connections


def _read(name: str, table: Mapping[str, Any]) -> ConnectionSettings:
    """Read a table; raises ValueError, of which ValidationError is one."""
    from outbox.mqtt.options import read_connection
    from outbox.mqtt.topic_lines import TopicMap
    from outbox.selection import selection_digest
    from protocol.mqtt.connect_decoder import MQTT_5

    own = {key: value for key, value in table.items() if key in _OWN}
    others = {key: value for key, value in table.items() if key not in _OWN}
    DestinationSettings(**own)
    options = read_connection(name, others)
    topics = TopicMap(options.lines)
    return ConnectionSettings(
        **own,
        filters=check_filters(tuple(topics.local_filters)),
        live=tuple(each.local_filter for each in options.lines if each.is_out and not each.qos),
        takes=bool(topics.subscriptions),
        has_paths=options.version == MQTT_5,
        user=options.local_username,
        digest=selection_digest("mqtt", [line.text for line in options.lines if line.is_out]),
        table=others,
    )


def connection_contradictions(settings: Settings) -> Iterator[str]:
    """Yield one message for each contradiction among these settings, with the remedy."""
    for name, connection in settings.connections.items():
        where = f"connection.{name}"
        yield from retention_contradictions(settings, where, connection)
        if connection.takes:
            yield from _inward_contradictions(settings, where, connection)


def unreadable_files(settings: Settings) -> Iterator[str]:
    """Yield a line for each file of a connection that cannot be used."""
    if not settings.connections:
        return
    from outbox.mqtt.options import read_connection
    from outbox.mqtt.peer import PeerUnavailableError, tls_context

    for name, connection in settings.connections.items():
        options = read_connection(name, connection.table)
        tls, readable = options.tls, True
        for key, path in (
            ("remote_password_file", options.password_file),
            ("bridge_cafile", tls.authorities if tls is not None else None),
            ("bridge_certfile", tls.certificate if tls is not None else None),
            ("bridge_keyfile", tls.key if tls is not None else None),
        ):
            if path is None:
                continue
            try:
                path.open("rb").close()
            except OSError as error:
                readable = False
                yield f"connection.{name}: {key} = {path}: cannot read: {error.strerror}"
        if tls is not None and readable:
            try:
                tls_context(tls)
            except PeerUnavailableError as error:
                yield f"connection.{name}: {error}"


def _inward_contradictions(
    settings: Settings, where: str, connection: ConnectionSettings
) -> Iterator[str]:
    if settings.partitions > 1 and connection.filters and not connection.has_paths:
        yield (
            f"{where}: with several logs and before MQTT 5, a connection has messages in or "
            "messages out, not both, because its own messages would come back"
        )
    hides = "pseudonyms" if settings.pseudonyms else "personal_clients"
    is_hidden = settings.pseudonyms or settings.personal_clients
    if is_hidden and any(each.filters for each in settings.connections.values()):
        yield (
            f"{where}: with {hides}, connections have messages in or messages out, not both, "
            "because the log does not show which messages came in"
        )
    if local_listener(settings, [own.endpoint for own in settings.listen]) is None:
        yield (
            f"{where}: messages in need a listener for TCP or a Unix socket without TLS and PROXY "
            "protocol, which the bridge uses: add one, such as unix:/run/foldmq.sock"
        )


def local_listener(settings: Settings, places: Sequence[Endpoint]) -> dict[str, Any] | None:
    """Return the listener that bridges use for messages in; ``places`` are those of all."""
    for own, place in zip(settings.listeners(), places, strict=True):
        if place.encrypted or place.framed or own.proxy_protocol:
            continue
        if place.place is None:
            return {"host": "", "port": 0, "path": place.path}
        host = _LOOPBACK.get(place.place.host, place.place.host)
        return {"host": host, "port": place.place.port, "path": ""}
    return None
