"""Decodes and encodes the properties of any packet, in one pass and linear time.

``property_table`` defines which properties a packet may have. ``message_properties`` has the
functions that only the properties of messages need.
"""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from protocol.mqtt.packets import PacketType, UserProperties
from protocol.mqtt.property_table import (
    PROPERTIES,
    RESPONSE_TOPIC,
    SUBSCRIPTION_IDENTIFIER,
    USER_PROPERTY,
    WILL,
    Kind,
    Property,
    PropertyCarrier,
)
from protocol.mqtt.protocol_error import ProtocolError
from protocol.mqtt.reason_codes import ReasonCode
from protocol.mqtt.remaining_length import encode_length

MAX_PROPERTY_BYTES = 5 * 65_540
"""Maximum bytes of properties that are read from a packet: five strings of maximum length fit.

The standard allows as many bytes as a packet may have, and reading a property takes time, unlike a
payload.
"""
MAX_PROPERTIES = 8192
"""Maximum number of properties that are read from a packet."""

LARGE_PROPERTIES = 512
"""Size in bytes above which properties are not cached, and count as additional work."""
BYTES_A_PACKET = 8
"""Bytes of properties that take about as long as a small packet."""

Value: TypeAlias = int | str | bytes | tuple[str, str]
Span: TypeAlias = tuple[Property, Value, int, int]
"""A property, its value, and the offsets where it begins and ends."""

_OF_NULL = {"MQTT-1.5.4-1": "MQTT-1.5.4-2", "MQTT-1.5.3-1": "MQTT-1.5.3-2"}
"""Statement about ill-formed UTF-8 -> the one about U+0000."""
_LENGTHS = [bytes((length,)) for length in range(128)]
_WIDTHS = {Kind.BYTE: 1, Kind.TWO_BYTES: 2, Kind.FOUR_BYTES: 4}


def malformed(text: str, statement: str = "MQTT-4.13.1-1") -> ProtocolError:
    """Return the error for a packet that cannot be parsed (section 1.2)."""
    return ProtocolError(text, statement)


def violation(
    text: str,
    statement: str = "MQTT-4.13.1-1",
    reason: ReasonCode = ReasonCode.PROTOCOL_ERROR,
) -> ProtocolError:
    """Return the error for a packet that can be parsed but breaks a rule (section 1.2)."""
    return ProtocolError(text, statement, reason=reason)


def place_name(place: PropertyCarrier) -> str:
    """Return the name of a packet in errors."""
    return "will" if place == WILL else PacketType(place).name


