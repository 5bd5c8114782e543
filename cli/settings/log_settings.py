"""The settings of the log's location, for commands that need no others.

They are those of ``cli.settings.settings``, read and checked in the same way, but without pydantic
and without the values of other settings.
"""

import dataclasses
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from cli.settings.setting_sources import (
    ConfigError,
    Layer,
    UnknownSettingError,
    merge_layers,
    read_layers,
)
from cli.settings.setting_topics import SETTING_NAMES
from eventstore.display import escaped
from eventstore.home_paths import NoHome, expand_home
from eventstore.nats.server_urls import url_problem

MAX_PARTITIONS: Final = 32
_DOMAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CLUSTER = re.compile(r"[A-Za-z0-9_-]{1,32}")


class LogLocationSettings(Protocol):
    """The location of the log: these settings, or all of them."""

    @property
    def data_dir(self) -> Path:
        """The data directory."""

    @property
    def nats_url(self) -> str | None:
        """The external NATS server with the log; None: the embedded one of ``data_dir``."""

    @property
    def nats_user(self) -> str | None:
        """The user there."""

    @property
    def nats_password(self) -> str | None:
        """The password of that user."""

    @property
    def nats_password_file(self) -> Path | None:
        """The file with that password."""

    @property
    def nats_creds(self) -> Path | None:
        """The file with a JWT and a seed."""

    @property
    def nats_nkey(self) -> Path | None:
        """The file with a seed."""

    @property
    def nats_ca(self) -> Path | None:
        """The CA certificates of that server."""

    @property
    def nats_cert(self) -> Path | None:
        """The client certificate."""

    @property
    def nats_key(self) -> Path | None:
        """The private key of the client certificate."""

    @property
    def nats_domain(self) -> str | None:
        """The JetStream domain of the log."""

    @property
    def cluster(self) -> str | None:
        """The cluster that shares the log."""

    @property
    def partitions(self) -> int:
        """The number of its logs."""

    @property
    def bridge_url(self) -> str | None:
        """The NATS server of the bridge, which has the same certificates."""

    @property
    def model_fields_set(self) -> Collection[str]:
        """The names of the settings that the operator set."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The settings of the log's location."""

    data_dir: Path = Path("foldmq-data")
    nats_url: str | None = None
    nats_user: str | None = None
    nats_password: str | None = dataclasses.field(default=None, repr=False)
    nats_password_file: Path | None = None
    nats_creds: Path | None = None
    nats_nkey: Path | None = None
    nats_ca: Path | None = None
    nats_cert: Path | None = None
    nats_key: Path | None = None
    nats_domain: str | None = None
    cluster: str | None = None
    partitions: int = 1
    bridge_url: str | None = None
    model_fields_set: frozenset[str] = frozenset()


_NAMES: Final = tuple(one.name for one in dataclasses.fields(LogSettings))[:-1]
NATS_SETTINGS: Final = tuple(name for name in _NAMES if name.startswith("nats_"))
"""The settings of the external NATS server with the log."""
PATH_SETTINGS: Final = frozenset(
    one.name for one in dataclasses.fields(LogSettings) if "Path" in str(one.type)
)
"""Those that are paths."""


def load_log_settings(
    flags: Mapping[str, object], environment: Mapping[str, str], config: Path | None = None
) -> LogSettings:
    """Load the settings of the log's location; raises ConfigError as ``load_settings`` does."""
    try:
        layers = read_layers(flags, environment, config, SETTING_NAMES)
    except UnknownSettingError:
        # Building the error may take its time: it names the nearest of all settings.
        from cli.settings.settings import Settings

        layers = read_layers(flags, environment, config, Settings.model_fields)
    values = merge_layers(layers)
    given = {name: _value(name, values[name], layers) for name in _NAMES if name in values}
    settings = LogSettings(**given, model_fields_set=frozenset(values))
    for contradiction in log_contradictions(settings):
        raise ConfigError(contradiction)
    return settings


def _value(name: str, value: object, layers: list[Layer]) -> Any:
    problem = ""
    if isinstance(value, bool):
        problem = "must not be true or false"
    elif name == "partitions":
        try:
            number = int(value) if isinstance(value, int | str) else None
        except ValueError:
            number = None
        if number is None:
            problem = "must be a whole number"
        elif not 1 <= number <= MAX_PARTITIONS:
            problem = f"must be at {f'most {MAX_PARTITIONS}' if number > 0 else 'least 1'}"
        else:
            return number
    elif not isinstance(value, str | Path):
        problem = "must be text"
    elif "\0" in str(value):
        # No file has such a name, and C libraries would cut the text there.
        problem = "must not contain a NUL character"
    elif name in PATH_SETTINGS:
        try:
            return expand_home(value)
        except NoHome:
            problem = "this home directory does not exist"
    if problem:
        layer = next(layer for layer in layers if name in layer.values)
        shown = "" if name == "nats_password" else " = " + json.dumps(value, default=str)
        raise ConfigError(f"{layer.shown(name)}{shown}: {problem}")
    return value


def log_contradictions(settings: LogLocationSettings) -> Iterator[str]:
    """Yield a message for each contradiction of these settings, with the remedy."""
    if settings.nats_url is None:
        needing = ["nats_user", "nats_password", "nats_password_file", "nats_creds", "nats_nkey"]
        needing.append("nats_domain")
        if settings.bridge_url is None:
            needing += ["nats_ca", "nats_cert", "nats_key"]
        for name in needing:
            yield from _needs(settings, name, "nats_url")
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
    yield from _needs(settings, "nats_key", "nats_cert")
    yield from _needs(settings, "nats_cert", "nats_key")
    if settings.nats_password is not None and settings.nats_password_file is not None:
        yield "nats_password and nats_password_file cannot be combined: set one of them"


def _needs(settings: LogLocationSettings, name: str, other: str) -> Iterator[str]:
    if getattr(settings, name) is not None and getattr(settings, other) is None:
        yield f"{name} also needs {other}"
