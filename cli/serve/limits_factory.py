"""Builds the options of the broker, of its limits and of its bridge from the settings."""

import resource
from dataclasses import fields
from typing import Any, Final

import structlog

from actors.limits.bridge_options import BridgeOptions
from actors.limits.broker_options import BrokerOptions
from actors.limits.destination_options import DestinationOptions
from actors.limits.limit_options import LimitOptions, Quota
from cli.settings.setting_sources import ConfigError
from cli.settings.settings import Settings
from eventstore.format.records import FORMAT
from protocol.nats.mapping import Mapping, parse_users
from protocol.nats.property_headers import allowed_names


def make_options(
    settings: Settings,
    node: str,
    largest: int,
    key: bytes = b"",
    users: str = "",
    default_bound: int = 0,
    record_format: int = FORMAT,
) -> BrokerOptions:
    """Return the broker's options for a log with records of at most ``largest`` bytes.

    ``key`` is the key of pseudonyms, empty without, ``users`` the digest of the files with users,
    ``default_bound`` the bound of the log if ``keep_bytes`` is not set, ``record_format`` the
    newest format that all processes of this node can read.
    The settings are those returned by :func:`cli.serve.log_store.fit_packet_size`.
    """
    values = _same_named(BrokerOptions, settings)
    if settings.keep_bytes is None:
        values["keep_bytes"] = default_bound
    values["max_connections"] = max_connections = affordable_connections(settings)
    values["max_record"] = min(BrokerOptions(node).max_record, largest // 2)
    return BrokerOptions(
        node,
        **values,
        bounds=limit_options(settings, max_connections),
        will_grace=settings.failover_grace if settings.cluster is not None else 0.0,
        close_denied=settings.denied_publish == "close",
        pseudonym_key=key,
        users_digest=users,
        users_elsewhere=bool(settings.jwt_keys or settings.auth_subject),
        record_format=record_format,
        destinations=tuple(
            DestinationOptions(
                *(name, sink.kind, sink.filters, sink.digest, sink.begin),
                *(sink.max_behind, sink.max_behind_bytes, sink.when_full),
            )
            for name, sink in settings.destinations.items()
        ),
    )


def _same_named(options: type[BrokerOptions | LimitOptions], settings: Settings) -> dict[str, Any]:
    """Return the options that have the name of a setting, with its value."""
    names = (field.name for field in fields(options))
    return {name: getattr(settings, name) for name in names if name in Settings.model_fields}


def make_bridge(settings: Settings, most_held: int) -> BridgeOptions:
    """Return the options of the bridge."""
    prefixes = parse_users(settings.bridge_user_map)
    rules = Mapping.parse(settings.bridge_map, settings.bridge_filters, prefixes.values())
    always = settings.bridge_always
    return BridgeOptions(
        rules,
        prefixes,
        always,
        settings.bridge_qos,
        most_held,
        settings.bridge_ttl,
        allowed_names(settings.bridge_client_headers),
        several_nodes=settings.cluster is not None,
    )


_log = structlog.get_logger("foldmq")

SPARE_DESCRIPTORS: Final = 64
"""File descriptors not used by clients: listeners, NATS, files, the interpreter."""
_FEW = 8
"""Connections that a broker must be able to take twice."""
_UNAUTHENTICATED = 64
"""Minimum for the limit on unauthenticated connections: clients that all connect at once."""


def limit_options(settings: Settings, max_connections: int) -> LimitOptions:
    """Return the limits of a node with at most ``max_connections``."""
    values = _same_named(LimitOptions, settings)
    most = max(_UNAUTHENTICATED, max_connections // 2)
    values["max_unauthenticated"] = min(settings.max_unauthenticated, most)
    values |= {whose: _quota(settings, whose) for whose in ("address", "user", "client")}
    return LimitOptions(**values)


def check_open_files(settings: Settings) -> None:
    """Raise ConfigError if the limit on open files leaves no room for clients."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Each client of several processes takes two descriptors of the main process.
    least = SPARE_DESCRIPTORS + 2 * _FEW
    if settings.processes > 1 or settings.partitions > 1:
        least += 16 * max(settings.processes, settings.partitions)
    if hard != resource.RLIM_INFINITY and hard < least:
        raise ConfigError(
            f"the limit on open files is {hard}, the broker needs at least {least} and one more "
            "for each client: raise it (ulimit -n in a shell, LimitNOFILE of systemd, --ulimit "
            "nofile=20000 of Docker)"
        )


def affordable_connections(settings: Settings, each: int = 1) -> int:
    """Raise the limit on open files as far as possible; return the number of connections it allows.

    That is ``max_connections``, or less: further connections would fail unnoticed. ``each`` is the
    number of descriptors that a connection takes.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = each * settings.max_connections + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < descriptors:
        descriptors = max(hard, SPARE_DESCRIPTORS + 1)
        tell = _log.warning if "max_connections" in settings.model_fields_set else _log.info
        tell(
            "max_connections lowered because of the limit on open files (ulimit -Hn)",
            max_connections=(descriptors - SPARE_DESCRIPTORS) // each,
        )
    if soft != resource.RLIM_INFINITY and soft < descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    return (descriptors - SPARE_DESCRIPTORS) // each


def _quota(settings: Settings, whose: str) -> Quota:
    """Return the quota of an address, user or client; a client has no connection rate."""
    names = {
        "connections": f"max_connections_per_{whose}",
        "connection_rate": f"connection_rate_per_{whose}",
        "publish_rate": f"publish_rate_per_{whose}",
        "publish_bytes": f"publish_bytes_per_{whose}",
    }
    return Quota(**{key: getattr(settings, name, 0) for key, name in names.items()})
