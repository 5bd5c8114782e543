"""The settings of a connection to another broker, with mosquitto's names for the same things.

``read_connection`` reads a table ``[connection.NAME]`` of the TOML file, whose values may have any
type. Times are in seconds and sizes in bytes.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from outbox.mqtt.outbound import MAX_WINDOW
from outbox.mqtt.topic_lines import TopicLine, TopicLineError, parse_topic_line
from protocol.errors import FoldmqError
from protocol.mqtt.connect_decoder import MQTT_3_1, MQTT_3_1_1, MQTT_5
from protocol.mqtt.topics import TopicError, validate_topic_name

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What names a connection."""

BRIDGE_CLIENT: Final = "bridge."
"""Beginning of the client identifiers with which bridges publish messages in."""

_VERSIONS: Final = {"mqttv50": MQTT_5, "mqttv311": MQTT_3_1_1, "mqttv31": MQTT_3_1}
_TLS_VERSIONS: Final = ("tlsv1.2", "tlsv1.3")
_PORT, _TLS_PORT = 1883, 8883
_LONG_CLIENT_ID: Final = 23
_NEVER: Final = 0xFFFFFFFF

LEFT_OUT: Final[Mapping[str, str]] = {
    "bridge_attempt_unsubscribe": "what no topic line names is dropped",
    "bridge_capath": "name a file with the CA certificates in bridge_cafile",
    "bridge_identity": "TLS needs certificates: see bridge_certfile",
    "bridge_max_topic_alias": "topics are sent in full",
    "bridge_psk": "TLS needs certificates: see bridge_certfile",
    "bridge_require_ocsp": "use certificates that are valid for a short time",
    "bridge_tls_engine": "keys are files: see bridge_keyfile",
    "idle_timeout": "a connection stays open",
    "local_cleansession": "it follows the session at the other broker",
    "local_clientid": "it is bridge.NAME",
    "notifications_local_only": "with notifications = false the other broker gets none",
    "start_type": "a connection is always open, as with start_type automatic",
    "threshold": "a connection stays open",
}
"""Options of mosquitto that are not supported, and what to do instead."""


class BridgeOptionError(FoldmqError, ValueError):
    """A setting of a connection is wrong: one line, with its name and the remedy."""


class PeerAddress(NamedTuple):
    """An address of the other broker."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return ``host:port``, or ``[host]:port`` for IPv6."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PeerTls:
    """TLS of a connection; files are PEM, and are read at each attempt to connect."""

    authorities: Path | None = None
    """CA certificates; None: those of the system."""
    certificate: Path | None = None
    """Certificate of this broker as a client."""
    key: Path | None = None
    minimum_version: str = "tlsv1.2"
    alpn: str | None = None
    insecure: bool = False
    """Do not check that the certificate is for the host."""


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """A connection to another broker."""

    name: str
    addresses: tuple[PeerAddress, ...]
    lines: tuple[TopicLine, ...]
    version: int = MQTT_5
    """Protocol level: 3, 4 or 5."""
    client_id: str | None = None
    """None: NAME.LOG."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: Path | None = None
    """Read at each attempt to connect."""
    tls: PeerTls | None = None
    clean_session: bool = False
    session_expiry: int = _NEVER
    keep_alive: int = 60
    max_inflight: int = 0
    """Unacknowledged messages; 0: 20 before MQTT 5, and what the other broker allows in MQTT 5."""
    receive_maximum: int = 100
    """Unacknowledged messages in that the other broker may send (MQTT 5)."""
    max_packet: int = 1024 * 1024
    """Size in bytes of the largest packet that the other broker may send."""
    local_username: str | None = None
    """User of this broker whose permissions messages in have; None: an anonymous client."""
    local_password: str | None = field(default=None, repr=False)
    round_robin: bool = False
    bind_address: str | None = None
    tcp_keepalive: tuple[int, int, int] | None = None
    """Idle seconds, seconds between probes, number of probes."""
    restart_base: float = 5.0
    restart_cap: float = 30.0
    try_private: bool = True
    notifications: bool = True
    notification_topic: str | None = None
    """None: $SYS/broker/connection/CLIENT/state."""
    outgoing_retain: bool = True

    @property
    def local_client_id(self) -> str:
        """The client identifier at this broker."""
        return BRIDGE_CLIENT + self.name

    def peer_client_id(self, log: str) -> str:
        """Return the client identifier at the other broker."""
        return self.client_id or f"{self.name}.{log}"

    def state_topic(self, log: str) -> str:
        """Return the topic of the notifications."""
        client_id = self.peer_client_id(log)
        return self.notification_topic or f"$SYS/broker/connection/{client_id}/state"


