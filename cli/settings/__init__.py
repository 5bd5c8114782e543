"""The settings of ``foldmq serve``: their model, sources and flags."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.settings import settings
    from cli.settings.binding import ListenError, bind, excuse, probe
    from cli.settings.endpoints import Endpoint
    from cli.settings.setting_flags import with_settings_flags
    from cli.settings.settings import PREFIX, RELOADABLE, ConfigError, Settings, check, flag, load
else:
    __getattr__ = front_door(
        __name__,
        {
            "binding": "ListenError bind excuse probe",
            "endpoints": "Endpoint",
            "setting_flags": "with_settings_flags",
            "settings": "ConfigError PREFIX RELOADABLE Settings check flag load settings",
        },
    )

__all__ = [
    "PREFIX",
    "RELOADABLE",
    "ConfigError",
    "Endpoint",
    "ListenError",
    "Settings",
    "bind",
    "check",
    "excuse",
    "flag",
    "load",
    "probe",
    "settings",
    "with_settings_flags",
]
