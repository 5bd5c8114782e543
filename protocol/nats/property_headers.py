"""Properties of MQTT 5 messages as headers of NATS messages, and back.

A user property becomes a header with its name if its name is valid for a header, its value is
printable ASCII, and no NATS server or client, nor foldmq, obeys a header of that name. Any other is
``Foldmq-User-N: NAME=VALUE``, both percent-encoded as in URLs, N its number among the user
properties. So no property of a client becomes a header that a server acts on, unless the operator
allowed that name.

Headers from NATS are not trusted either: headers that are not valid properties, or exceed a bound,
are left out and counted.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote, unquote_to_bytes

from protocol.mqtt.message_properties import (
    MessageProperties,
    encode_message_properties,
)
from protocol.mqtt.topics import TopicError, validate_topic_name
from protocol.nats.headers import MESSAGE_ID, Headers, encode_bytes, encode_value

CONTENT: Final = "Content-Type"
ENCODED_CONTENT: Final = "Foldmq-Content-Type"
"""A content type that is not printable ASCII, percent-encoded."""
FORMAT: Final = "Foldmq-Payload-Format"
EXPIRY: Final = "Foldmq-Message-Expiry"
RESPONSE: Final = "Foldmq-Response-Topic"
CORRELATION: Final = "Foldmq-Correlation-Data"
USER: Final = "Foldmq-User-"
TTL: Final = "Nats-TTL"

MAX_USER: Final = 80
"""Largest number of a message's user properties that are carried, in either direction; a reader
reads no more than ``MAX_HEADERS`` headers."""
MAX_PROPERTIES: Final = 48 * 1024
"""Largest size of the carried properties in bytes, in either direction: JetStream refuses messages
with more than 64 KiB of headers."""

_OBEYED: Final = ("nats-", "nmqtt-", "foldmq-", "kv-")
_OBEYED_NAMES: Final = frozenset({CONTENT.lower(), "status", "description"})
"""Client libraries of NATS keep the status line of a server as headers of these names."""
_OWN: Final = ("nmqtt-", "foldmq-")
_FOR_REQUESTERS: Final = frozenset({"nats-service-error", "nats-service-error-code"})
"""Headers with which services report errors; MQTT clients get no other headers of NATS."""

_NAME: Final = re.compile(r"[!-9;-~]+")
_VALUE: Final = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?")
_ILLEGAL: Final = re.compile("[\0-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that a header of a NATS client must not contain to become a property: MQTT clients may
close the connection for control characters."""
_SECONDS: Final = re.compile(r"[0-9]{1,10}")
_DURATION: Final = re.compile(r"(?=[0-9])(?:([0-9]{1,7})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,10})s)?")
_MAX_SECONDS: Final = 0xFFFFFFFF
_MAX_TEXT: Final = 65_535


def is_header_name(name: str) -> bool:
    """Return whether a name is valid for a header."""
    return _NAME.fullmatch(name) is not None


def is_obeyed(name: str) -> bool:
    """Return whether a NATS server or client may act on a header of this name."""
    lower = name.lower()
    return lower.startswith(_OBEYED) or lower in _OBEYED_NAMES


def is_own(name: str) -> bool:
    """Return whether only foldmq may write a header of this name."""
    lower = name.lower()
    return lower.startswith(_OWN) or lower in _OBEYED_NAMES


class PropertyLines(NamedTuple):
    """The properties of a message as headers, except its expiry."""

    lines: bytes
    """The lines, each ended by CR LF."""
    dropped: int = 0
    """Number of properties that were left out."""
    has_message_id: bool = False
    """Whether a user property is the message id for JetStream: the operator allowed it."""


