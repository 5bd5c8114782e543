"""Builds the options of the broker and of its bridge from the settings."""

from __future__ import annotations

import dataclasses
from typing import Any

from actors.limits.bridge_options import BridgeOptions
from actors.limits.broker_options import BrokerOptions
from cli.serve.limits_factory import affordable_connections, limit_options
from cli.settings.settings import Settings
from protocol.nats.mapping import Mapping, parse_users
from protocol.nats.property_headers import allowed_names


def make_options(
    settings: Settings,
    node: str,
    largest: int,
    key: bytes = b"",
    users: str = "",
    default_bound: int = 0,
) -> BrokerOptions:
    """Return the broker's options for a log with records of at most ``largest`` bytes.

    ``key`` is the key of pseudonyms, empty without, ``users`` the digest of the files with users,
    ``default_bound`` the bound of the log if ``keep_bytes`` is not set.
    The settings are those returned by :func:`cli.serve.log_store.fit_packet_size`.
    """
    values: dict[str, Any] = {
        field.name: getattr(settings, field.name)
        for field in dataclasses.fields(BrokerOptions)
        if field.name in Settings.model_fields
    }
    if settings.keep_bytes is None:
        values["keep_bytes"] = default_bound
    options = BrokerOptions(node=node, **values)
    max_connections = affordable_connections(settings)
    return dataclasses.replace(
        options,
        max_connections=max_connections,
        bounds=limit_options(settings, max_connections),
        will_grace=settings.failover_grace if settings.cluster is not None else 0.0,
        close_denied=settings.denied_publish == "close",
        pseudonym_key=key,
        users_digest=users,
        users_elsewhere=bool(settings.jwt_keys or settings.auth_subject),
        max_record=min(options.max_record, largest // 2),
    )


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
