"""The settings of ``foldmq serve``: flags before environment before TOML file before defaults.

A setting has the same name everywhere: ``max_ack_pending`` in the file, ``FOLDMQ_MAX_ACK_PENDING``
in the environment, ``--max-ack-pending`` as a flag. Anything unknown is refused.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from cli.common import Address
from cli.settings import access_settings, bridge_settings
from cli.settings.access_settings import AccessFields
from cli.settings.bridge_settings import MoreFilters, SubjectRules, TopicFilters, UserRules
from cli.settings.limit_settings import LimitFields
from cli.settings.listener_settings import Listen, ListenerFields, listed_twice, problem
from cli.settings.setting_types import (
    ExpandedPath,
    HostNames,
    OptionalAddress,
    Seconds,
    Size,
    SyncOrSeconds,
)
from eventstore.display import escaped
from eventstore.paths import NoHome, expand_home
from protocol.errors import FoldmqError

PREFIX = "FOLDMQ_"
CONFIG_VARIABLE = "FOLDMQ_CONFIG"
# Variables that are no settings: the TOML file, the program of eventstore.server.binary, and those
# of foldmq pub and sub.
OTHER_VARIABLES = (CONFIG_VARIABLE, "FOLDMQ_NATS_SERVER", "FOLDMQ_PASSWORD", "FOLDMQ_URL")
# Settings that no message shows.
_SECRETS = ("nats_password", "bridge_password")
# Kubernetes sets these in every pod of a namespace that has a service called "foldmq".
_SERVICE_LINK = re.compile(r"FOLDMQ_(SERVICE_(HOST|PORT.*)|PORT(_\d+_(TCP|UDP).*)?)")

_MIB = 2**20
_LEAST_KEPT = 16 * _MIB
_GIB = 2**30


class ConfigError(FoldmqError):
    """A setting that is unknown, has a bad value, or contradicts another one."""

    exit_code = 78  # EX_CONFIG of sysexits.h, as in eventstore.errors


class Settings(LimitFields, AccessFields, ListenerFields, BaseSettings):
    """All settings of ``foldmq serve``. Sizes are in bytes and times in seconds.

    Both may also be written with a unit: ``"16 MiB"``, ``"30s"``.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    data_dir: ExpandedPath = Field(
        default=Path("foldmq-data"),
        description="Where the event log is kept; one broker at a time.",
    )

    nats_url: str | None = Field(
        default=None, description="NATS server to keep the log in. Default: an embedded one."
    )
    nats_user: str | None = Field(default=None, description="User name for --nats-url.")
    nats_password: str | None = Field(
        default=None,
        repr=False,
        description="Password for --nats-url; a file is better.",
    )
    nats_password_file: ExpandedPath | None = Field(
        default=None, description="File whose first line is the password for --nats-url."
    )
    nats_creds: ExpandedPath | None = Field(
        default=None, description="Credentials file (JWT and seed)."
    )
    nats_nkey: ExpandedPath | None = Field(default=None, description="File with an nkey seed.")
    nats_ca: ExpandedPath | None = Field(
        default=None, description="Certificates of the authorities that vouch for the NATS server."
    )
    nats_cert: ExpandedPath | None = Field(default=None, description="Certificate shown to NATS.")
    nats_key: ExpandedPath | None = Field(default=None, description="Private key of --nats-cert.")
    nats_replicas: int = Field(
        default=1, ge=1, le=5, description="Copies of the log in the cluster of --nats-url."
    )
    sync: Annotated[Literal["always"] | Seconds, SyncOrSeconds] = Field(
        default="always",
        description='When the embedded NATS syncs to disk: "always" before it acknowledges, or '
        "every so many seconds: faster, and a power loss may undo acknowledged messages.",
    )

    nats_listen: OptionalAddress = Field(
        default=None,
        description="Where to accept NATS clients (an embedded NATS server of their own), "
        'host:port, or "off". Default: nowhere.',
    )
    nats_users: ExpandedPath | None = Field(
        default=None,
        description="Users who may connect to --nats-listen: lines NAME:PASSWORD, "
        "NAME:BCRYPT-HASH or a public nkey; or users with permissions, as nats-server has them. "
        "Default: everybody, on loopback only and while nothing says who may connect by MQTT.",
    )
    nats_anonymous: bool = Field(
        default=False,
        description="Let every client that reaches --nats-listen in, to read and write "
        "everything, also from other machines and whoever may connect by MQTT.",
    )
    nats_tls_cert: ExpandedPath | None = Field(
        default=None,
        description="Certificate of --nats-listen, with the chain that it needs: clients then "
        "speak TLS.",
    )
    nats_tls_key: ExpandedPath | None = Field(
        default=None, description="Private key of --nats-tls-cert, not encrypted."
    )
    nats_tls_client_ca: ExpandedPath | None = Field(
        default=None,
        description="Certificates of the authorities that vouch for clients of --nats-listen, who "
        "must then show a certificate.",
    )
    nats_store: Size = Field(
        default=_GIB,
        ge=0,
        description="Bytes that JetStream streams of the clients of --nats-listen may take on "
        "the disk; 0: they have no JetStream.",
    )
    bridge: bool = Field(
        default=True,
        description="Exchange messages with NATS clients: those of --nats-listen, --bridge-url or "
        "--nats-url, whichever is given.",
    )
    bridge_filters: TopicFilters = Field(
        default=("#",),
        description="Topic filters; only messages that match one are exchanged with NATS, both "
        "ways. May be given several times.",
    )
    bridge_always: MoreFilters = Field(
        default=(),
        description="Topic filters whose messages are taken from NATS although no MQTT client "
        "subscribed: for retained messages. May be given several times.",
    )
    bridge_map: SubjectRules = Field(
        default=(),
        description="Rules TOPIC=SUBJECT: topics at or below TOPIC (nothing: all others) have "
        "subjects that begin with SUBJECT instead of it. May be given several times.",
    )
    bridge_user_map: UserRules = Field(
        default=(),
        description="Rules USER=SUBJECT: subjects of that user's clients begin with SUBJECT, and "
        "the clients get nothing else from NATS. May be given several times.",
    )
    bridge_qos: int = Field(
        default=0,
        ge=0,
        le=2,
        description="QoS of messages from NATS that name none; 0: they are not logged.",
    )
    bridge_url: str | None = Field(
        default=None,
        description="NATS server to exchange messages with. Default: the one of --nats-url.",
    )
    bridge_user: str | None = Field(default=None, description="User name for --bridge-url.")
    bridge_password: str | None = Field(
        default=None,
        repr=False,
        description="Password for --bridge-url; a file is better.",
    )
    bridge_password_file: ExpandedPath | None = Field(
        default=None, description="File whose first line is the password for --bridge-url."
    )
    bridge_creds: ExpandedPath | None = Field(
        default=None, description="Credentials file (JWT and seed) for --bridge-url."
    )
    bridge_nkey: ExpandedPath | None = Field(
        default=None, description="File with an nkey seed for --bridge-url."
    )

    ack_wait: Seconds = Field(
        default=30.0,
        ge=0,
        description="Redeliver what is unacknowledged for so long; 0: never.",
    )
    session_expiry: Seconds = Field(
        default=0.0, ge=0, description="Forget sessions offline for so long; 0: never."
    )
    reject_qos2_publish: bool = Field(
        default=False, description="Close the connection of a client that publishes at QoS 2."
    )
    downgrade_qos2_subscribe: bool = Field(
        default=False, description="Grant QoS 1 to subscriptions that ask for QoS 2."
    )
    shared_strategy: Literal["balanced", "topic"] = Field(
        default="balanced",
        description="How messages of a shared subscription are divided among its members. "
        "balanced: each to one that has room, in turn; topic: all of a topic to the same one as "
        "long as the members are the same, in order.",
    )
    shared_for_mqtt3: bool = Field(
        default=True,
        description="Let clients below MQTT 5 share subscriptions ($share/NAME/FILTER), too.",
    )
    keep: Seconds = Field(
        default=7 * 86_400.0,
        ge=0,
        description="Time for which the event log goes back at least, for replay and audits; what "
        "is older and not needed any more is cut off. 0: for ever.",
    )
    keep_bytes: Size = Field(
        default=0,
        ge=0,
        description="Bytes that the event log may take, whatever keep says (at least 16 MiB): at "
        "it clients wait until the log is cut. 0: no bound.",
    )
    keep_until_archived: bool = Field(
        default=False,
        description="Cut off only what 'foldmq spark archive' has put into an archive, also if the "
        "log becomes older than keep and larger than keep_bytes.",
    )
    commit_timeout: Seconds = Field(
        default=30.0,
        gt=0,
        description="Close clients when the log cannot be written for so long.",
    )

    metrics: OptionalAddress = Field(
        default=Address("127.0.0.1", 18831),
        description='Where to answer /metrics (Prometheus), /healthz and /readyz, or "off". They '
        "hold numbers, no names, and need no password.",
    )
    metrics_hosts: HostNames = Field(
        default=(),
        description="Further names under which /metrics may be asked for, besides addresses, "
        "localhost and the name in --metrics. May be given several times.",
    )
    web: OptionalAddress = Field(
        default=Address("127.0.0.1", 18830),
        description='Where to serve the web page, or "off". It asks for a token: the one '
        "in the data directory, or one that 'foldmq web-token' made.",
    )
    sys_interval: Seconds = Field(
        default=10.0,
        ge=0,
        description="Time between updates of the topics $SYS/broker/...; 0: there are none.",
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least serious log line shown."
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="Shape of the log on stderr."
    )
    event_loop: Literal["auto", "uvloop", "asyncio"] = Field(
        default="auto", description="auto: uvloop where it is installed."
    )

    @field_validator("*", mode="before")
    @classmethod
    def _nothing_odd(cls, value: object, info: ValidationInfo) -> object:
        return _plain(info.field_name or "", value)

    @property
    def anonymous(self) -> bool:
        """Return whether clients without a user name may connect, to all of the listeners."""
        if self.allow_anonymous is not None:
            return self.allow_anonymous
        if self.vouched or self.tls_identity != "none":
            return False
        if self.tls_client_certs == "required":
            return self.certified
        return not self.reachable

    def listeners(self) -> list["Settings"]:
        """Return the settings of each listener, which is the only one in its ``listen``.

        Raises ConfigError for the first value that a listener has for itself and cannot have.
        """
        return [_for_listener(self, one) for one in self.listen]

    def reloaded(self, new: "Settings") -> "Settings":
        """Return these settings with what a running broker takes over of ``new`` ones."""
        names = set(RELOADABLE)
        if [one.endpoint for one in new.listen] == [one.endpoint for one in self.listen]:
            names.add("listen")  # with what single ones have for themselves
        merged = self.model_copy(update={name: getattr(new, name) for name in names})
        # What was copied counts as set only if it was set.
        asked = (self.model_fields_set - names) | (new.model_fields_set & names)
        merged.model_fields_set.intersection_update(asked)
        return merged


