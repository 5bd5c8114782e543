"""Translates a ``connection`` of ``mosquitto.conf`` to a table ``[connection.NAME]``."""

import re
from collections.abc import Callable, Iterable
from typing import Final

from cli.migration.imported_settings import ImportedSettings
from outbox.mqtt.options import LEFT_OUT, BridgeOptionError, read_connection
from outbox.mqtt.topic_lines import TopicLineError, parse_topic_line

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
