"""Translates the ``mqtt`` block and the users of a ``nats-server.conf`` to settings of foldmq."""

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Final

from cli.common import text
from cli.migration.imported_settings import ImportedSettings
from cli.settings.setting_sources import ConfigError, read_text
from eventstore.server import config_parser, users_file
from eventstore.server.users_file import NatsUser, SubjectRules
from protocol.mqtt.topics import TopicError, validate_topic_filter

_PORT: Final = 1883
_MQTT: Final = frozenset({"MQTT", "MQTT_WS"})
"""Types of connections of MQTT clients."""
_INTERNAL: Final = ("$MQTT.", "$JS.", "_INBOX")
"""Subjects that NATS Server's MQTT uses itself."""
_SAME: Final = (
    "ack_wait",
    "max_ack_pending",
    "reject_qos2_publish",
    "downgrade_qos2_subscribe",
)
"""Options of the mqtt block that foldmq has too."""
_STORAGE: Final = {
    "js_domain": "see nats_domain, if foldmq keeps its log on a NATS server",
    "stream_replicas": "see nats_replicas, if foldmq keeps its log on a NATS server",
    "consumer_replicas": "foldmq needs no consumers",
    "consumer_memory_storage": "foldmq needs no consumers",
    "consumer_inactive_threshold": "see session_expiry",
    "js_api_timeout": "see commit_timeout",
}


def import_nats_settings(result: ImportedSettings) -> None:
    """Translate the file ``result.source``.

    Raises ConfigError if it cannot be read, is not valid, or has no mqtt block.
    """
    path = result.source
    try:
        top = config_parser.parse(read_text(path))
    except config_parser.NatsConfError as error:
        raise ConfigError(f"{path}:{error.line}: {error}") from None
    block = _map(top.get("mqtt"))
    if not block:
        raise ConfigError(f"{path}: has no mqtt block")
    _add_listener(result, block)
    _add_users(result, top, block)
    for name in ("accounts", "operator", "resolver", "trusted_keys", "websocket"):
        if name in top:
            result.unmatch(f"{path}:{top[name].line}", f"{name}: {_ELSEWHERE[name]}")


_ELSEWHERE: Final = {
    "accounts": "foldmq has one space of topics: list the users in authorization, or create them "
    "with foldmq passwd",
    "operator": "JWTs of NATS are not accepted: see jwt_keys and auth_subject",
    "resolver": "JWTs of NATS are not accepted: see jwt_keys and auth_subject",
    "trusted_keys": "JWTs of NATS are not accepted: see jwt_keys and auth_subject",
    "websocket": "add a listener ws://HOST:PORT for MQTT over WebSocket",
}


def _map(value: config_parser.Value | None) -> dict[str, config_parser.Value]:
    return value.what if value is not None and isinstance(value.what, dict) else {}


def _text(block: Mapping[str, config_parser.Value], *names: str) -> str:
    """Return the first of some values as text; empty if there is none."""
    return next((str(block[name].what) for name in names if name in block), "")


def _add_listener(result: ImportedSettings, block: Mapping[str, config_parser.Value]) -> None:
    listen = _text(block, "listen")
    host, _, port = listen.rpartition(":")
    host = _text(block, "host", "net") or host or "0.0.0.0"  # noqa: S104 - as NATS Server does
    port = _text(block, "port") or port or str(_PORT)
    tls = _map(block.get("tls"))
    bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
    made: dict[str, object] = {"address": f"{'tls://' if tls else ''}{bracketed}:{port}"}
    for theirs, ours in (("cert_file", "tls_cert"), ("key_file", "tls_key")):
        if theirs in tls:
            made[ours] = str((result.source.parent / _text(tls, theirs)).absolute())
    maps = _text(tls, "verify_and_map") == "True"
    if maps or _text(tls, "verify") == "True":
        made["tls_client_certs"] = "required"
        made["tls_client_ca"] = str((result.source.parent / _text(tls, "ca_file")).absolute())
        if maps:
            made["tls_identity"] = "email"
            result.remark(
                f"{result.source}:{tls['verify_and_map'].line}",
                "verify_and_map: tls_identity takes one kind of name, here email addresses; NATS "
                "Server also tries DNS names and the distinguished name",
            )
    result.listeners.append(made)
    for name, value in block.items():
        place = f"{result.source}:{value.line}"
        if name in _SAME:
            result.settings[name] = value.what
        elif name in _STORAGE:
            result.remark(place, f"{name}: {_STORAGE[name]}")
        elif name not in ("listen", "host", "net", "port", "tls", "authorization", "no_auth_user"):
            result.unmatch(place, f"mqtt.{name}: has no counterpart")