def _plain(name: str, value: object) -> object:
    annotation = Settings.model_fields[name].annotation
    if isinstance(value, bool) and annotation not in (bool, bool | None):
        raise ValueError("must not be true or false")
    if _holds_nul(value):
        # No file has such a name, and libraries of C would see less of a text than was written.
        raise ValueError("must not hold a NUL character")
    return value


def _holds_nul(value: object) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, Mapping):
        return any(map(_holds_nul, value.values()))
    return isinstance(value, list | tuple) and any(map(_holds_nul, value))


def _for_listener(settings: Settings, one: Listen) -> Settings:
    changed: dict[str, object] = {}
    for name, value in one.own:
        field = Settings.model_fields[name]
        kind: Any = Annotated[field.annotation, field, BeforeValidator(partial(_plain, name))]
        try:
            changed[name] = TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            shown = json.dumps(value, default=str)
            allowed = _allowed(name, error.errors()[0])
            raise ConfigError(f"listen = {one}: {name} = {shown}: {allowed}") from None
    return settings.model_copy(update={**changed, "listen": (one,)})


# What a running broker takes over on SIGHUP; all else needs a restart.
RELOADABLE = frozenset(
    {
        *LimitFields.model_fields,
        *AccessFields.model_fields,
        "ack_wait",
        "allow_anonymous",
        "commit_timeout",
        "downgrade_qos2_subscribe",
        "keep",
        "keep_bytes",
        "keep_until_archived",
        "log_level",
        "proxy_from",
        "proxy_protocol",
        "reject_qos2_publish",
        "session_expiry",
        "shared_for_mqtt3",
        "shared_strategy",
        "sys_interval",
        "tls_cert",
        "tls_ciphers",
        "tls_client_ca",
        "tls_client_certs",
        "tls_crl",
        "tls_identity",
        "tls_key",
        "tls_key_password_file",
        "tls_min_version",
        "unix_mode",
        "ws_origins",
        "ws_path",
    }
) - {"pseudonyms", "auth_nats_user", "auth_subject"}


