"""The settings of destinations of the outbox: the tables ``[sink.NAME]`` of the TOML file."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from cli.common.units import seconds
from cli.settings.setting_sources import ConfigError
from cli.settings.setting_types import (
    Elements,
    ExpandedPath,
    Seconds,
    SettingsGroup,
    Size,
    allowed,
    several,
)
from eventstore.format.destination_events import NATS_DESTINATION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cli.settings.setting_sources import Layer
    from cli.settings.settings import Settings

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_SINKS, _MOST_FILTERS, _LONGEST_FILTER = 64, 64, 1024
_MIB: Final = 2**20
_LISTED: Final = {"always": "outcomes", "servers": "1 to 64 host:port"}
_KEY_WITHOUT: Final = "use a key without a password, in a file that only the user of foldmq reads"
_KAFKA_SECRETS: Final[dict[str, str]] = {
    "sasl.password": "use password_file",
    "sasl.oauthbearer.client.secret": "use SASL/SCRAM with password_file, or a certificate",
    "ssl.key.pem": "use ssl.key.location",
    "ssl.key.password": _KEY_WITHOUT,
    "ssl.keystore.password": _KEY_WITHOUT,
}
"""Properties of librdkafka that are secrets, which belong in files, and what to use instead."""
_PACKAGES: Final = {"kafka": "confluent_kafka", "postgres": "asyncpg"}


def _parts(url: str, expected: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError(expected) from None
    return parts


def _url(url: str) -> str:
    parts = _parts(url, "must be a URL, such as https://host/path")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be a URL that begins with https:// or http://")
    if parts.username or parts.password:
        raise ValueError("must not contain a password: use token_file")
    return url


def _database(url: str) -> str:
    expected = "must be a URL such as postgresql://user@host/database"
    parts = _parts(url, expected)
    if parts.scheme not in ("postgresql", "postgres") or len(parts.path) <= 1:
        raise ValueError(expected)
    if parts.password or "password=" in parts.query:
        raise ValueError("must not contain a password: use password_file")
    return url


def _matching(pattern: str, expected: str) -> AfterValidator:
    """Return a validator of texts; ``expected`` says which are valid."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(expected)
        return text

    return AfterValidator(check)


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of a package around it
        return False


