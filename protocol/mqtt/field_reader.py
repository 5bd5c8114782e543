"""A reader of packets, field by field."""

from collections.abc import Mapping

from protocol.mqtt.packets import PacketType, UserProperties
from protocol.mqtt.property_codec import (
    Value,
    decode_properties,
    decode_text,
    find_properties,
    malformed,
    violation,
)
from protocol.mqtt.property_table import FROM_CLIENTS
from protocol.mqtt.protocol_error import ProtocolError
from protocol.mqtt.remaining_length import read_length
from protocol.mqtt.shared_filters import SHARE, split_share
from protocol.mqtt.topics import TopicError, validate_topic_filter, validate_topic_name

_STATEMENTS = {
    "MQTT-1.5.3-1": "MQTT-1.5.4-1",
    "MQTT-4.7.1-2": "MQTT-4.7.1-1",
    "MQTT-4.7.1-3": "MQTT-4.7.1-2",
}
"""Statements of MQTT 3.1.1 about topics -> their numbers in MQTT 5.0, where they differ."""


def read_frame(data: bytes, at: int) -> tuple[int, int] | None:
    """Read the Remaining Length that begins at ``at``; return its value and the offset of its end.

    None when ``data`` ends before it does; ``ProtocolError`` when it is longer than necessary,
    which is legal before MQTT 5, or longer than four bytes.
    """
    try:
        framed = read_length(data, at)
    except ProtocolError as error:
        raise malformed(error.text, "MQTT-1.5.5-1") from None
    if framed is not None and framed[1] - at > 1 and not data[framed[1] - 1]:
        raise malformed("Remaining Length is longer than necessary", "MQTT-1.5.5-1")
    return framed


class FieldReader:
    """Reads one field after the other; a field that exceeds the body is a ``ProtocolError``.

    Without ``v5`` errors name the statements of MQTT 3.1.1.
    """

    __slots__ = ("_packet", "_statement", "_v5", "at", "body")

    def __init__(self, body: bytes, packet: str, *, v5: bool = True) -> None:
        self.body = body
        self._packet = packet
        self._v5 = v5
        self._statement = "MQTT-4.13.1-1" if v5 else "MQTT-4.8.0-1"
        self.at = 0

    def at_end(self) -> bool:
        """Return whether all bytes have been read."""
        return self.at == len(self.body)

    def finish(self) -> None:
        """Raise ``ProtocolError`` if bytes are left."""
        extra = len(self.body) - self.at
        if extra:
            raise malformed(f"{self._packet}: {extra} bytes too many", self._statement)

    def byte(self, what: str) -> int:
        """Read a byte."""
        return self._take(1, what, self._statement)[0]

    def number(self, what: str, statement: str = "") -> int:
        """Read a Two Byte Integer."""
        return int.from_bytes(self._take(2, what, statement or self._statement), "big")

    def binary(self, what: str, statement: str) -> bytes:
        """Read Binary Data."""
        return self._take(self.number(what, statement), what, statement)

    def text(self, what: str, statement: str) -> str:
        """Read a UTF-8 Encoded String."""
        raw, name = self.binary(what, statement), f"{self._packet}: {what}"
        return decode_text(raw, name, "MQTT-1.5.4-1" if self._v5 else "MQTT-1.5.3-1")

    def packet_id(self) -> int:
        """Read a packet identifier."""
        packet_id = self.number("packet identifier", "" if self._v5 else "MQTT-2.3.1-1")
        if not packet_id:
            what = f"{self._packet} with packet identifier 0"
            raise violation(what, "MQTT-2.2.1-3") if self._v5 else malformed(what, "MQTT-2.3.1-1")
        return packet_id

    def property_bytes(self) -> bytes:
        """Read a Property Length and that many bytes, unchecked."""
        if self.body[self.at : self.at + 1] == b"\0":  # most clients send none
            self.at += 1
            return b""
        begin, self.at = find_properties(self.body, self.at, len(self.body), self._packet)
        return self.body[begin : self.at]

    def properties(self, packet: PacketType) -> tuple[Mapping[int, Value], UserProperties]:
        """Read properties: values by identifier, and the user properties.

        User properties are only checked, to save time, if there are more than ``_KEPT`` bytes.
        """
        raw = self.property_bytes()
        if not raw:
            return _NONE, ()
        user = len(raw) <= _KEPT
        return decode_properties(raw, 0, len(raw), FROM_CLIENTS[packet], packet, user=user)

    def topic_filter(self, statement: str) -> str:
        """Read a topic filter."""
        text = self.text("topic filter", statement)
        try:
            if self._v5:
                check_topic_filter(text)
            else:
                validate_topic_filter(text)
        except TopicError as error:
            raise topic_error(f"{self._packet}: ", error, v5=self._v5) from None
        return text

    def _take(self, size: int, what: str, statement: str) -> bytes:
        start = self.at
        end = start + size
        if end > len(self.body):
            raise malformed(f"{self._packet} ends inside its {what}", statement)
        self.at = end
        return self.body[start:end]


_NONE: Mapping[int, Value] = {}
_KEPT = 4096


def check_topic_filter(topic_filter: str) -> None:
    """Raise ``TopicError`` unless a filter is legal, shared or not (sections 4.7, 4.8.2)."""
    if not topic_filter.startswith(SHARE):
        validate_topic_filter(topic_filter)
        return
    name, inner = split_share(topic_filter)
    if not name:
        raise TopicError("share name is empty", "MQTT-4.8.2-1")
    if "+" in name or "#" in name:
        raise TopicError("share name contains a wildcard", "MQTT-4.8.2-2")
    if not inner:
        raise TopicError("share name without a topic filter after it", "MQTT-4.8.2-2")
    validate_topic_filter(inner)


def check_topic_name(topic: str, what: str, *, v5: bool = True) -> None:
    """Raise ``ProtocolError`` unless a topic name is legal."""
    try:
        validate_topic_name(topic)
    except TopicError as error:
        raise topic_error(what, error, v5=v5) from None


def topic_error(what: str, error: TopicError, *, v5: bool = True) -> ProtocolError:
    """Return a ``ProtocolError`` for a ``TopicError``, with the statement numbers of its level."""
    statement = _STATEMENTS.get(error.statement, error.statement) if v5 else error.statement
    return malformed(what + error.reason, statement)
