"""The environment of the broker's child processes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cli.settings.log_settings import NATS_SETTINGS
from cli.settings.setting_sources import PREFIX

if TYPE_CHECKING:
    from cli.settings.settings import Settings
    from eventstore.datadir import DataDir

_FOR_LOGS = (
    "partitions",
    "cluster_listen",
    "cluster_advertise",
    "cluster_key_file",
    "cluster_tls_cert",
    "cluster_tls_key",
    "cluster_tls_ca",
)
"""Settings that belong together in a cluster with several logs."""


def environment_for(settings: Settings, datadir: DataDir) -> dict[str, str]:
    """Return the environment of the process: log settings and access to an external NATS server.

    Secrets are not passed as arguments, which all users of the machine can see.
    """
    given = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
    chosen: dict[str, str] = {"log_level": settings.log_level, "log_format": settings.log_format}
    if settings.nats_url is not None:
        for name in (*NATS_SETTINGS, "cluster", *(_FOR_LOGS if settings.partitions > 1 else ())):
            value = getattr(settings, name)
            if value is not None:
                chosen[name] = str(value)
    if settings.encryption_key_file is not None:
        chosen["encryption_key_file"] = str(settings.encryption_key_file.absolute())
    if settings.web is not None:
        chosen["web"] = str(settings.web)  # host names of the page
        chosen["web_idle"] = str(settings.web_idle)
        chosen["web_api"] = str(settings.web_api).lower()
        if settings.web_cors:
            chosen["web_cors"] = ",".join(settings.web_cors)
    chosen["data_dir"] = str(datadir.path)
    return given | {PREFIX + name.upper(): value for name, value in chosen.items()}
