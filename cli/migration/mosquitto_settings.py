"""Translates ``mosquitto.conf`` (mosquitto.conf(5), version 2.1) to settings of foldmq.

The file has an option on each line. Options before the first ``listener`` are about the default
listener, those after it about the listener before them; ``connection`` begins a bridge in the same
way. All other options are about the broker, wherever they are. With ``per_listener_settings``, the
options of authentication are about listeners as well.
"""

import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Final, NamedTuple

from cli.migration.imported_settings import ImportedSettings
from cli.settings.setting_sources import ConfigError, read_text
from cli.users import acl_import
from outbox.mqtt.options import LEFT_OUT, BridgeOptionError, read_connection
from outbox.mqtt.topic_lines import TopicLineError, parse_topic_line

_MAX_PACKET: Final = 268_435_460
_MIN_PACKET: Final = 1024
_HEADROOM: Final = 1024
"""Bytes for topic and properties by which a packet may exceed ``message_size_limit``."""
_DEPTH: Final = 10
_EXPIRY: Final = re.compile(r"([0-9]+)([hdwmy])")
_HOURS: Final = {"h": 1, "d": 24, "w": 24 * 7, "m": 24 * 30, "y": 24 * 365}

_ACCESS: Final = frozenset({"acl_file", "allow_anonymous", "password_file"})
_FILE_PLUGINS: Final = ("mosquitto_acl_file.so", "mosquitto_password_file.so")
"""Plug-ins of version 2.1 with an option of their own for what ``_PLUGIN_FILES`` names."""
_PLUGIN_FILES: Final[Mapping[str, str]] = {
    "plugin_opt_acl_file": "acl_file",
    "plugin_opt_password_file": "password_file",
}
_SQLITE: Final = "mosquitto_persist_sqlite.so"
_NOT_NEEDED: Final[Mapping[str, str]] = {
    "autosave_interval": "each message is on disk before it is acknowledged",
    "autosave_on_changes": "each message is on disk before it is acknowledged",
    "connection_messages": "the event log has all connections: foldmq log",
    "dhparamfile": "OpenSSL's own parameters are used",
    "log_dest": "foldmq logs to stderr, which systemd and containers collect",
    "log_facility": "foldmq logs to stderr",
    "log_timestamp": "log lines always have a time",
    "log_timestamp_format": "log lines have times of ISO 8601",
    "per_listener_settings": "settings can be written below a listener",
    "persistence_file": "foldmq keeps its state in data_dir",
    "persistence_location": "foldmq keeps its state in data_dir",
    "pid_file": "foldmq.lock in data_dir has the process id",
    "set_tcp_nodelay": "foldmq always sets it",
    "socket_domain": "the address decides",
    "user": "start foldmq as this user",
    "websockets_log_level": "log_level is for all parts",
    "websockets_headers_size": "foldmq has a fixed limit",
}
_ADVICE: Final[Mapping[str, str]] = {
    "auth_plugin": "plug-ins are not loaded: see tokens (jwt_keys) and the auth callout "
    "(auth_subject)",
    "auto_id_prefix": "foldmq chooses the client identifiers that it assigns",
    "check_retain_source": "retained messages stay when their publisher loses the permission: see "
    "clear_denied_retained",
    "capath": "name a file with the CA certificates in tls_client_ca",
    "max_inflight_bytes": "see max_outbound_bytes",
    "memory_limit": "see max_queued_bytes and max_unread_bytes",
    "mount_point": "topics have no prefix by listener",
    **dict.fromkeys(
        ("global_plugin", "plugin"),
        "plug-ins are not loaded: see tokens (jwt_keys) and the auth callout (auth_subject); users "
        "and roles of the dynamic security plug-in belong into password_file and permissions",
    ),
    _SQLITE: "its database is not read: copy the retained messages with 'foldmq import retained' "
    "while Mosquitto runs; clients subscribe again",
    "psk_file": "TLS needs certificates",
    "psk_hint": "TLS needs certificates",
    "queue_qos0_messages": "messages at QoS 0 are not queued for offline clients",
    "retain_expiry_interval": "clients of MQTT 5 set the expiry of a message",
    "use_username_as_clientid": "permissions can name users, %u in topics",
}
"""What to do about an option without a counterpart."""
_PLUGINS: Final = ("auth_plugin", "global_plugin", "plugin")
_OFF: Final = ("false", "0", "")
"""Values with which most options without a counterpart have no effect."""