def property_lines(
    properties: MessageProperties, allowed: Mapping[str, str] | None = None
) -> PropertyLines:
    """Return the headers of a message's properties.

    ``allowed`` contains the headers that user properties may set although a server acts on them:
    their names in lower case -> the names to write.
    """
    allowed = allowed or {}
    lines: list[bytes] = []
    content = properties.content_type
    if content and _VALUE.fullmatch(content):
        lines.append(_line(CONTENT, content.encode()))
    elif content is not None:
        lines.append(_line(ENCODED_CONTENT, encode_value(content)))
    if properties.payload_format:
        lines.append(_line(FORMAT, b"%d" % properties.payload_format))
    if properties.response_topic is not None:
        lines.append(_line(RESPONSE, encode_value(properties.response_topic)))
    if properties.correlation is not None:
        lines.append(_line(CORRELATION, encode_bytes(properties.correlation)))
    user = properties.user
    message_id = False
    for number, (name, value) in enumerate(user[:MAX_USER], 1):
        line, is_id = _user_line(number, name, value, allowed)
        message_id |= is_id
        lines.append(line)
    kept = _within(lines)
    dropped = max(0, len(user) - MAX_USER) + len(lines) - len(kept)
    return PropertyLines(b"".join(kept), dropped, message_id)


@lru_cache(maxsize=1024)
def expiry_lines(seconds: int, *, ttl: bool) -> bytes:
    """Return the headers for the remaining seconds; ``ttl``: JetStream obeys them too."""
    line = _line(EXPIRY, b"%d" % seconds)
    return line + _line(TTL, b"%ds" % seconds) if ttl and seconds else line


def _user_line(
    number: int, name: str, value: str, allowed: Mapping[str, str]
) -> tuple[bytes, bool]:
    """Return the header of a user property, and whether it is the message id for JetStream."""
    if _NAME.fullmatch(name) and _VALUE.fullmatch(value):
        if not is_obeyed(name):
            return _line(name, value.encode()), False
        written = allowed.get(name.lower())
        if written is not None and value:
            return _line(written, value.encode()), written.lower() == MESSAGE_ID.lower()
    encoded = encode_value(name).replace(b"=", b"%3D")
    return _line(f"{USER}{number}", b"%b=%b" % (encoded, encode_value(value))), False


def _line(name: str, value: bytes) -> bytes:
    return b"%b: %b\r\n" % (name.encode(), value)


def _within(lines: list[bytes]) -> list[bytes]:
    """Remove lines, the last ones first, that exceed the size bound."""
    if sum(map(len, lines)) <= MAX_PROPERTIES:
        return lines
    room, kept = MAX_PROPERTIES, []
    for line in lines:
        if len(line) <= room:
            kept.append(line)
            room -= len(line)
    return kept


class ReadProperties(NamedTuple):
    """The properties in the headers of a NATS message."""

    properties: MessageProperties
    dropped: int = 0
    """Number of headers that were left out: malformed, or over a bound."""

    @property
    def is_expired(self) -> bool:
        """Whether the message has no time left."""
        return self.properties.expiry == 0

    def block(self, response_topic: str | None = None) -> bytes:
        """Return the properties for a PUBLISH, with a Response Topic if they have none."""
        properties = self.properties
        if response_topic is not None and properties.response_topic is None:
            properties = properties._replace(response_topic=response_topic)
        return encode_message_properties(properties)


NO_PROPERTIES: Final = ReadProperties(MessageProperties())


def read_properties(headers: Headers, payload: bytes) -> ReadProperties:
    """Return the properties in headers; never raises.

    Of a repeated header the first one counts, except for user properties. ``payload`` is checked if
    it is declared to be text.
    """
    reader = _Reader()
    for name, value in headers.fields:
        lower = name.lower()
        if lower.startswith("foldmq-"):
            if lower.startswith(_USER):
                reader.add_encoded_user(lower, value)
            elif (key := _KEYS.get(lower)) is not None and key not in reader.values:
                reader.add(key, value)
        elif lower == _CONTENT:
            reader.values.setdefault("plain content type", value)
        elif lower == _TTL:
            reader.values.setdefault("ttl", value)
        elif not is_obeyed(name) or lower in _FOR_REQUESTERS:
            reader.add_user(name, value)
    return reader.end(payload)


_USER: Final = USER.lower()
_CONTENT: Final = CONTENT.lower()
_TTL: Final = TTL.lower()
_KEYS: Final = {
    name.lower(): name for name in (ENCODED_CONTENT, FORMAT, EXPIRY, RESPONSE, CORRELATION)
}


