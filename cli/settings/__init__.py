"""The settings of ``foldmq serve``: their model, sources and flags."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.settings.binding import ListenError, bind, probe, raise_unless_default
    from cli.settings.endpoints import Endpoint
    from cli.settings.setting_flags import with_settings_flags
    from cli.settings.setting_sources import load_settings
    from cli.settings.settings import (
        CONFIG_VARIABLE,
        PREFIX,
        RELOADABLE,
        ConfigError,
        Settings,
        check_settings,
        flag_of,
    )
else:
    __getattr__ = front_door(
        __name__,
        {
            "binding": "ListenError bind raise_unless_default probe",
            "endpoints": "Endpoint",
            "setting_flags": "with_settings_flags",
            "setting_sources": "load_settings",
            "settings": "CONFIG_VARIABLE ConfigError PREFIX RELOADABLE Settings check_settings "
            "flag_of",
        },
    )

__all__ = [
    "CONFIG_VARIABLE",
    "PREFIX",
    "RELOADABLE",
    "ConfigError",
    "Endpoint",
    "ListenError",
    "Settings",
    "bind",
    "check_settings",
    "flag_of",
    "load_settings",
    "probe",
    "raise_unless_default",
    "with_settings_flags",
]