class _Layer(NamedTuple):
    """One source of settings: what it holds and how its names look to the user."""

    values: Mapping[str, object]
    kind: Literal["flag", "environment", "file"]
    where: str = ""

    def shown(self, name: str) -> str:
        if self.kind == "flag":
            return flag(name)
        return PREFIX + name.upper() if self.kind == "environment" else f"{self.where}: {name}"


def flag(name: str) -> str:
    """Return the command line flag of a setting."""
    return "--" + name.replace("_", "-")


def load(
    flags: Mapping[str, object], environment: Mapping[str, str], config: Path | None = None
) -> Settings:
    """Put the settings together; ``config`` or ``FOLDMQ_CONFIG`` names the TOML file.

    Raises ConfigError (one line: source, name, value, what is allowed) for the first thing wrong.
    """
    if config is None and environment.get(CONFIG_VARIABLE):
        config = Path(environment[CONFIG_VARIABLE])
    layers = [
        _Layer(flags, "flag"),
        _Layer(_from_environment(environment), "environment"),
        *([_Layer(_from_file(config), "file", str(config))] if config else []),
    ]

    class Layered(Settings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: object, **__: object
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return tuple(
                InitSettingsSource(settings_cls, dict(layer.values), None) for layer in layers
            )

    try:
        settings = Layered()
    except ValidationError as error:
        raise ConfigError(_sentence(error.errors()[0], layers)) from None
    check(settings)
    return settings


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name in Settings.model_fields and variable.isupper():
            values[name] = value
        elif not _SERVICE_LINK.fullmatch(variable):
            known = [PREFIX + field.upper() for field in Settings.model_fields]
            raise ConfigError(
                f"environment: unknown setting {json.dumps(variable)}"
                + _nearest(variable, [*known, *OTHER_VARIABLES])
            )
    return values


def _from_file(path: Path) -> dict[str, object]:
    try:
        with expand_home(path).open("rb") as file:
            values = tomllib.load(file)
    except NoHome as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {escaped(str(error))}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not TOML: nested too deeply") from None
    except ValueError:  # of a number that Python does not read
        raise ConfigError(f"{path}: not TOML: a number is too long") from None
    for name in values:
        if name not in Settings.model_fields:
            raise ConfigError(
                f"{path}: unknown setting {json.dumps(name)}"
                + _nearest(name, Settings.model_fields)
            )
    return values


def _nearest(name: str, known: Iterable[str]) -> str:
    spelled = {candidate.casefold(): candidate for candidate in known}
    folded = name.casefold().replace("-", "_")
    for close in difflib.get_close_matches(folded, spelled, n=1, cutoff=0.6):
        return f' (did you mean "{spelled[close]}"?)'
    return ""


def _sentence(error: ErrorDetails, layers: Iterable[_Layer]) -> str:
    name = str(error["loc"][0])
    layer = next(layer for layer in layers if name in layer.values)
    value = "" if name in _SECRETS else " = " + json.dumps(layer.values[name], default=str)
    return f"{layer.shown(name)}{value}: {_allowed(name, error)}"


# What the settings that are lists hold.
_LISTED = {
    "listen": "host:port",
    "metrics_hosts": "host name",
    "proxy_from": "network",
    "ws_origins": "origin",
    "bridge_always": "topic filter",
    "bridge_filters": "topic filter",
    "bridge_map": "TOPIC=SUBJECT",
    "bridge_user_map": "USER=SUBJECT",
}


def _allowed(name: str, error: ErrorDetails) -> str:
    """Return what is allowed instead, from pydantic's error."""
    limits: dict[str, Any] = error.get("ctx", {})
    match error["type"]:
        case "int_parsing" | "int_from_float" | "int_type":
            return "must be a whole number"
        case "float_parsing" | "float_type" | "finite_number":
            return "must be a number"
        case "bool_parsing" | "bool_type":
            return "must be true or false"
        case "greater_than_equal":
            return f"must be at least {limits['ge']}"
        case "greater_than":
            return f"must be more than {limits['gt']}"
        case "less_than_equal":
            return f"must be at most {limits['le']}"
        case "literal_error":
            return f"must be {limits['expected']}"
        case "string_type" | "path_type":
            return "must be text"
        case "too_short":
            return f"must be a list with at least one {_LISTED[name]}"
        case "tuple_type":
            return f"must be a list of {_LISTED[name]}"
        case "value_error":
            return str(limits["error"])
    return error["msg"]


def check(settings: Settings) -> None:
    """Refuse settings that contradict each other; raises ConfigError saying what to change."""
    _check_listeners(settings)
    if 0 < settings.keep_bytes < _LEAST_KEPT:
        raise ConfigError(
            f"keep_bytes = {settings.keep_bytes}: must be at least {_LEAST_KEPT // _MIB} MiB, or 0 "
            "for no bound"
        )
    if settings.keep_until_archived and not (settings.keep or settings.keep_bytes):
        raise ConfigError(
            "keep_until_archived needs keep or keep_bytes: without them nothing is ever cut off, "
            "archived or not"
        )
    if settings.nats_url is None:
        for name in ("nats_user", "nats_password", "nats_password_file", "nats_creds"):
            _needs(settings, name, "nats_url")
        _needs(settings, "nats_nkey", "nats_url")
        if settings.nats_replicas != 1:
            raise ConfigError("nats_replicas needs nats_url: the embedded NATS is a single server")
        if settings.bridge_url is None:
            for name in ("nats_ca", "nats_cert", "nats_key"):
                _needs(settings, name, "nats_url")
    elif settings.sync != "always":
        raise ConfigError("sync is for the embedded NATS: set sync_interval in the one of nats_url")
    _needs(settings, "nats_key", "nats_cert")
    _needs(settings, "nats_cert", "nats_key")
    if settings.nats_password is not None and settings.nats_password_file is not None:
        raise ConfigError("nats_password and nats_password_file exclude each other: set one")
    for module in (access_settings, bridge_settings):
        for contradiction in module.contradictions(settings):
            raise ConfigError(contradiction)


def _check_listeners(settings: Settings) -> None:
    twice = listed_twice(settings.listen)
    if twice is not None:
        raise ConfigError(f"listen = {twice}: another listener has that address already")
    for own in settings.listeners():
        wrong = problem(own)
        if wrong is not None:
            raise ConfigError(wrong)


def _needs(settings: Settings, name: str, other: str) -> None:
    if getattr(settings, name) is not None and getattr(settings, other) is None:
        raise ConfigError(f"{name} needs {other} as well")