class _Reader:
    """Collects the properties in headers, one after the other."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._user: list[tuple[str, str]] = []
        self._room = MAX_PROPERTIES
        self._dropped = 0

    def add(self, key: str, value: str) -> None:
        """Add a header that is one property."""
        if self._fits(value):
            self.values[key] = value

    def add_user(self, name: str, value: str) -> None:
        """Add a user property."""
        illegal = _ILLEGAL.search(name) or _ILLEGAL.search(value)
        if illegal or len(self._user) >= MAX_USER:
            self._dropped += 1
        elif self._fits(name, value):
            self._user.append((name, value))

    def add_encoded_user(self, lower: str, value: str) -> None:
        """Add a user property whose name and value are encoded."""
        encoded, equals, value = value.partition("=")
        name, text = _decoded(encoded), _decoded(value)
        number = lower[len(_USER) :]
        wrong = not equals or name is None or text is None or not number.isdecimal()
        if wrong or len(self._user) >= MAX_USER:
            self._dropped += 1
        elif self._fits(encoded, value):
            self._user.append((name or "", text or ""))

    def end(self, payload: bytes) -> ReadProperties:
        """Return the collected properties."""
        content = self._text(ENCODED_CONTENT)
        plain = self.values.get("plain content type")
        if content is None and plain is not None:
            if _ILLEGAL.search(plain):
                self._dropped += 1
            elif self._fits(plain):
                content = plain
        response = self._text(RESPONSE)
        if response is not None and not _is_topic(response):
            self._dropped += 1
            response = None
        correlation: bytes | None = None
        if CORRELATION in self.values:
            correlation = unquote_to_bytes(
                self.values[CORRELATION].encode(errors="surrogateescape")
            )
        properties = MessageProperties(
            self._format(payload), self._expiry(), content, response, correlation, tuple(self._user)
        )
        return ReadProperties(properties, self._dropped)

    def _fits(self, *texts: str) -> bool:
        """Return whether these texts fit; otherwise count the property as dropped."""
        size = sum(len(text.encode(errors="surrogateescape")) for text in texts)
        if size > self._room:
            self._dropped += 1
            return False
        self._room -= size
        return True

    def _text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is None:
            return None
        text = _decoded(value)
        if text is None:
            self._dropped += 1
        return text

    def _format(self, payload: bytes) -> int:
        """Return the Payload Format Indicator: 1 only for a payload that is text."""
        value = self.values.get(FORMAT)
        if value == "1" and _is_text(payload):
            return 1
        self._dropped += value not in (None, "0")
        return 0

    def _expiry(self) -> int | None:
        """Return the Message Expiry Interval in seconds."""
        value = self.values.get(EXPIRY)
        if value is not None:
            if _SECONDS.fullmatch(value) and int(value) <= _MAX_SECONDS:
                return int(value)
            self._dropped += 1
        ttl = self.values.get("ttl")
        return _seconds_of(ttl) if ttl is not None else None


def _seconds_of(ttl: str) -> int | None:
    """Return the seconds of a ``Nats-TTL``: a number, or a duration of Go; None: no end."""
    if _SECONDS.fullmatch(ttl):
        seconds = int(ttl)
    else:
        duration = _DURATION.fullmatch(ttl)
        if duration is None:  # "never", or a fraction of a second
            return None
        hours, minutes, own_seconds = (int(part or 0) for part in duration.groups())
        seconds = 3600 * hours + 60 * minutes + own_seconds
    return min(seconds, _MAX_SECONDS) or None


def _decoded(value: str) -> str | None:
    """Decode a percent-encoded text; None if MQTT packets must not contain it."""
    try:
        text = unquote(value, errors="strict")
        size = len(text.encode())
    except UnicodeError:
        return None
    return text if "\0" not in text and size <= _MAX_TEXT else None


def _is_topic(topic: str) -> bool:
    try:
        validate_topic_name(topic)
    except TopicError:
        return False
    return True


def _is_text(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def allowed_names(names: Iterable[str]) -> dict[str, str]:
    """Return the ``allowed`` argument of :func:`property_lines` for names from an operator.

    Raises ``ValueError`` for a name that is invalid for headers, or that only foldmq may write.
    """
    allowed: dict[str, str] = {}
    for name in names:
        if not is_header_name(name):
            raise ValueError(f"{name[:60]!r} is not the name of a NATS header")
        if is_own(name):
            raise ValueError(f"{name[:60]!r} is written by foldmq only")
        allowed[name.lower()] = name
    return allowed
