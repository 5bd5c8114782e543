"""Builds the limits of a node from the settings."""

from __future__ import annotations

import resource
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final

import structlog

from actors.limits.limit_options import LimitOptions, Quota
from cli.settings.setting_sources import ConfigError

if TYPE_CHECKING:
    from cli.settings.settings import Settings

_log = structlog.get_logger("foldmq")

SPARE_DESCRIPTORS: Final = 64
"""File descriptors not used by clients: listeners, NATS, files, the interpreter."""
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
    wanted = each * settings.max_connections + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        wanted = max(hard, SPARE_DESCRIPTORS + 1)
        tell = _log.warning if "max_connections" in settings.model_fields_set else _log.info
        tell(
            "max_connections lowered because of the limit on open files (ulimit -Hn)",
            max_connections=(wanted - SPARE_DESCRIPTORS) // each,
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return (wanted - SPARE_DESCRIPTORS) // each


def _quota(settings: Settings, whose: str) -> Quota:
    """Return the quota of an address, user or client; a client has no connection rate."""
    names = {
        "connections": f"max_connections_per_{whose}",
        "connection_rate": f"connection_rate_per_{whose}",
        "publish_rate": f"publish_rate_per_{whose}",
        "publish_bytes": f"publish_bytes_per_{whose}",
    }
    return Quota(**{key: getattr(settings, name, 0) for key, name in names.items()})