def read_connection(name: str, table: Mapping[str, Any]) -> ConnectionOptions:
    """Read the table ``[connection.NAME]``; raises BridgeOptionError."""
    if not NAME.fullmatch(name):
        raise BridgeOptionError(f"{name!r} is not a name: use at most 64 letters, digits, _ and -")
    for key in table:
        if key in LEFT_OUT:
            raise BridgeOptionError(f"{key}: not supported: {LEFT_OUT[key]}")
        if key not in _READ:
            close = difflib.get_close_matches(key, [*_READ, "addresses", "topic"], n=1)
            hint = f' (did you mean "{close[0]}"?)' if close else ""
            raise BridgeOptionError(f'unknown setting "{key}"{hint}')
    values: dict[str, Any] = {}
    for key, (target, read) in _READ.items():
        if key in table:
            try:
                values[target] = read(table[key])
            except (TypeError, ValueError) as error:
                raise BridgeOptionError(f"{key}: {error}") from None
    for key, target in (("addresses", "addresses"), ("topic", "lines")):
        if not values.get(target):
            raise BridgeOptionError(f"{key} is missing")
    return _options(name, values)


def _options(name: str, values: dict[str, Any]) -> ConnectionOptions:
    tls = {key.removeprefix("tls_"): values.pop(key) for key in [*values] if key[:4] == "tls_"}
    system = tls.pop("system", False)
    if system and "authorities" in tls:
        raise BridgeOptionError("bridge_tls_use_os_certs and bridge_cafile: set one of them")
    if "key" in tls and "certificate" not in tls:
        raise BridgeOptionError("bridge_keyfile also needs bridge_certfile")
    if tls and not (system or "authorities" in tls):
        raise BridgeOptionError("TLS also needs bridge_cafile, or bridge_tls_use_os_certs = true")
    encrypted = bool(tls) or system
    values["addresses"] = tuple(
        PeerAddress(host, port if port is not None else _TLS_PORT if encrypted else _PORT)
        for host, port in values["addresses"]
    )
    if encrypted:
        values["tls"] = PeerTls(**tls)
    if "password" in values and "password_file" in values:
        raise BridgeOptionError("remote_password and remote_password_file: set one of them")
    has_password = "password" in values or "password_file" in values
    if has_password and "username" not in values:
        raise BridgeOptionError("a password also needs remote_username")
    if "local_password" in values and "local_username" not in values:
        raise BridgeOptionError("local_password also needs local_username")
    version = values.get("version", MQTT_5)
    if "session_expiry" in values and version != MQTT_5:
        raise BridgeOptionError(
            "bridge_session_expiry_interval also needs bridge_protocol_version = mqttv50"
        )
    if "session_expiry" in values and values.get("clean_session"):
        raise BridgeOptionError(
            "bridge_session_expiry_interval and cleansession = true: set one of them"
        )
    if version == MQTT_3_1 and len(values.get("client_id", name)) > _LONG_CLIENT_ID:
        raise BridgeOptionError(
            f"remote_clientid: MQTT 3.1 allows at most {_LONG_CLIENT_ID} characters"
        )
    base, cap = values.pop("restart", (5.0, 30.0))
    return ConnectionOptions(name, **values, restart_base=base, restart_cap=cap)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("must be a text")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("must be true or false")
    return value


def _path(value: object) -> Path:
    return Path(_text(value)).expanduser()


