"""From the settings to the bounds on what clients may take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.options.limit_options import LimitOptions, Quota

if TYPE_CHECKING:
    from cli.settings import Settings


_FEW = 8
"""Connections that may always be open before it is known whose they are."""


def bounds(settings: Settings, max_connections: int) -> LimitOptions:
    """Return the bounds of a node that has room for so many connections."""
    return LimitOptions(
        address=Quota(
            settings.max_connections_per_address,
            settings.connection_rate_per_address,
            settings.publish_rate_per_address,
            settings.publish_bytes_per_address,
        ),
        user=Quota(
            settings.max_connections_per_user,
            settings.connection_rate_per_user,
            settings.publish_rate_per_user,
            settings.publish_bytes_per_user,
        ),
        client=Quota(
            publish_rate=settings.publish_rate_per_client,
            publish_bytes=settings.publish_bytes_per_client,
        ),
        publish_patience=settings.rate_patience,
        max_unauthenticated=min(settings.max_unauthenticated, max(_FEW, max_connections // 2)),
        max_unauthenticated_bytes=settings.max_unauthenticated_bytes,
        flapping_connects=settings.flapping_connects,
        flapping_window=settings.flapping_jail,
        flapping_jail=settings.flapping_jail,
        address_faults=settings.max_faults_per_address,
        fault_jail=settings.fault_jail,
        packet_rate=settings.min_packet_rate,
        slow_reader_time=settings.slow_reader_time,
        max_unread_bytes=settings.max_unread_bytes,
        overload_lag=settings.overload_lag,
        overload_commit=settings.overload_commit,
        max_subscriptions=settings.max_subscriptions,
        subscribe_rate=settings.subscribe_rate,
        max_wildcard_patterns=settings.max_wildcard_patterns,
        max_wildcard_patterns_total=settings.max_wildcard_patterns_total,
        max_topic_levels=settings.max_topic_levels,
        max_wildcards=settings.max_wildcards,
    )