class _NoCounterpart(Exception):  # noqa: N818 - becomes a line of the report
    """A value that cannot be translated: the message says what foldmq does instead."""


class _Option(NamedTuple):
    place: str
    """File and line."""
    name: str
    value: str


@dataclass(slots=True)
class _Listener:
    """A listener, or the default one."""

    place: str
    port: str = "1883"
    host: str = ""
    options: dict[str, _Option] = field(default_factory=dict)


def import_mosquitto_settings(result: ImportedSettings) -> Path | None:
    """Translate the file ``result.source``; return the file with Mosquitto's state, if it has one.

    Raises ConfigError if a file cannot be read.
    """
    return _Translation(result).run()


def _options(path: Path, depth: int = 0) -> Iterator[_Option]:
    """Yield the options of a file and of the files that it includes."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.startswith("#") or not line.strip():
            continue
        name, _, value = line.strip().partition(" ")
        option = _Option(f"{path}:{number}", name, value.strip())
        if name != "include_dir":
            yield option
            continue
        if depth >= _DEPTH:
            raise ConfigError(f"{option.place}: include_dir is nested too deeply")
        folder = Path(option.value)
        if not folder.is_dir():
            raise ConfigError(f"{option.place}: there is no directory {folder}")
        for file in sorted(folder.glob("*.conf")):
            yield from _options(file, depth + 1)


class _Translation:
    def __init__(self, result: ImportedSettings) -> None:
        self._result = result
        self._global: dict[str, _Option] = {}
        self._default = _Listener(str(result.source))
        self._listeners: list[_Listener] = []
        self._connections: list[ImportedConnection] = []
        self._local = False
        """Whether the file has no listener: Mosquitto 2 then serves this machine, and anybody."""

    def run(self) -> Path | None:
        self._collect()
        listeners = self._listeners
        if self._default.options or not listeners:
            listeners = [self._default, *listeners]
        self._local = listeners == [self._default] and not self._default.options
        if self._local:
            self._default.host = "127.0.0.1"  # as Mosquitto 2 without a listener in its file
        self._add_access(listeners)
        for listener in listeners:
            self._add_listener(listener)
        for option in self._global.values():
            self._add_global(option)
        for connection in self._connections:
            connection.finish()
        return self._database()

    def _collect(self) -> None:
        """Assign the options to the broker, its listeners and its connections."""
        options = list(_options(self._result.source))
        apart = any(
            setting.name == "per_listener_settings" and _is_true(setting) for setting in options
        )
        listener, bridge = self._default, False
        for option in options:
            name = _PLUGIN_FILES.get(option.name, option.name)
            option = option._replace(name=name)
            if name in _PLUGINS and option.value.endswith(_FILE_PLUGINS):
                continue
            if name == "listener":
                port, _, host = option.value.partition(" ")
                listener = _Listener(option.place, port, host.strip())
                self._listeners.append(listener)
                bridge = False
            elif name == "connection":
                made = ImportedConnection(option.value, option.place, self._result)
                self._connections.append(made)
                bridge = True
            elif bridge and name not in _KNOWN:
                self._connections[-1].add(option.place, name, option.value, self._path)
            elif name in ("port", "bind_address"):
                self._default.options[name] = option
                part = "port" if name == "port" else "host"
                setattr(self._default, part, option.value)
            elif name in _LISTENER or (apart and name in _ACCESS):
                before = listener.options.get(name) if name == "websockets_origin" else None
                if before is not None:
                    option = option._replace(value=f"{before.value} {option.value}")
                listener.options[name] = option
            elif name in self._global and name in ("log_type", *_PLUGINS, "log_dest"):
                self._global[f"{name} {len(self._global)}"] = option
            else:
                self._global[name] = option

    # Listeners.

    def _add_listener(self, listener: _Listener) -> None:
        result, options = self._result, listener.options
        values = {name: setting.value for name, setting in options.items()}
        made: dict[str, object] = {}
        encrypted = "certfile" in options or "keyfile" in options
        web = values.get("protocol") == "websockets"
        made["address"] = _address(listener, web=web, encrypted=encrypted)
        for name, option in options.items():
            try:
                self._add_listener_option(made, name, option, encrypted=encrypted)
            except _NoCounterpart as why:
                result.unmatch(option.place, f"{name} {option.value}: {why}")
        if encrypted:
            self._add_client_certificates(made, values)
        result.listeners.append(made)

    def _add_listener_option(
        self, made: dict[str, object], name: str, option: _Option, *, encrypted: bool
    ) -> None:
        value = option.value
        if name in _TLS_FILES:
            if encrypted:
                made[_TLS_FILES[name]] = str(self._path(value))
        elif name in _OF_LISTENER:
            ours, convert = _OF_LISTENER[name]
            converted = convert(value)
            if converted is not None:
                where = self._result.settings if ours.endswith(("aliases", "_out")) else made
                where[ours] = converted
        elif name not in _ELSEWHERE:
            self._leave_out(option)

    def _add_client_certificates(self, made: dict[str, object], values: dict[str, str]) -> None:
        if values.get("require_certificate") != "true":
            return
        made["tls_client_certs"] = "required"
        for name, ours in (("cafile", "tls_client_ca"), ("crlfile", "tls_crl")):
            if name in values:
                made[ours] = str(self._path(values[name]))
        for name, part in (("use_identity_as_username", "cn"), ("use_subject_as_username", "dn")):
            if values.get(name) == "true":
                made["tls_identity"] = part

    # Users and permissions.

    def _add_access(self, listeners: list[_Listener]) -> None:
        """Add users, permissions and anonymous access, of the broker or by listener."""
        result = self._result
        files: dict[str, _Option] = {}
        for name in ("password_file", "acl_file"):
            options = [
                access
                for source in (self._global, *(listener.options for listener in listeners))
                if (access := source.pop(name, None)) is not None
            ]
            for option in options:
                if files.setdefault(name, option).value != option.value:
                    result.unmatch(
                        option.place,
                        f"{name} {option.value}: foldmq has one for all listeners, and uses "
                        f"{files[name].value}",
                    )
        if (passwords := files.get("password_file")) is not None:
            result.settings["password_file"] = str(self._path(passwords.value))
        if (rules := files.get("acl_file")) is not None:
            path = self._path(rules.value)
            translated = acl_import.read_acl(path)
            result.permissions = translated.toml
            for number, reason in translated.problems:
                result.unmatch(f"{path}:{number}", reason)
        anonymous = self._global.pop("allow_anonymous", None)
        result.settings["allow_anonymous"] = (
            self._local if anonymous is None else _is_true(anonymous)
        )
        names = ("use_identity_as_username", "use_subject_as_username")
        by_certificate = any(name in listener.options for listener in listeners for name in names)
        for listener in listeners:
            own = listener.options.pop("allow_anonymous", None)
            if own is not None:
                listener.options["listener_allow_anonymous"] = own._replace(
                    name="listener_allow_anonymous"
                )
        if not (passwords or by_certificate or result.settings["allow_anonymous"]):
            result.needs_users = True
            result.unmatch(
                str(result.source),
                "no password_file, and allow_anonymous is not true: no client can connect until "
                f"you create users with foldmq passwd {quote(str(result.target / 'users'))} USER",
            )

    # The broker.

    def _add_global(self, option: _Option) -> None:
        translate = _GLOBAL.get(option.name)
        if translate is None:
            self._leave_out(option)
            return
        name, convert = translate
        try:
            value = convert(option.value)
        except (_NoCounterpart, ValueError) as why:
            reason = why if isinstance(why, _NoCounterpart) else "the value is not valid"
            self._result.unmatch(option.place, f"{option.name} {option.value}: {reason}")
            return
        if value is not None:
            self._result.settings[name] = value
        if option.name in _OTHERWISE:
            self._result.remark(option.place, f"{option.name}: {_OTHERWISE[option.name]}")

    def _leave_out(self, option: _Option) -> None:
        name = option.name
        if name in _NOT_NEEDED:
            self._result.remark(option.place, f"{name}: {_NOT_NEEDED[name]}")
        elif name.startswith(("plugin_opt_", "auth_opt_")):
            pass  # the plug-in is named
        elif option.value not in _OFF:
            key = _SQLITE if option.value.endswith(_SQLITE) else name
            why = _ADVICE.get(key, "has no counterpart")
            self._result.unmatch(option.place, f"{name} {option.value}: {why}")

    def _database(self) -> Path | None:
        persistence = self._global.get("persistence")
        if persistence is None or not _is_true(persistence):
            return None
        place, name = (
            option.value if (option := self._global.get(key)) is not None else default
            for key, default in (
                ("persistence_location", ""),
                ("persistence_file", "mosquitto.db"),
            )
        )
        return self._path(place or ".") / name

    def _path(self, value: str) -> Path:
        """Return a path; relative ones begin where Mosquitto was started, or at its file."""
        here = self._result.source.parent / value
        return (here if here.exists() else Path(value)).absolute()


def _address(listener: _Listener, *, web: bool, encrypted: bool) -> str:
    if listener.port == "0" and listener.host:
        return f"unix:{listener.host}"
    host = listener.host
    domain = listener.options.get("socket_domain")
    if not host:
        four = (domain is not None and domain.value == "ipv4") or not socket.has_dualstack_ipv6()
        host = "0.0.0.0" if four else "::"  # noqa: S104 - as Mosquitto does
    if ":" in host:
        host = f"[{host}]"
    scheme = ("wss://" if encrypted else "ws://") if web else ("tls://" if encrypted else "")
    return f"{scheme}{host}:{listener.port}"


def _is_true(option: _Option) -> bool:
    return option.value.lower() in ("true", "1")


def _number(value: str) -> int:
    """Return a number; raises _NoCounterpart."""
    try:
        return int(value)
    except ValueError:
        raise _NoCounterpart("not a number") from None


def _positive(value: str) -> int | None:
    """Return a limit; 0, which stands for none, is left to the default."""
    return _number(value) or None


def _inflight(value: str) -> int:
    return min(_number(value) or 65_535, 65_535)


def _packet_size(value: str) -> int:
    return min(max(_number(value), _MIN_PACKET), _MAX_PACKET)


def _message_size(value: str) -> int:
    return min(_number(value) + _HEADROOM, _MAX_PACKET) if _number(value) else _MAX_PACKET


def _expiration(value: str) -> str:
    match = _EXPIRY.fullmatch(value)
    if match is None:
        raise _NoCounterpart("not a time such as 14d")
    return f"{int(match[1]) * _HOURS[match[2]]}h"


def _tls_version(value: str) -> str:
    if value not in ("tlsv1.2", "tlsv1.3"):
        raise _NoCounterpart("foldmq accepts TLS 1.2 and 1.3 only")
    return value.removeprefix("tlsv")


def _proxy(value: str) -> bool | None:
    return None if value in _OFF else True


def _connections(value: str) -> int | None:
    return _number(value) if _number(value) > 0 else None


def _without(refused: Callable[[str], bool], why: str) -> tuple[str, Callable[[str], None]]:
    """Return the translation of an option that has a counterpart unless its value is refused."""

    def check(value: str) -> None:
        if refused(value):
            raise _NoCounterpart(why)

    return "", check


def _log_level(value: str) -> str | None:
    return "debug" if value in ("debug", "all") else None


def _count(value: str) -> int:
    return max(0, _number(value))


_TLS_FILES: Final = {"certfile": "tls_cert", "keyfile": "tls_key"}
_CERTIFICATES: Final = (
    "cafile",
    "crlfile",
    "require_certificate",
    "use_identity_as_username",
    "use_subject_as_username",
)
_ELSEWHERE: Final = (*_CERTIFICATES, "port", "bind_address")
"""Options that are translated together with others."""
_OF_LISTENER: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "ciphers": ("tls_ciphers", str),
    "enable_proxy_protocol": ("proxy_protocol", _proxy),
    "listener_allow_anonymous": ("allow_anonymous", lambda value: value == "true"),
    "max_connections": ("max_connections", _connections),
    "max_qos": _without(
        lambda value: value != "2", "foldmq accepts QoS 0 to 2; see reject_qos2_publish"
    ),
    "max_topic_alias": ("max_topic_aliases", _count),
    "max_topic_alias_broker": ("topic_aliases_out", _count),
    "protocol": _without(
        lambda value: value not in ("mqtt", "websockets"),
        "foldmq serves MQTT over TCP and WebSocket",
    ),
    "tls_version": ("tls_min_version", _tls_version),
    "websockets_origin": ("ws_origins", str.split),
}
_GLOBAL: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "allow_zero_length_clientid": _without(
        lambda value: value == "false", "clients without a client identifier are assigned one"
    ),
    "global_max_clients": ("max_sessions", _positive),
    "global_max_connections": ("max_connections", _positive),
    "log_type": ("log_level", _log_level),
    "max_inflight_messages": ("max_ack_pending", _inflight),
    "max_keepalive": ("max_keep_alive", _count),
    "max_packet_size": ("max_packet_size", _packet_size),
    "max_queued_bytes": ("max_queued_bytes", _positive),
    "max_queued_messages": ("max_queued_messages", _positive),
    "message_size_limit": ("max_packet_size", _message_size),
    "persistence": _without(
        lambda value: value not in ("true", "1"), "foldmq always keeps its state on disk"
    ),
    "persistent_client_expiration": ("session_expiry", _expiration),
    "retain_available": _without(
        lambda value: value == "false",
        "foldmq always keeps retained messages: deny them by permissions",
    ),
    "sys_interval": ("sys_interval", _count),
}
_OTHERWISE: Final[Mapping[str, str]] = {
    "max_inflight_messages": "counts per subscription, in Mosquitto per client",
    "max_packet_size": "at least 1024",
    "message_size_limit": "1 KiB is added for topic and properties, because max_packet_size counts "
    "the whole packet",
}
_LISTENER: Final = {
    *_ELSEWHERE,
    *_OF_LISTENER,
    *_TLS_FILES,
    *("accept_protocol_versions", "bind_interface", "capath", "ciphers_tls1.3", "dhparamfile"),
    *("http_dir", "mount_point", "psk_hint", "socket_domain", "tls_engine", "tls_keyform"),
    *("use_username_as_clientid", "websockets_headers_size", "websockets_log_level"),
}
"""Options of a listener."""
_KNOWN: Final = {*_ACCESS, *_ADVICE, *_GLOBAL, *_LISTENER, *_NOT_NEEDED}
"""Options that are not those of a bridge."""


_ALIASES: Final = {
    "address": "addresses",
    "clientid": "remote_clientid",
    "password": "remote_password",
    "username": "remote_username",
}
_FILES: Final = ("bridge_cafile", "bridge_certfile", "bridge_keyfile")
_FLAGS: Final = frozenset(
    {
        "bridge_insecure",
        "bridge_outgoing_retain",
        "bridge_tls_use_os_certs",
        "cleansession",
        "notifications",
        "round_robin",
        "try_private",
    }
)
_NUMBERS: Final = frozenset(
    {
        "bridge_max_packet_size",
        "bridge_receive_maximum",
        "bridge_session_expiry_interval",
        "keepalive_interval",
        "max_inflight_messages",
    }
)
_NO_EFFECT: Final = {
    "bridge_attempt_unsubscribe": "true",
    "bridge_max_packet_size": "0",
    "local_cleansession": "false",
    "start_type": "automatic",
}
"""Options that say with this value what foldmq does anyway."""


class ImportedConnection:
    """The options of a ``connection``, as they are read."""

    def __init__(self, name: str, place: str, result: ImportedSettings) -> None:
        self._name = name
        self._place = place
        self._result = result
        self._table: dict[str, object] = {}
        self._topics: list[str] = []

    def add(self, place: str, name: str, value: str, path: Callable[[str], object]) -> None:
        """Translate an option; ``path`` returns the path that a value names."""
        name = _ALIASES.get(name, name)
        if name == "topic":
            self._add_topic(place, value)
        elif name == "addresses":
            self._table[name] = value.split()
        elif _NO_EFFECT.get(name) == value:
            pass
        elif name in LEFT_OUT:
            self._unmatch(place, f"{name} {value}: {LEFT_OUT[name]}")
        elif name in _FILES:
            self._table[name] = str(path(value))
        elif name in _FLAGS:
            self._table[name] = value.lower() in ("true", "1")
        elif name in _NUMBERS and value.isdecimal():
            self._table[name] = int(value)
        else:
            self._table[name] = value

    def _add_topic(self, place: str, value: str) -> None:
        try:
            line = parse_topic_line(value)
        except TopicLineError as error:
            self._unmatch(place, f"topic {error}")
            return
        self._topics.append(line.text)

    def finish(self) -> None:
        """Add the table to the settings, without the options that it cannot have."""
        self._table["topic"] = self._topics
        self._table.setdefault("bridge_protocol_version", "mqttv311")
        name = re.sub("[^A-Za-z0-9_-]", "-", self._name)[:64] or "bridge"
        for _ in range(len(self._table)):
            try:
                read_connection(name, self._table)
            except BridgeOptionError as error:
                wrong = _named(str(error), self._table)
                self._unmatch(self._place, str(error))
                if wrong is None or wrong in ("addresses", "topic"):
                    return
                del self._table[wrong]
            else:
                self._result.connections[name] = self._table
                return

    def _unmatch(self, place: str, what: str) -> None:
        self._result.unmatch(place, f"connection {self._name}: {what}")


def _named(error: str, names: Iterable[str]) -> str | None:
    """Return the setting that an error names first."""
    words = re.findall(r"[a-z_]+", error)
    return next((word for word in words if word in names), None)