def _target(target: str) -> str:
    module, _, name = target.partition(":")
    if not (name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ValueError("must be module:Class, such as orders:Store")
    return target


def check_filters(filters: tuple[str, ...]) -> tuple[str, ...]:
    """Return the filters; raises ValueError unless the log may have such messages."""
    # The help page of serve needs no rules of MQTT.
    from protocol.mqtt.topics import is_reserved_filter, validate_topic_filter

    for each in filters:
        validate_topic_filter(each)
        if len(each) > _LONGEST_FILTER:
            raise ValueError(f"a filter may have at most {_LONGEST_FILTER} characters")
        if each.startswith(("$share/", "$SYS")) or is_reserved_filter(each):
            raise ValueError(f"{each}: the log has no such messages")
    return filters


LogFilters = Annotated[
    tuple[str, ...],
    Elements(several, noun="topic filter"),
    Field(max_length=_MOST_FILTERS),
    AfterValidator(check_filters),
]
"""A setting with filters of messages in the log."""


_JWT_ROLES: Final = ("view", "view-all", "publish")
"""Roles that tokens of an issuer may have; operate is for tokens that an operator made here."""


def _pairs(value: object) -> object:
    """Return the entries of a table as NAME=VALUE."""
    if isinstance(value, dict):
        return [f"{name}={entry}" for name, entry in value.items()]
    return several(value)


def _check_streams(streams: tuple[str, ...]) -> tuple[str, ...]:
    names = [stream.partition("=")[0] for stream in streams]
    for stream, name in zip(streams, names, strict=True):
        if "=" not in stream or not _NAME.fullmatch(name):
            raise ValueError(
                f"{stream}: must be NAME=FILTER, and a name up to 64 letters, digits, - or _"
            )
        if names.count(name) > 1:
            raise ValueError(f"the stream {name} is declared twice")
    check_filters(tuple(stream.partition("=")[2] for stream in streams))
    return streams


Streams = Annotated[
    tuple[str, ...],
    Elements(_pairs, noun="NAME=FILTER"),
    Field(max_length=_MOST_FILTERS),
    AfterValidator(_check_streams),
]
"""A setting with names of filters."""


def _check_roles(roles: tuple[str, ...]) -> tuple[str, ...]:
    for entry in roles:
        group, _, role = entry.rpartition("=")
        if not group or "," in group or role not in _JWT_ROLES:
            raise ValueError(
                f"{entry}: must be GROUP=ROLE, with one of the roles {', '.join(_JWT_ROLES)}"
            )
    return roles


GroupRoles = Annotated[
    tuple[str, ...],
    Elements(_pairs, noun="GROUP=ROLE"),
    Field(max_length=_MOST_FILTERS),
    AfterValidator(_check_roles),
]
"""A setting with roles of groups."""


def _retry(value: object) -> object:
    """Return base and maximum of the pauses, from a text such as ``1s 5m``."""
    pauses = tuple(seconds(part) for part in value.split()) if isinstance(value, str) else ()
    if len(pauses) != 2 or not all(isinstance(each, float) for each in pauses):
        raise ValueError("must be two times, such as 1s 5m")
    base, most = pauses
    if not 0.01 <= float(base) <= float(most) <= 3600:  # type: ignore[arg-type]  # both are floats
        raise ValueError("must be two times, the first at least 10ms, the second at most 1h")
    return pauses


class DestinationSettings(SettingsGroup):
    """What all destinations of the outbox have. Sizes in bytes, times in seconds."""

    begin: Literal["now", "oldest"] = Field(default="now", alias="from")
    max_behind: Seconds = Field(default=0.0, ge=0)
    max_behind_bytes: Size = Field(default=0, ge=0)
    when_full: Literal["skip", "wait"] = "skip"


_Filters = Annotated[
    tuple[str, ...],
    Field(min_length=1, max_length=_MOST_FILTERS),
    AfterValidator(check_filters),
]


class SinkSettings(DestinationSettings):
    """What all sinks have."""

    kind: str
    filters: _Filters
    user: str | None = Field(default=None, min_length=1, max_length=256)
    timeout: Seconds = Field(default=30.0, ge=1, le=600)
    batch: int = Field(default=200, ge=1, le=10_000)
    batch_bytes: Size = Field(default=_MIB, ge=1024, le=64 * _MIB)
    batch_wait: Seconds = Field(default=0.005, ge=0, le=60)
    retry: Annotated[tuple[float, float], BeforeValidator(_retry)] = (1.0, 300.0)

    @property
    def package(self) -> str:
        """The package that this kind needs; empty: none that is not installed with foldmq."""
        return _PACKAGES.get(self.kind, "")

    @property
    def digest(self) -> str:
        """The digest of the settings that determine which messages are due."""
        from outbox.selection import selection_digest

        return selection_digest(self.kind, self.filters, self.user)

    def unusable(self) -> Iterator[tuple[str, str]]:
        """Yield the settings that cannot be used on this machine, each with the reason."""
        if self.package and not _is_installed(self.package):
            from cli.common.package_version import install_command

            command = install_command(self.kind, self.package)
            yield f'kind = "{self.kind}"', f"needs more packages: {command}"
        yield from _unreadable(self)


class _WebSinkSettings(SinkSettings):
    """A sink with a URL and a token."""

    url: Annotated[str, AfterValidator(_url)]
    token_file: ExpandedPath | None = None
    ca_file: ExpandedPath | None = None


class _LoginSinkSettings(SinkSettings):
    """A sink with a password, for large batches."""

    password_file: ExpandedPath | None = None
    ca_file: ExpandedPath | None = None
    batch: int = Field(default=1000, ge=1, le=10_000)


class HttpSettings(_WebSinkSettings):
    """A sink that posts messages over HTTP."""

    kind: Literal["http"]
    format: Literal["batch", "structured", "binary"] = "batch"
    signing_secret_file: ExpandedPath | None = None


class PythonSettings(SinkSettings):
    """A sink that is a class of the user's."""

    kind: Literal["python"]
    target: Annotated[str, AfterValidator(_target)]
    directory: ExpandedPath | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    memory: Size = Field(default=512 * _MIB, ge=64 * _MIB)

    def unusable(self) -> Iterator[tuple[str, str]]:
        """Yield the reason if the class cannot be imported, or not made with these options."""
        from outbox.sinks.python import PythonOptions, check_target

        options = self.model_dump(mode="json")["options"]
        reason = check_target(PythonOptions(self.target, self.directory, options))
        if reason:
            yield f'target = "{self.target}"', reason


class OtlpSettings(_WebSinkSettings):
    """A sink that sends spans of messages to a collector of OpenTelemetry."""

    kind: Literal["otlp"]
    filters: _Filters = ("#",)
    ratio: float = Field(default=1.0, ge=0, le=1, allow_inf_nan=False)
    always: tuple[Literal["dropped", "redelivered", "slow"], ...] = ()
    slow: Seconds = Field(default=1.0, ge=0.001, le=600)
    templates: Annotated[tuple[str, ...], AfterValidator(check_filters)] = ()
    encoding: Literal["json", "protobuf"] = "json"
    metrics: Seconds = Field(default=0.0, ge=0, le=3600)

    @property
    def package(self) -> str:
        """The package of the encoding."""
        return "opentelemetry.proto" if self.encoding == "protobuf" else ""


def _kafka_options(options: dict[str, str | int | float]) -> dict[str, str | int | float]:
    for key, remedy in _KAFKA_SECRETS.items():
        if key in options:
            raise ValueError(f"must not contain {key}: {remedy}")
    return options


class KafkaSettings(_LoginSinkSettings):
    """A sink that sends messages to a topic of Apache Kafka."""

    kind: Literal["kafka"]
    servers: Annotated[tuple[str, ...], Field(min_length=1, max_length=64)]
    topic: Annotated[
        str, _matching(r"[A-Za-z0-9._-]{1,249}", "must be 1 to 249 letters, digits, dots, - and _")
    ]
    options: Annotated[dict[str, str | int | float], AfterValidator(_kafka_options)] = Field(
        default_factory=dict
    )

    def unusable(self) -> Iterator[tuple[str, str]]:
        """Yield what all sinks may lack, and properties of librdkafka that are wrong."""
        yield from super().unusable()
        if _is_installed(self.package):
            from outbox.sinks.kafka import check_properties

            reason = check_properties(self.options, has_password=self.password_file is not None)
            if reason:
                yield "options", reason


class PostgresSettings(_LoginSinkSettings):
    """A sink that writes messages to a table of PostgreSQL."""

    kind: Literal["postgres"]
    url: Annotated[str, AfterValidator(_database)]
    table: Annotated[
        str,
        _matching(
            r"([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}",
            "must be the name of a table, perhaps behind a schema and a dot",
        ),
    ] = "mqtt_messages"


_KINDS: Final[dict[object, type[SinkSettings]]] = {
    "http": HttpSettings,
    "kafka": KafkaSettings,
    "otlp": OtlpSettings,
    "postgres": PostgresSettings,
    "python": PythonSettings,
}


def read_sinks(layers: list[Layer], problems: list[str]) -> dict[str, SinkSettings]:
    """Return the destinations by name; a line for each problem is added to ``problems``."""
    sinks: dict[str, SinkSettings] = {}
    for layer in layers:
        tables: Mapping[str, Any] = layer.tables.get("sink", {})
        for name, table in tables.items():
            where = f"{layer.where}: sink.{name}"
            if not _NAME.fullmatch(name):
                problems.append(f"{where}: a name has 1 to 64 letters, digits, - and _")
                continue
            if name == NATS_DESTINATION:
                problems.append(f"{where}: the bridge to NATS has this name: choose another")
                continue
            group = _KINDS.get(kind) if isinstance(kind := table.get("kind"), str) else None
            if group is None:
                *others, last_kind = (f"'{each}'" for each in _KINDS)
                allowed_kinds = ", ".join(others) + f" or {last_kind}"
                shown = f" = {json.dumps(kind, default=str)}" if "kind" in table else ""
                problems.append(f"{where}.kind{shown}: must be {allowed_kinds}")
                continue
            try:
                sinks[name] = group(**table)
            except ValidationError as error:
                lines = [setting_error(where, group, each) for each in error.errors()]
                problems += dict.fromkeys(lines)
    if len(sinks) > _MOST_SINKS:
        problems.append(f"there are {len(sinks)} sinks: at most {_MOST_SINKS} are possible")
    return sinks


def setting_error(where: str, group: type[DestinationSettings], error: Any) -> str:
    """Return an error of pydantic in one line; ``where`` names the table."""
    name = str(error["loc"][0]) if error["loc"] else ""
    place = f"{where}.{name}"
    if error["type"] == "missing":
        return f"{place}: is required"
    if error["type"] == "extra_forbidden":
        shared = DestinationSettings.model_fields
        keys = [key for key in group.model_fields if key not in shared] + [*shared]
        names = ", ".join(group.model_fields[key].alias or key for key in keys)
        return f"{place}: unknown setting; known: {names}"
    key = "begin" if name == "from" else name
    if name == "options" and len(error["loc"]) > 1:
        return f"{place}: {error['loc'][1]} must be text or a number"
    shown = json.dumps(error["input"], default=str)
    has_secret = isinstance(error["input"], dict) if name == "options" else name == "url"
    if has_secret and ("@" in shown or "password" in shown or name == "options"):
        # No message shows a value that may have a password.
        return f"{place}: {allowed(group.model_fields[key], error)}"
    if error["type"] in ("too_short", "tuple_type", "too_long"):
        listed = _LISTED.get(name, f"1 to {_MOST_FILTERS} topic filters")
        return f"{place} = {shown}: must be a list of {listed}"
    if error["type"] == "dict_type":
        return f"{place} = {shown}: must be a table"
    return f"{place} = {shown}: {allowed(group.model_fields[key], error)}"


def sink_contradictions(settings: Settings) -> Iterator[str]:
    """Yield one message for each contradiction among these settings, with the remedy."""
    for name, sink in settings.sinks.items():
        yield from retention_contradictions(settings, f"sink.{name}", sink)
        if sink.user is not None and settings.permissions is None:
            yield f"sink.{name}.user needs permissions: without them every user may read all topics"


def check_sink_files(settings: Settings) -> None:
    """Raise ConfigError with a line for each file of a destination that cannot be used."""
    from cli.settings.connection_settings import unreadable_files

    problems = [
        f"sink.{name}.{setting}: {reason}"
        for name, sink in settings.sinks.items()
        for setting, reason in sink.unusable()
    ]
    problems += unreadable_files(settings)
    if problems:
        raise ConfigError(*problems)


def retention_contradictions(
    settings: Settings, where: str, sink: DestinationSettings
) -> Iterator[str]:
    """Yield what contradicts the settings of the log in a table named ``where``."""
    longer = sink.max_behind > settings.keep > 0
    if longer and not (sink.max_behind_bytes or settings.keep_bytes):
        yield (
            f"{where}: max_behind is longer than keep, and needs max_behind_bytes, so that "
            "a destination that is away does not fill the disk"
        )
    if sink.when_full == "wait" and not (settings.keep_bytes or settings.keep_bytes is None):
        yield f'{where}: when_full = "wait" needs keep_bytes: at that size publishers wait'


def _unreadable(sink: SinkSettings) -> Iterator[tuple[str, str]]:
    """Yield the files that cannot be read: secrets, and authorities."""
    import ssl

    from eventstore.edited_files import client_context
    from outbox.sinks.webhook_signature import read_secrets, read_token

    for key, path in sink:
        if path is None or not key.endswith("_file"):
            continue
        try:
            if key == "ca_file":
                client_context(path)
            else:
                parse = read_secrets if key == "signing_secret_file" else read_token
                parse(path.read_text("utf-8"))
        except ssl.SSLError:
            yield f"{key} = {path}", "has no certificates in PEM"
        except OSError as error:
            yield f"{key} = {path}", f"cannot read: {error.strerror}"
        except ValueError as error:
            why = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
            yield f"{key} = {path}", why


def outbox_request(
    settings: Settings, node: str, local: dict[str, Any] | None = None, logs: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what the process of the outbox reads from its standard input.

    ``local`` is the listener of the broker for messages that come in; ``logs`` are the names of the
    logs of a broker with several.
    """
    return {
        "node": node,
        "logs": list(logs),
        "permissions": str(settings.permissions) if settings.permissions is not None else None,
        "sinks": [
            {"name": name, **sink.model_dump(mode="json", by_alias=True)}
            for name, sink in (*settings.sinks.items(), *settings.connections.items())
        ],
        "local": local,
        "keys": str(settings.personal_key_file) if settings.personal_key_file is not None else None,
    }