def decode_text(raw: bytes, what: str, statement: str = "MQTT-1.5.4-1") -> str:
    """Decode a UTF-8 Encoded String (section 1.5.4, before MQTT 5 1.5.3); U+FEFF is kept.

    Raises ``ProtocolError`` for ill-formed UTF-8, surrogates and U+0000. Other control characters
    and non-characters are legal: the standard only advises against them.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise malformed(
            f"{what} is not well-formed UTF-8 at byte {error.start}", statement
        ) from None
    if "\0" in text:
        raise malformed(f"{what} contains U+0000", _OF_NULL.get(statement, statement))
    return text


def read_variable(data: bytes, at: int, stop: int, what: str) -> tuple[int, int]:
    """Read a Variable Byte Integer; return its value and the offset of its end.

    Raises ``ProtocolError`` if it exceeds ``stop``, is longer than four bytes, or longer than
    necessary [MQTT-1.5.5-1].
    """
    value = 0
    for index in range(4):
        if at >= stop:
            raise malformed(f"{what} is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if index and not byte:
                raise malformed(f"{what} is longer than necessary", "MQTT-1.5.5-1")
            return value, at
    raise malformed(f"{what} is longer than four bytes", "MQTT-1.5.5-1")


def find_properties(data: bytes, at: int, stop: int, what: str) -> tuple[int, int]:
    """Read a Property Length; return the offsets between which the properties are.

    Raises ``ProtocolError``, also for more than ``MAX_PROPERTY_BYTES`` bytes.
    """
    length, begin = read_variable(data, at, stop, f"{what}: property length")
    if length > stop - begin:
        raise malformed(f"{what}: properties exceed the packet")
    if length > MAX_PROPERTY_BYTES:
        raise violation(
            f"{what}: {length} bytes of properties, at most {MAX_PROPERTY_BYTES} are accepted",
            reason=ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        )
    return begin, begin + length


def properties_cost(size: int) -> int:
    """Return the work of reading ``size`` bytes of properties, counted in packets."""
    return size // BYTES_A_PACKET if size > LARGE_PROPERTIES else 0


def iter_properties(
    data: bytes,
    at: int,
    stop: int,
    allowed: Mapping[int, Property],
    place: PropertyCarrier,
    *,
    user: bool = True,
) -> Iterator[Span]:
    """Yield the properties in ``data[at:stop]``; raises ``ProtocolError`` for an invalid one.

    ``user``: user properties are yielded as well; they are checked in any case.
    """
    seen: set[int] = set()
    count = 0
    while at < stop:
        begin, identifier = at, data[at]
        if identifier == USER_PROPERTY and not user and identifier in allowed:
            at, pairs = _end_of_pairs(data, at, stop)
            if at > begin:
                count += pairs
                continue
        at += 1
        count += 1
        if count > MAX_PROPERTIES:
            break
        prop = allowed.get(identifier)
        if prop is None:
            raise _not_allowed(data, begin, stop, place)
        if identifier in seen:
            if not prop.repeats and not (
                identifier == SUBSCRIPTION_IDENTIFIER and place == PacketType.PUBLISH
            ):
                raise violation(f"{place_name(place)}: {prop.name} occurs twice")
        else:
            seen.add(identifier)
        value, at = _read_value(prop, data, at, stop, place)
        yield prop, value, begin, at
    if count > MAX_PROPERTIES:
        raise violation(
            f"{place_name(place)}: more than {MAX_PROPERTIES} properties",
            reason=ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        )


def _end_of_pairs(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """Return the end of the run of user properties at ``at``, and their number.

    The run ends before the first incomplete one, and is empty if any may be invalid: there may be
    thousands.
    """
    begin = at
    parts: list[bytes] = []
    while at + 5 <= stop and data[at] == USER_PROPERTY and len(parts) <= 2 * MAX_PROPERTIES:
        middle = at + 3 + (data[at + 1] << 8 | data[at + 2])
        if middle + 2 > stop:
            break
        end = middle + 2 + (data[middle] << 8 | data[middle + 1])
        if end > stop:
            break
        parts += data[at + 3 : middle], data[middle + 2 : end]
        at = end
    text = b"".join(parts)
    if not text.isascii():
        try:
            # Decoded one by one: one may begin with the rest of a character of another one.
            for part in parts:
                part.decode()
        except UnicodeDecodeError:
            return begin, 0
    return (begin, 0) if b"\0" in text else (at, len(parts) // 2)


def decode_properties(
    data: bytes,
    at: int,
    stop: int,
    allowed: Mapping[int, Property],
    place: PropertyCarrier,
    *,
    user: bool = True,
) -> tuple[dict[int, Value], tuple[tuple[str, str], ...]]:
    """Read the properties in ``data[at:stop]``: values by identifier, and the user properties.

    For a property that repeats, the values contain the last one. ``user``: user properties are
    returned; otherwise they are only checked. Raises ``ProtocolError``.
    """
    values: dict[int, Value] = {}
    pairs: list[tuple[str, str]] = []
    for prop, value, _, _ in iter_properties(data, at, stop, allowed, place, user=user):
        if prop.kind is not Kind.PAIR:
            values[prop.identifier] = value
        elif user:
            pairs.append(value)  # type: ignore[arg-type]  # as its kind says
    return values, tuple(pairs)


def _read_value(
    prop: Property, data: bytes, at: int, stop: int, place: PropertyCarrier
) -> tuple[Value, int]:
    kind = prop.kind
    if kind is Kind.PAIR:
        name, at = _read_text(prop, data, at, stop, place)
        text, at = _read_text(prop, data, at, stop, place)
        return (name, text), at
    if kind is Kind.TEXT:
        text, at = _read_text(prop, data, at, stop, place)
        if prop.identifier == RESPONSE_TOPIC:
            _check_response_topic(text)
        return text, at
    if kind is Kind.BINARY:
        end = _end_of_field(prop, data, at, stop, place)
        return data[at + 2 : end], end
    if kind is Kind.VARIABLE:
        number, end = read_variable(data, at, stop, f"{place_name(place)}: {prop.name}")
    else:
        end = at + _WIDTHS[kind]
        if end > stop:
            raise _cut_off(prop, place)
        number = int.from_bytes(data[at:end], "big")
    if not prop.least <= number <= prop.most:
        raise violation(
            f"{place_name(place)}: {prop.name} of {number}", prop.statement, prop.reason
        )
    return number, end


def _end_of_field(prop: Property, data: bytes, at: int, stop: int, place: PropertyCarrier) -> int:
    """Return the end of a field with a length of two bytes."""
    end = at + 2
    if end <= stop:
        end += data[at] << 8 | data[at + 1]
    if end > stop:
        raise _cut_off(prop, place)
    return end


def _read_text(
    prop: Property, data: bytes, at: int, stop: int, place: PropertyCarrier
) -> tuple[str, int]:
    end = _end_of_field(prop, data, at, stop, place)
    raw = data[at + 2 : end]
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        statement = "MQTT-1.5.4-1" if prop.statement == "MQTT-4.13.1-1" else prop.statement
        decode_text(raw, f"{place_name(place)}: {prop.name}", statement)
    return text, end


def _check_response_topic(topic: str) -> None:
    if not topic:
        raise violation("Response Topic is empty", "MQTT-4.7.3-1")
    if "+" in topic or "#" in topic:
        raise violation("Response Topic contains a wildcard", "MQTT-3.3.2-14")


def _cut_off(prop: Property, place: PropertyCarrier) -> ProtocolError:
    return malformed(f"{place_name(place)} ends inside its {prop.name}")


def _not_allowed(data: bytes, at: int, stop: int, place: PropertyCarrier) -> ProtocolError:
    """Return the error for a property that is not allowed in its packet (section 2.2.2.2)."""
    identifier, where = data[at], place_name(place)
    if identifier >= 0x80:  # an identifier is a Variable Byte Integer; all are one byte long
        identifier, _ = read_variable(data, at, stop, f"{where}: property identifier")
    prop = PROPERTIES.get(identifier)
    if prop is None:
        return malformed(f"{where}: there is no property 0x{identifier:02x}")
    if place == PacketType.PUBLISH and identifier == SUBSCRIPTION_IDENTIFIER:
        return violation("PUBLISH from a client with a Subscription Identifier", "MQTT-3.3.4-6")
    if place in prop.from_servers:
        statement = prop.statement if place == PacketType.DISCONNECT else "MQTT-4.13.1-1"
        return violation(f"{where} with {prop.name}, which only a server sends", statement)
    return malformed(f"{where} with {prop.name}, which does not belong there")


def encode_property(identifier: int, value: Value) -> bytes:
    """Encode a property, without the checks of the decoder.

    Raises ``ValueError`` for a value that does not fit, ``TypeError`` for one of another kind.
    """
    mark, kind = bytes((identifier,)), PROPERTIES[identifier].kind
    if kind is Kind.PAIR and isinstance(value, tuple):
        return mark + _field(value[0].encode()) + _field(value[1].encode())
    if kind is Kind.TEXT and isinstance(value, str):
        return mark + _field(value.encode())
    if kind is Kind.BINARY and isinstance(value, bytes):
        return mark + _field(value)
    if not isinstance(value, int):
        raise TypeError(f"{PROPERTIES[identifier].name} cannot be {value!r}")
    if kind is Kind.VARIABLE:
        return mark + encode_length(value)
    try:
        return mark + value.to_bytes(_WIDTHS[kind], "big")
    except OverflowError:
        raise ValueError(f"{PROPERTIES[identifier].name} cannot be {value}") from None


def encode_properties(values: Mapping[int, Value | None], user: UserProperties = ()) -> bytes:
    """Encode properties, except those that are None, without their length."""
    parts = [
        encode_property(identifier, value)
        for identifier, value in values.items()
        if value is not None
    ]
    parts += [encode_property(USER_PROPERTY, pair) for pair in user]
    return b"".join(parts)


def with_length(properties: bytes) -> bytes:
    """Put the Property Length before properties."""
    size = len(properties)
    return (_LENGTHS[size] if size < len(_LENGTHS) else encode_length(size)) + properties


def _field(raw: bytes) -> bytes:
    if len(raw) > 65_535:
        raise ValueError(f"a field of {len(raw)} bytes cannot be encoded")
    return len(raw).to_bytes(2, "big") + raw
