"""Reading and writing of property blocks, in one pass and linear time, whatever their content.

A block is the properties behind a Property Length. ``read_block`` returns their values;
``MessageBlock`` is the result for a message's block: the bytes that are forwarded to subscribers,
in a fixed order, and beside them the properties that the connection itself obeys. Blocks recur from
message to message, so read blocks are cached by their bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from protocol.mqtt import PacketType, ProtocolError, ReasonCode, encode_length
from protocol.mqtt5.property_table import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    FROM_CLIENTS,
    MESSAGE_EXPIRY,
    PAYLOAD_FORMAT,
    PROPERTIES,
    RESPONSE_TOPIC,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    USER_PROPERTY,
    WILL,
    WILL_DELAY,
    Kind,
    Property,
    PropertyCarrier,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from protocol.mqtt import UserProperties

MAX_BLOCK = 5 * 65_540
"""The largest property block read, in bytes: five strings of the greatest length fit.

A block may be as large as a packet, and each property of it costs time that a payload does not.
"""
MOST_PROPERTIES = 8192
"""Largest number of properties that are read from a block."""

LARGE_BLOCK = 512
"""Size in bytes above which blocks are not cached; they count as more work."""
BYTES_A_PACKET = 8
"""Bytes of properties that take about as long as a small packet."""
_KNOWN_BLOCKS = 4096

Value: TypeAlias = int | str | bytes | tuple[str, str]
Span: TypeAlias = tuple[Property, Value, int, int]
"""A property, its value, and the offsets where it begins and ends."""

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
    """Decode a UTF-8 Encoded String (section 1.5.4); U+FEFF is kept [MQTT-1.5.4-3].

    Raises ``ProtocolError`` for ill-formed UTF-8, surrogates and U+0000.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise malformed(
            f"{what} is not well-formed UTF-8 at byte {error.start}", statement
        ) from None
    if "\0" in text:
        if statement == "MQTT-1.5.4-1":
            statement = "MQTT-1.5.4-2"
        raise malformed(f"{what} contains U+0000", statement)
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
                raise malformed(f"{what} has needless bytes", "MQTT-1.5.5-1")
            return value, at
    raise malformed(f"{what} is longer than four bytes", "MQTT-1.5.5-1")


def find_block(data: bytes, at: int, stop: int, what: str) -> tuple[int, int]:
    """Read a Property Length; return the offsets between which the properties stand.

    Raises ``ProtocolError``, also for more than ``MAX_BLOCK`` bytes.
    """
    length, begin = read_variable(data, at, stop, f"{what}: property length")
    if length > stop - begin:
        raise malformed(f"{what}: properties run over its end")
    if length > MAX_BLOCK:
        raise violation(
            f"{what}: {length} bytes of properties, at most {MAX_BLOCK} are accepted",
            reason=ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        )
    return begin, begin + length


def block_cost(size: int) -> int:
    """Return the number of packets as which ``size`` bytes count that may be properties."""
    return size // BYTES_A_PACKET if size > LARGE_BLOCK else 0


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
        if count > MOST_PROPERTIES:
            break
        prop = allowed.get(identifier)
        if prop is None:
            raise _not_allowed(data, begin, stop, place)
        if identifier in seen:
            if not prop.repeats and not (
                identifier == SUBSCRIPTION_IDENTIFIER and place == PacketType.PUBLISH
            ):
                raise violation(f"{place_name(place)}: {prop.name} stands there twice")
        else:
            seen.add(identifier)
        value, at = _read_value(prop, data, at, stop, place)
        yield prop, value, begin, at
    if count > MOST_PROPERTIES:
        raise violation(
            f"{place_name(place)}: more than {MOST_PROPERTIES} properties",
            reason=ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        )