def _whole(least: int, most: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return value

    return read


def _choice(choices: Mapping[str, Any]) -> Callable[[object], Any]:
    def read(value: object) -> Any:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, not {value!r}")
        return choices[str(value)]

    return read


def _addresses(value: object) -> list[tuple[str, int | None]]:
    return [_address(text) for text in _texts(value)]


def _address(text: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(\[([0-9A-Fa-f:.]+)\]|[^\s:/\[\]]+)(?::([0-9]{1,5}))?", text)
    port = int(match[3]) if match is not None and match[3] else None
    if match is None or port == 0 or (port or 0) > 65_535:
        raise ValueError(f"{text!r} is not HOST, HOST:PORT or [IPV6]:PORT")
    return match[2] or match[1], port


def _lines(value: object) -> tuple[TopicLine, ...]:
    lines = []
    for text in _texts(value):
        try:
            lines.append(parse_topic_line(text))
        except TopicLineError as error:
            raise ValueError(str(error)) from None
    return tuple(lines)


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise TypeError("must be a list of texts")
    return value


def _restart(value: object) -> tuple[float, float]:
    words = str(value).split() if isinstance(value, str | int) else []
    numbers = [int(word) for word in words if word.isdecimal() and len(word) < 6]
    if len(numbers) != len(words) or len(words) not in (1, 2):
        raise ValueError('must be "BASE CAP" or one whole number, in seconds')
    base, cap = numbers[0], numbers[-1]
    if not 1 <= base <= cap <= 3600:
        raise ValueError("must be from 1 to 3600 seconds, the base first")
    return base, cap


def _tcp_keepalive(value: object) -> tuple[int, int, int]:
    words = value.split() if isinstance(value, str) else []
    if len(words) != 3 or not all(word.isdecimal() and 0 < int(word) < 32_768 for word in words):
        raise ValueError('must be "IDLE INTERVAL COUNTER"')
    idle, interval, count = map(int, words)
    return idle, interval, count


def _topic(value: object) -> str:
    topic = _text(value)
    try:
        validate_topic_name(topic)
    except TopicError as error:
        raise ValueError(error.reason) from None
    return topic


_READ: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "addresses": ("addresses", _addresses),
    "topic": ("lines", _lines),
    "bridge_protocol_version": ("version", _choice(_VERSIONS)),
    "remote_clientid": ("client_id", _text),
    "remote_username": ("username", _text),
    "remote_password": ("password", _text),
    "remote_password_file": ("password_file", _path),
    "bridge_cafile": ("tls_authorities", _path),
    "bridge_certfile": ("tls_certificate", _path),
    "bridge_keyfile": ("tls_key", _path),
    "bridge_alpn": ("tls_alpn", _text),
    "bridge_tls_use_os_certs": ("tls_system", _flag),
    "bridge_tls_version": ("tls_minimum_version", _choice({name: name for name in _TLS_VERSIONS})),
    "bridge_insecure": ("tls_insecure", _flag),
    "cleansession": ("clean_session", _flag),
    "bridge_session_expiry_interval": ("session_expiry", _whole(0, _NEVER)),
    "keepalive_interval": ("keep_alive", _whole(5, 65_535)),
    "bridge_receive_maximum": ("receive_maximum", _whole(1, 65_535)),
    "bridge_max_packet_size": ("max_packet", _whole(1024, 268_435_460)),
    "local_username": ("local_username", _text),
    "local_password": ("local_password", _text),
    "max_inflight_messages": ("max_inflight", _whole(1, MAX_WINDOW)),
    "round_robin": ("round_robin", _flag),
    "bridge_bind_address": ("bind_address", _text),
    "bridge_tcp_keepalive": ("tcp_keepalive", _tcp_keepalive),
    "restart_timeout": ("restart", _restart),
    "try_private": ("try_private", _flag),
    "notifications": ("notifications", _flag),
    "notification_topic": ("notification_topic", _topic),
    "bridge_outgoing_retain": ("outgoing_retain", _flag),
}
"""Setting -> field of ConnectionOptions, or of PeerTls after ``tls_``, and what reads its value."""
