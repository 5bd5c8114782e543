"""The settings of ``foldmq serve``: their model, sources and flags."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.settings import settings
    from cli.settings.listener_settings import ipv4_hosts
    from cli.settings.log_settings import (
        NATS_SETTINGS,
        PATH_SETTINGS,
        LogLocationSettings,
        LogSettings,
        load_log_settings,
    )
    from cli.settings.setting_sources import (
        CONFIG_VARIABLE,
        PREFIX,
        ConfigError,
        flag_of,
        read_layers,
    )
    from cli.settings.setting_topics import USUAL_SETTINGS
    from cli.settings.settings import (
        MIN_KEPT,
        RELOADABLE,
        Settings,
        check_settings,
        load_settings,
    )
    from cli.settings.socket_binding import ListenError, bind, probe, raise_unless_default
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "listener_settings": "ipv4_hosts",
            "socket_binding": "ListenError bind raise_unless_default probe",
            "log_settings": (
                "LogLocationSettings LogSettings NATS_SETTINGS PATH_SETTINGS load_log_settings"
            ),
            "setting_sources": "CONFIG_VARIABLE ConfigError PREFIX flag_of read_layers",
            "setting_topics": "USUAL_SETTINGS",
            "settings": "MIN_KEPT RELOADABLE Settings check_settings load_settings settings",
        },
    )

__all__ = [
    "CONFIG_VARIABLE",
    "MIN_KEPT",
    "NATS_SETTINGS",
    "PATH_SETTINGS",
    "PREFIX",
    "RELOADABLE",
    "USUAL_SETTINGS",
    "ConfigError",
    "ListenError",
    "LogLocationSettings",
    "LogSettings",
    "Settings",
    "bind",
    "check_settings",
    "flag_of",
    "ipv4_hosts",
    "load_log_settings",
    "load_settings",
    "probe",
    "raise_unless_default",
    "read_layers",
    "settings",
]
