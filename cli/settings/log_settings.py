"""The settings of the log's location; commands that need no others read only these."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pydantic import Field

from cli.settings.setting_flags import SETTING_NAMES
from cli.settings.setting_sources import ConfigError, UnknownSettingError, read_layers
from cli.settings.setting_types import (
    ExpandedPath,
    SettingsGroup,
    Size,
    also_needs,
    both_set,
    read_settings,
)
from eventstore.display import escaped
from eventstore.nats.server_urls import url_problem

MAX_PARTITIONS: Final = 32
INDEX_BYTES: Final = 1024 * 1024 * 1024
_DOMAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CLUSTER = re.compile(r"[A-Za-z0-9_-]{1,32}")


class LogSettings(SettingsGroup):
    """The settings of the log's location: the data directory, or the NATS server that stores it."""

    data_dir: ExpandedPath = Path("foldmq-data")
    """Directory of the event log; only one broker may use it at a time."""

    encryption_key_file: ExpandedPath | None = None
    """File whose first line is the key, at least 32 characters, with which the data directory is
    encrypted: the log in its embedded server, streams of NATS clients, the index; and backups. An
    existing directory must be copied first. Default: not encrypted."""

    nats_url: str | None = None
    """NATS server that stores the log, or several of its cluster, separated by commas. Default: an
    embedded server."""
    nats_user: str | None = None
    """User name for --nats-url."""
    nats_password: str | None = Field(None, repr=False)
    """Password for --nats-url; --nats-password-file is safer."""
    nats_password_file: ExpandedPath | None = None
    """File whose first line is the password for --nats-url."""
    nats_creds: ExpandedPath | None = None
    """Credentials file (JWT and seed) for --nats-url."""
    nats_nkey: ExpandedPath | None = None
    """File with an nkey seed for --nats-url."""
    nats_ca: ExpandedPath | None = None
    """CA certificates that the NATS server's certificate is verified against."""
    nats_cert: ExpandedPath | None = None
    """Client certificate for the NATS server."""
    nats_key: ExpandedPath | None = None
    """Private key of --nats-cert."""
    nats_domain: str | None = None
    """JetStream domain of the log, for a NATS server that is a leaf node. Default: the domain of
    --nats-url."""
    cluster: str | None = None
    """Name of the cluster that this node belongs to. Its nodes share one log at --nats-url: one of
    them leads and serves clients, the others follow it and take over. Default: no cluster."""
    partitions: int = Field(1, ge=1, le=MAX_PARTITIONS)
    """Number of logs of the cluster. Each has a leader of its own and the sessions of some clients,
    by a hash of the client identifier. All nodes need the same number, and it cannot change later.
    """
    bridge_url: str | None = None
    """NATS server to exchange messages with. Default: --nats-url."""


class IndexedLogSettings(LogSettings):
    """The settings of the log's location and of its index."""

    index_bytes: Size = Field(default=INDEX_BYTES, ge=0)


NATS_SETTINGS: Final = tuple(name for name in LogSettings.model_fields if name.startswith("nats_"))
"""The settings of the external NATS server with the log."""
PATH_SETTINGS: Final = frozenset(
    name for name, field in LogSettings.model_fields.items() if "Path" in str(field.annotation)
)
"""Those that are paths."""


def load_log_settings(
    flags: Mapping[str, object], environment: Mapping[str, str], config: Path | None = None
) -> IndexedLogSettings:
    """Load the settings of the log's location; raises ConfigError as ``load_settings`` does.

    The values of other settings are not validated.
    """
    try:
        layers = read_layers(flags, environment, config, SETTING_NAMES)
    except UnknownSettingError:
        # Building the error may take its time: it names the nearest of all settings.
        from cli.settings.settings import Settings

        layers = read_layers(flags, environment, config, Settings.model_fields)
    settings = read_settings(IndexedLogSettings, layers)
    contradictions = [*log_contradictions(settings)]
    if contradictions:
        raise ConfigError(*contradictions)
    return settings


def log_contradictions(settings: LogSettings) -> Iterator[str]:
    """Yield a message for each contradiction of these settings, with the remedy."""
    key = settings.encryption_key_file
    if key is not None and key.resolve().is_relative_to(settings.data_dir.resolve()):
        yield (
            f"encryption_key_file = {key}: must not be in the data directory, whose thief would "
            "have the key: move it"
        )
    if settings.nats_url is None:
        of_bridge = () if settings.bridge_url is None else ("nats_ca", "nats_cert", "nats_key")
        names = [name for name in NATS_SETTINGS if name not in ("nats_url", *of_bridge)]
        yield from also_needs(settings, "nats_url", *names)
    else:
        wrong = url_problem(settings.nats_url)
        if wrong:
            yield f"nats_url{escaped(wrong)}"
        domain = settings.nats_domain
        if domain is not None and not _DOMAIN.fullmatch(domain):
            yield (
                f"nats_domain = {escaped(domain)}: must be a name of letters, digits, - and _, at "
                "most 64 characters"
            )
    if settings.cluster is not None and not _CLUSTER.fullmatch(settings.cluster):
        yield (
            f"cluster = {escaped(settings.cluster)}: must be a name of letters, digits, - and _, "
            "at most 32 characters"
        )
    if settings.cluster is not None and settings.nats_url is None:
        yield "cluster also needs nats_url: the nodes share a log on a NATS server"
    yield from also_needs(settings, "nats_cert", "nats_key")
    yield from also_needs(settings, "nats_key", "nats_cert")
    yield from both_set(settings, "nats_password", "nats_password_file")
