"""The settings of ``foldmq serve``: their model, sources and flags."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.settings import settings
    from cli.settings.binding import ListenError, bind, excuse, probe
    from cli.settings.endpoints import Endpoint
    from cli.settings.log_settings import LogPlace, LogSettings, load_log_settings
    from cli.settings.setting_flags import with_settings_flags
    from cli.settings.setting_sources import CONFIG_VARIABLE, PREFIX, ConfigError, flag, read_layers
    from cli.settings.settings import RELOADABLE, Settings, check, load
else:
    __getattr__ = front_door(
        __name__,
        {
            "binding": "ListenError bind excuse probe",
            "endpoints": "Endpoint",
            "log_settings": "LogPlace LogSettings load_log_settings",
            "setting_flags": "with_settings_flags",
            "setting_sources": "CONFIG_VARIABLE ConfigError PREFIX flag read_layers",
            "settings": "RELOADABLE Settings check load settings",
        },
    )

__all__ = [
    "CONFIG_VARIABLE",
    "PREFIX",
    "RELOADABLE",
    "ConfigError",
    "Endpoint",
    "ListenError",
    "LogPlace",
    "LogSettings",
    "Settings",
    "bind",
    "check",
    "excuse",
    "flag",
    "load",
    "load_log_settings",
    "probe",
    "read_layers",
    "settings",
    "with_settings_flags",
]