def _add_users(
    result: ImportedSettings,
    top: Mapping[str, config_parser.Value],
    block: Mapping[str, config_parser.Value],
) -> None:
    path = result.source
    authorization = {**_map(top.get("authorization"))}
    line = top["authorization"].line if "authorization" in top else 1
    own = _map(block.get("authorization")) or authorization
    name, password = _text(own, "user", "username"), _text(own, "password", "pass")
    if "token" in own:
        result.unmatch(
            f"{path}:{own['token'].line}",
            "token: clients need a user name: create a user with foldmq passwd",
        )
    if name:
        _add_password(result, f"{path}:{line}", name, password)
    users: dict[str, config_parser.Value] = {
        name: authorization[name]
        for name in ("users", "default_permissions")
        if name in authorization
    }
    lines: list[str] = []
    if isinstance(users.get("users", config_parser.Value("", 0)).what, list):
        users["users"] = config_parser.Value(list(_mqtt_users(users["users"])), users["users"].line)
        for user, number in users_file.listed_users(users, str(path)):
            if user.nkey:
                result.unmatch(f"{path}:{number}", "an nkey: MQTT clients cannot use it")
                continue
            _add_password(result, f"{path}:{number}", user.name, user.password)
            lines += _rules_of(result, user, number)
    if lines:
        if name:
            lines += ["", "[[allow]]", f"users = {text.toml_value([name])}", 'both = ["#"]']
        result.permissions = "\n".join([f"# Translated from {path}.", *lines]) + "\n"
    anonymous = not name and not users and "token" not in own and "accounts" not in top
    result.settings["allow_anonymous"] = anonymous
    result.needs_users = not anonymous
    if "no_auth_user" in block or "no_auth_user" in top:
        value = block.get("no_auth_user") or top["no_auth_user"]
        result.unmatch(
            f"{path}:{value.line}",
            f"no_auth_user {value.what}: set allow_anonymous = true, and give anonymous clients "
            "permissions with anonymous = true",
        )


def _mqtt_users(users: config_parser.Value) -> Iterator[config_parser.Value]:
    """Yield the users that may connect with MQTT, without the types of their connections."""
    for user in users.what if isinstance(users.what, list) else ():
        fields = dict(_map(user))
        types = fields.pop("allowed_connection_types", None) or fields.pop("connection_types", None)
        if types is not None and isinstance(types.what, list):
            names = {str(kind.what).upper() for kind in types.what}
            if not names & _MQTT:
                continue
        fields.pop("account", None)
        yield config_parser.Value(fields, user.line)


def _add_password(result: ImportedSettings, place: str, name: str, password: str) -> None:
    if password.startswith("$2") or not password:
        result.unmatch(
            place,
            f"user {name}: the password is hashed by bcrypt, which foldmq cannot verify: set one "
            f"with foldmq passwd {quote(str(result.target / 'users'))} {quote(name)}",
        )
    else:
        result.passwords[name] = password


def _rules_of(result: ImportedSettings, user: NatsUser, number: int) -> Iterator[str]:
    """Yield the permissions of a user as rules."""
    place = f"{result.source}:{number}"
    sections = (
        ("publish", user.permissions.publish),
        ("subscribe", user.permissions.subscribe),
    )
    users = f"users = {text.toml_value([user.name])}"
    for table, filters_of in (("allow", _allowed), ("deny", _denied)):
        lines = [
            f"{action} = {text.toml_value(filters)}"
            for action, rules in sections
            if (filters := list(filters_of(result, place, rules)))
        ]
        if lines:
            yield from ("", f"[[{table}]]", users, *lines)
    if user.permissions.responses:
        result.unmatch(place, f"user {user.name}: allow_responses has no counterpart")


def _allowed(result: ImportedSettings, place: str, rules: SubjectRules) -> Iterator[str]:
    if not rules.allow:
        yield "#"
    yield from _filters(result, place, rules.allow)


def _denied(result: ImportedSettings, place: str, rules: SubjectRules) -> Iterator[str]:
    return _filters(result, place, rules.deny)


def _filters(result: ImportedSettings, place: str, subjects: tuple[str, ...]) -> Iterator[str]:
    """Yield subjects as topic filters; a subject that has none is noted."""
    for subject in subjects:
        if subject.startswith(_INTERNAL):
            continue
        words = {"*": "+", ">": "#"}
        levels = [words.get(token, token) for token in subject.split(".")]
        topic_filter = "/".join(levels).replace("//", ".").replace("%", "%%")
        try:
            validate_topic_filter(topic_filter)
        except TopicError:
            topic_filter = ""
        if topic_filter and "/" not in "".join(levels) and " " not in subject:
            yield topic_filter
        else:
            result.unmatch(place, f"subject {subject}: cannot be written as a topic filter")