def _end_of_pairs(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """Return the end of the run of user properties at ``at``, and their number.

    The run ends before the first incomplete one, and is empty if any may be invalid: a block may
    have thousands.
    """
    begin = at
    parts: list[bytes] = []
    while at + 5 <= stop and data[at] == USER_PROPERTY and len(parts) <= 2 * MOST_PROPERTIES:
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


def read_block(
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
    end = at + 2
    if end <= stop:
        end += data[at] << 8 | data[at + 1]
    if end > stop:
        raise _cut_off(prop, place)
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


def encode_block(values: Mapping[int, Value | None], user: UserProperties = ()) -> bytes:
    """Encode properties, except those that are None, without their length."""
    parts = [encode_property(one, value) for one, value in values.items() if value is not None]
    parts += [encode_property(USER_PROPERTY, pair) for pair in user]
    return b"".join(parts)


def with_length(block: bytes) -> bytes:
    """Put the Property Length before properties."""
    return encode_length(len(block)) + block if block else b"\0"


def _field(raw: bytes) -> bytes:
    if len(raw) > 65_535:
        raise ValueError(f"a field of {len(raw)} bytes cannot be encoded")
    return len(raw).to_bytes(2, "big") + raw


class MessageBlock(NamedTuple):
    """The properties of one message."""

    block: bytes
    """The part that is forwarded to subscribers: no Topic Alias, Message Expiry Interval first."""
    alias: int
    """Topic Alias; 0: none."""
    expiry: int
    """Message Expiry Interval in seconds; -1: none."""
    is_text: bool
    """Whether the Payload Format Indicator says that the payload is UTF-8."""
    delay: int = 0
    """Will Delay Interval in seconds, of a will."""


NO_PROPERTIES = MessageBlock(b"", 0, -1, False)

known_blocks: dict[bytes, MessageBlock] = {b"": NO_PROPERTIES}
"""Blocks of clients' PUBLISH packets, read before, by their bytes; shared by all connections.

At most ``_KNOWN_BLOCKS`` of at most ``LARGE_BLOCK`` bytes. A cache that only saves time, so it
may be emptied at will.
"""


def read_message_block(raw: bytes) -> MessageBlock:
    """Read the properties of a PUBLISH from a client; raises ``ProtocolError``."""
    found = known_blocks.get(raw)
    if found is None:
        found = split_message_block(raw, PacketType.PUBLISH)
        if len(raw) <= LARGE_BLOCK:
            if len(known_blocks) >= _KNOWN_BLOCKS:
                known_blocks.clear()
                known_blocks[b""] = NO_PROPERTIES
            known_blocks[raw] = found
    return found


def split_message_block(raw: bytes, place: PropertyCarrier) -> MessageBlock:
    """Split the properties of a PUBLISH or a ``WILL`` from a client by their use."""
    alias, expiry, delay, is_text = 0, -1, 0, False
    first = b""
    parts: list[bytes] = []
    copied = 0  # raw[:copied] is in parts, or was left out
    for prop, value, begin, end in iter_properties(
        raw, 0, len(raw), FROM_CLIENTS[place], place, user=False
    ):
        identifier = prop.identifier
        if identifier in _PASSED_ON:
            is_text = is_text or (identifier == PAYLOAD_FORMAT and value == 1)
            continue
        parts.append(raw[copied:begin])
        copied = end
        if identifier == MESSAGE_EXPIRY:
            first, expiry = raw[begin:end], int(value)  # type: ignore[arg-type]  # a number
        elif identifier == TOPIC_ALIAS:
            alias = int(value)  # type: ignore[arg-type]  # a number
        else:
            delay = int(value)  # type: ignore[arg-type]  # a number
    parts.append(raw[copied:])
    return MessageBlock(first + b"".join(parts), alias, expiry, is_text, delay)


_PASSED_ON = frozenset(PROPERTIES) - {MESSAGE_EXPIRY, TOPIC_ALIAS, WILL_DELAY}


class MessageProperties(NamedTuple):
    """The properties in the block of a message, for other uses than MQTT: NATS, tables, people."""

    payload_format: int = 0
    expiry: int | None = None
    """Seconds."""
    content_type: str | None = None
    response_topic: str | None = None
    correlation: bytes | None = None
    user: tuple[tuple[str, str], ...] = ()


def message_properties(block: bytes) -> MessageProperties:
    """Return the properties in a block that was checked before."""
    values, user = read_block(
        block, 0, len(block), FROM_CLIENTS[PacketType.PUBLISH], PacketType.PUBLISH
    )
    return MessageProperties(
        values.get(PAYLOAD_FORMAT, 0),  # type: ignore[arg-type]  # so say their kinds
        values.get(MESSAGE_EXPIRY),  # type: ignore[arg-type]
        values.get(CONTENT_TYPE),  # type: ignore[arg-type]
        values.get(RESPONSE_TOPIC),  # type: ignore[arg-type]
        values.get(CORRELATION_DATA),  # type: ignore[arg-type]
        user,
    )


def message_block(properties: MessageProperties) -> bytes:
    """Return the block of a message with these properties, which must have been checked."""
    values = {
        MESSAGE_EXPIRY: properties.expiry,
        PAYLOAD_FORMAT: properties.payload_format or None,
        CONTENT_TYPE: properties.content_type,
        RESPONSE_TOPIC: properties.response_topic,
        CORRELATION_DATA: properties.correlation,
    }
    return encode_block(values, properties.user)


def properties_object(block: bytes) -> dict[str, Any]:
    """Return the properties in a message's block by name, for JSON; without the expiry.

    Empty for a block that cannot be read.
    """
    try:
        found = message_properties(block)
    except ProtocolError:
        return {}
    said: dict[str, Any] = {}
    if found.payload_format:
        said["payload_format"] = found.payload_format
    if found.content_type is not None:
        said["content_type"] = found.content_type
    if found.response_topic is not None:
        said["response_topic"] = found.response_topic
    if found.correlation is not None:
        said["correlation_data"] = found.correlation.hex()
    if found.user:
        said["user_properties"] = [list(pair) for pair in found.user]
    return said


def expiry_of(block: bytes) -> int | None:
    """Return the Message Expiry Interval of a message's block, in seconds."""
    if block[:1] != _EXPIRY_MARK:
        return None
    return int.from_bytes(block[1:5], "big")


def with_remaining_expiry(block: bytes, left: int) -> bytes:
    """Return a block whose Message Expiry Interval, which must be present, is replaced."""
    return encode_property(MESSAGE_EXPIRY, left) + block[5:]


def is_payload_format_broken(block: bytes, payload: bytes) -> bool:
    """Return whether a payload is not UTF-8 although its block says so (reason 0x99)."""
    if not read_message_block(block).is_text:
        return False
    try:
        payload.decode()
    except UnicodeDecodeError:
        return True
    return False


_EXPIRY_MARK = bytes((MESSAGE_EXPIRY,))
