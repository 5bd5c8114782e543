"""The flags of ``foldmq serve``: one for each setting, in sections by topic.

Commands that need only a few settings get all names from here, without loading their models.
"""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_origin

import typer

from cli.common.units import Address, seconds, size, size_shown, time_shown
from cli.program.help_pages import HELP_ALL, help_all_parameter
from cli.settings.setting_sources import flag_of
from cli.settings.setting_types import (
    address_or_off,
    is_read_by,
    noun_of_elements,
    sync_interval,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic.fields import FieldInfo

    Serve = Callable[[Path | None, dict[str, object]], None]

_MARK: Final = "*"
_TOPICS: Final = {
    "Listeners": "*config *listen unix_mode ws_path ws_origins proxy_protocol proxy_from",
    "TLS": (
        "*tls_cert *tls_key tls_key_password_file tls_min_version tls_ciphers *tls_client_ca "
        "tls_client_certs tls_crl tls_identity"
    ),
    "Authentication and permissions": (
        "*allow_anonymous *password_file auth_method jwt_keys jwt_issuer jwt_audience "
        "jwt_user_claim jwt_groups_claim auth_subject auth_nats_user auth_timeout auth_cache "
        "*permissions denied_publish clear_denied_retained pseudonyms personal_topics "
        "personal_clients personal_users personal_key_file personal_keep"
    ),
    "Log and retention": (
        "*data_dir encryption_key_file *sync *keep *keep_bytes keep_until_archived index_bytes "
        "commit_delay ack_delay commit_timeout"
    ),
    "Log on an external NATS server": (
        "*nats_url nats_user nats_password nats_password_file nats_creds nats_nkey nats_ca "
        "nats_cert nats_key nats_domain nats_replicas"
    ),
    "Cluster": (
        "*cluster partitions cluster_key_file cluster_listen cluster_advertise cluster_tls_cert "
        "cluster_tls_key cluster_tls_ca failover_grace"
    ),
    "Several processes on one machine": "*processes",
    "Sessions and delivery": (
        "*session_expiry max_clock_gap ack_wait max_ack_pending *max_queued_messages "
        "max_queued_bytes max_keep_alive receive_maximum max_topic_aliases topic_aliases_out "
        "check_payload_format response_information record_qos0 streams reject_qos2_publish "
        "downgrade_qos2_subscribe shared_strategy shared_for_mqtt3 max_shared_members max_replays "
        "max_replays_per_client takeover_delay"
    ),
    "Limits": (
        "*max_connections max_connections_per_address max_connections_per_user connection_rate "
        "connection_rate_per_address connection_rate_per_user *publish_rate "
        "publish_rate_per_address publish_rate_per_user publish_rate_per_client publish_bytes "
        "publish_bytes_per_address publish_bytes_per_user publish_bytes_per_client "
        "throttle_timeout max_sessions max_subscriptions max_subscriptions_total subscribe_rate "
        "max_topic_levels max_wildcards max_wildcard_patterns max_wildcard_patterns_total "
        "*max_packet_size min_packet_rate max_outbound_bytes max_unread_bytes slow_reader_time"
    ),
    "Protection against abuse": (
        "connect_timeout max_unauthenticated max_unauthenticated_bytes max_auth_steps "
        "max_auth_bytes max_reauthentications login_failures login_failures_per_address "
        "login_backoff max_faults_per_address fault_backoff flapping_connects flapping_backoff "
        "overload_lag overload_commit"
    ),
    "NATS clients and bridge": (
        "*nats_listen nats_users nats_anonymous nats_tls_cert nats_tls_key nats_tls_client_ca "
        "nats_store *bridge bridge_filters bridge_always bridge_map bridge_user_map bridge_qos "
        "bridge_ttl bridge_client_headers bridge_url bridge_user bridge_password "
        "bridge_password_file bridge_creds bridge_nkey"
    ),
    "Monitoring and operation": (
        "*web web_idle web_api web_api_jwt web_api_jwt_roles web_cors web_operate *metrics "
        "metrics_hosts sys_interval *log_level *log_format event_loop"
    ),
}
"""The names of settings by topic; the usual ones are marked."""

TOPIC_OF: Final = {
    name.removeprefix(_MARK): title for title, names in _TOPICS.items() for name in names.split()
}
"""The topic of each setting, by its name."""

USUAL_SETTINGS: Final = frozenset(
    name.removeprefix(_MARK)
    for names in _TOPICS.values()
    for name in names.split()
    if name.startswith(_MARK)
)
"""The settings of ``foldmq serve --help``; ``--help-all`` shows all of them."""

SETTING_NAMES: Final = tuple(name for name in TOPIC_OF if name != "config")
"""The names of all settings, by topic; ``config`` is a flag only."""

_METAVARS: Final = {
    "cluster": "NAME",
    "unix_mode": "MODE",
    "data_dir": "DIR",
    "nats_url": "URL,...",
    "nats_domain": "NAME",
    "bridge_url": "URL",
    "jwt_audience": "TEXT",
}
_METAVARS_BY_READER: Final = {
    size: "SIZE",
    seconds: "TIME",
    address_or_off: "HOST:PORT|off",
    sync_interval: "always|TIME",
}
_METAVARS_BY_TYPE: Final[dict[object, str]] = {
    str: "TEXT",
    str | None: "TEXT",
    int: "NUMBER",
    int | None: "NUMBER",
    float: "NUMBER",
}


def with_settings_flags(serve: Serve) -> Callable[..., None]:
    """Return a command with one flag per setting that calls ``serve`` with config file and flags.

    Values stay text here: ``load_settings`` parses the values of all sources alike.
    """

    def run(**values: Any) -> None:
        config = values.pop("config")
        del values[HELP_ALL]
        serve(config, {name: value for name, value in values.items() if _given(value)})

    parameters = [_config_parameter(), *map(_setting_parameter, SETTING_NAMES)]
    help_all = f"Show all {len(TOPIC_OF)} flags and exit."
    parameters.append(help_all_parameter(help_all))
    # typer builds its command from the signature and the annotations.
    command: Any = functools.wraps(serve)(run)
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    made: Callable[..., None] = command
    return made


def _given(value: object) -> bool:
    return value is not None and value != []


def _config_parameter() -> inspect.Parameter:
    text = "TOML file with settings. [env var: FOLDMQ_CONFIG]"
    return _parameter("config", Path | None, text, "FILE")


def _setting_parameter(name: str) -> inspect.Parameter:
    from cli.settings.settings import Settings

    field = Settings.model_fields[name]
    kind: object = str | None
    if field.annotation in (bool, bool | None):
        kind = bool | None
    elif _is_list(field):
        kind = list[str] | None
    return _parameter(name, kind, _help(field), metavar_of(name, field))


def _parameter(name: str, kind: object, text: str, metavar: str | None = None) -> inspect.Parameter:
    flag = flag_of(name)
    option = typer.Option(
        f"{flag}/--no-{flag[2:]}" if kind == bool | None else flag,
        help=text,
        show_default=False,
        metavar=metavar,
        rich_help_panel=TOPIC_OF.get(name),
        hidden=name not in USUAL_SETTINGS,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def metavar_of(name: str, field: FieldInfo) -> str | None:
    """Return the metavariable of a setting's flag; None: the flag has no value."""
    for reader, metavar in _METAVARS_BY_READER.items():
        if is_read_by(reader, field):
            return metavar
    if field.annotation in (bool, bool | None):
        return None
    if name in _METAVARS:
        return _METAVARS[name]
    if noun := noun_of_elements(field):
        return noun.split()[-1].upper()
    if get_origin(field.annotation) is Literal:
        return "|".join(get_args(field.annotation))
    return _METAVARS_BY_TYPE.get(field.annotation, "FILE")


def _help(field: FieldInfo) -> str:
    default: object = field.default
    text = field.description or ""
    if default in (None, ()) or isinstance(default, bool):
        return text
    if is_read_by(size, field) and isinstance(default, int):
        default = size_shown(default)
    elif _is_list(field):
        default = ", ".join(map(str, field.default))
    elif isinstance(default, float):
        default = time_shown(default)
    return f"{text} [default: {default}]"


def _is_list(field: FieldInfo) -> bool:
    return isinstance(field.default, tuple) and not isinstance(field.default, Address)
