"""Access to the NATS server of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.settings.setting_sources import ConfigError
from eventstore.nats.connection import ConnectionOptions
from eventstore.nats.server_urls import split_urls

if TYPE_CHECKING:
    from pathlib import Path

    from cli.settings.log_settings import LogSettings


def external_access(settings: LogSettings) -> ConnectionOptions:
    """Return the options of a connection to the external NATS server with the log.

    Raises ConfigError if the password file cannot be read.
    """
    password = settings.nats_password
    if settings.nats_password_file is not None:
        password = password_in("nats_password_file", settings.nats_password_file)
    return ConnectionOptions(
        urls=split_urls(settings.nats_url or ""),
        domain=settings.nats_domain,
        user=settings.nats_user,
        password=password,
        credentials=settings.nats_creds,
        nkey_seed=settings.nats_nkey,
        tls_ca=settings.nats_ca,
        tls_cert=settings.nats_cert,
        tls_key=settings.nats_key,
    )


def password_in(name: str, path: Path) -> str:
    """Return the first line of a password file, set by ``name``; raises ConfigError."""
    try:
        return path.read_text("utf-8-sig").partition("\n")[0].rstrip("\r")
    except OSError as error:
        raise ConfigError(f"{name} = {path}: cannot read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name} = {path}: not UTF-8 text") from None
