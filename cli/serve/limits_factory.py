"""Builds the limits of a node from the settings."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final

from actors.configuration import LimitOptions, Quota

if TYPE_CHECKING:
    from cli.settings import Settings

_FEW = 8
"""Minimum for the limit on unauthenticated connections."""
_SETTINGS: Final = {
    "address_faults": "max_faults_per_address",
    "flapping_window": "flapping_backoff",
    "packet_rate": "min_packet_rate",
    "throttle_timeout": "throttle_timeout",
}
"""Limits whose settings have different names."""
_NOT_SET: Final = {"address", "burst", "client", "overload_after", "user"}
"""Quotas and limits without a setting."""


def limit_options(settings: Settings, max_connections: int) -> LimitOptions:
    """Return the limits of a node with at most ``max_connections``."""
    options = LimitOptions(
        **{
            one.name: getattr(settings, _SETTINGS.get(one.name, one.name))
            for one in fields(LimitOptions)
            if one.name not in _NOT_SET
        }
    )
    return replace(
        options,
        address=_quota(settings, "address"),
        user=_quota(settings, "user"),
        client=_quota(settings, "client"),
        max_unauthenticated=min(options.max_unauthenticated, max(_FEW, max_connections // 2)),
    )


def _quota(settings: Settings, whose: str) -> Quota:
    """Return the quota of an address, user or client; a client has no connection rate."""
    names = {
        "connections": f"max_connections_per_{whose}",
        "connection_rate": f"connection_rate_per_{whose}",
        "publish_rate": f"publish_rate_per_{whose}",
        "publish_bytes": f"publish_bytes_per_{whose}",
    }
    return Quota(**{key: getattr(settings, name, 0) for key, name in names.items()})
