"""A second, independent codec of MQTT 3.1 and 3.1.1, for tests only.

It encodes the packets of a client, legal or not, and parses those of a server strictly: bytes
that no server may send raise `ServerViolationError`.
"""

from dataclasses import dataclass

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT = range(8, 15)

NAMES = {
    value: name
    for name, value in list(globals().items())
    if name.isupper() and isinstance(value, int)
}


class ServerViolationError(AssertionError):
    """The server sent bytes that the standard forbids it to send."""


@dataclass(frozen=True, slots=True)
class Connack:
    code: int
    session_present: bool = False


@dataclass(frozen=True, slots=True)
class Publish:
    topic: str
    payload: bytes
    qos: int = 0
    packet_id: int | None = None
    dup: bool = False
    retain: bool = False

    def __repr__(self) -> str:
        payload = self.payload if len(self.payload) <= 40 else self.payload[:37] + b"..."
        topic = self.topic if len(self.topic) <= 60 else self.topic[:57] + "..."
        flags = "".join(
            [
                f" id={self.packet_id}" if self.qos else "",
                " DUP" * self.dup,
                " RETAIN" * self.retain,
            ]
        )
        return f"PUBLISH({topic!r} {payload!r} qos={self.qos}{flags})"


@dataclass(frozen=True, slots=True)
class Puback:
    packet_id: int


@dataclass(frozen=True, slots=True)
class Pubrec:
    packet_id: int


@dataclass(frozen=True, slots=True)
class Pubrel:
    packet_id: int


@dataclass(frozen=True, slots=True)
class Pubcomp:
    packet_id: int


@dataclass(frozen=True, slots=True)
class Suback:
    packet_id: int
    codes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unsuback:
    packet_id: int


@dataclass(frozen=True, slots=True)
class Pingresp:
    pass


Packet = Connack | Publish | Puback | Pubrec | Pubrel | Pubcomp | Suback | Unsuback | Pingresp


ACKNOWLEDGEMENTS: dict[int, type[Puback | Pubrec | Pubrel | Pubcomp | Unsuback]] = {
    PUBACK: Puback,
    PUBREC: Pubrec,
    PUBREL: Pubrel,
    PUBCOMP: Pubcomp,
    UNSUBACK: Unsuback,
}


# ---------------------------------------------------------------- building


def remaining_length(length: int) -> bytes:
    """The variable length encoding of section 2.2.3."""
    encoded = bytearray()
    while True:
        length, digit = divmod(length, 128)
        encoded.append(digit | (0x80 if length else 0))
        if not length:
            return bytes(encoded)


def u16(value: int) -> bytes:
    return value.to_bytes(2, "big")


def text(value: str | bytes) -> bytes:
    """A length-prefixed string; bytes are taken as they are, legal UTF-8 or not."""
    data = value.encode() if isinstance(value, str) else value
    return u16(len(data)) + data


def packet(kind: int, flags: int, body: bytes = b"") -> bytes:
    """Any packet: `kind` and `flags` are the halves of its first byte."""
    return bytes([kind << 4 | flags]) + remaining_length(len(body)) + body


@dataclass(frozen=True, slots=True)
class Will:
    topic: str | bytes
    payload: bytes = b"gone"
    qos: int = 0
    retain: bool = False


def connect(
    client_id: str | bytes = "",
    *,
    clean: bool = True,
    keepalive: int = 0,
    will: Will | None = None,
    username: str | bytes | None = None,
    password: bytes | None = None,
    protocol: str = "MQTT",
    level: int = 4,
    flags: int | None = None,
) -> bytes:
    """A CONNECT; `flags` replaces the connect flags byte that would follow from the rest."""
    body = text(client_id)
    bits = 0x02 if clean else 0
    if will is not None:
        bits |= 0x04 | will.qos << 3 | (0x20 if will.retain else 0)
        body += text(will.topic) + text(will.payload)
    if username is not None:
        bits |= 0x80
        body += text(username)
    if password is not None:
        bits |= 0x40
        body += text(password)
    head = text(protocol) + bytes([level, bits if flags is None else flags]) + u16(keepalive)
    return packet(CONNECT, 0, head + body)


def publish(
    topic: str | bytes,
    payload: bytes = b"",
    qos: int = 0,
    packet_id: int | None = None,
    *,
    dup: bool = False,
    retain: bool = False,
) -> bytes:
    head = text(topic) + (b"" if packet_id is None else u16(packet_id))
    return packet(PUBLISH, (8 if dup else 0) | qos << 1 | int(retain), head + payload)


def puback(packet_id: int) -> bytes:
    return packet(PUBACK, 0, u16(packet_id))


def pubrec(packet_id: int) -> bytes:
    return packet(PUBREC, 0, u16(packet_id))


def pubrel(packet_id: int) -> bytes:
    return packet(PUBREL, 2, u16(packet_id))


def pubcomp(packet_id: int) -> bytes:
    return packet(PUBCOMP, 0, u16(packet_id))


def subscribe(packet_id: int, *filters: tuple[str | bytes, int]) -> bytes:
    entries = b"".join(text(topic_filter) + bytes([qos]) for topic_filter, qos in filters)
    return packet(SUBSCRIBE, 2, u16(packet_id) + entries)


def unsubscribe(packet_id: int, *filters: str | bytes) -> bytes:
    return packet(UNSUBSCRIBE, 2, u16(packet_id) + b"".join(map(text, filters)))


def pingreq() -> bytes:
    return packet(PINGREQ, 0)


def disconnect() -> bytes:
    return packet(DISCONNECT, 0)


# ----------------------------------------------------------------- parsing


def split(buffer: bytes | bytearray) -> tuple[int, bytes, int] | None:
    """First byte, body and total size of the first packet in `buffer`, or None if incomplete."""
    length = shift = 0
    for index in range(1, 5):
        if index >= len(buffer):
            return None
        length |= (buffer[index] & 0x7F) << shift
        shift += 7
        if not buffer[index] & 0x80:
            start = index + 1
            if len(buffer) < start + length:
                return None
            return buffer[0], bytes(buffer[start : start + length]), start + length
    raise ServerViolationError(
        f"remaining length of more than four bytes: {bytes(buffer[:6]).hex(' ')}"
    )


def parse(first: int, body: bytes) -> Packet:
    """A packet that a server may send; anything else is a `ServerViolationError`."""
    kind, flags = first >> 4, first & 0x0F
    shown = f"{first:02x} | {body[:32].hex(' ')}"
    if kind == PUBLISH:
        return _parse_publish(flags, body, shown)
    if flags != (2 if kind == PUBREL else 0):
        raise ServerViolationError(f"reserved flags of the fixed header: {shown}")
    if kind == CONNACK and len(body) == 2 and body[0] in (0, 1):
        return Connack(body[1], bool(body[0]))
    if kind == PINGRESP and not body:
        return Pingresp()
    if kind == SUBACK and len(body) >= 3:
        if any(code not in (0, 1, 2, 0x80) for code in body[2:]):
            raise ServerViolationError(f"reserved return code in SUBACK: {shown}")
        return Suback(_packet_id(body, shown), tuple(body[2:]))
    if kind in ACKNOWLEDGEMENTS and len(body) == 2:
        return ACKNOWLEDGEMENTS[kind](_packet_id(body, shown))
    raise ServerViolationError(f"no packet that a server may send: {shown}")


def _packet_id(data: bytes, shown: str) -> int:
    value = int.from_bytes(data[:2], "big")
    if not value or len(data) < 2:
        raise ServerViolationError(f"packet identifier 0 or missing: {shown}")
    return value


def _parse_publish(flags: int, body: bytes, shown: str) -> Publish:
    qos = flags >> 1 & 3
    if qos == 3:
        raise ServerViolationError(f"QoS 3: {shown}")
    if flags & 8 and not qos:
        raise ServerViolationError(f"DUP on a QoS 0 message: {shown}")
    end = 2 + int.from_bytes(body[:2], "big")
    if len(body) < end or end == 2:
        raise ServerViolationError(f"topic name cut or empty: {shown}")
    topic = body[2:end].decode()
    if set("+#\0") & set(topic):
        raise ServerViolationError(f"forbidden character in the topic name: {shown}")
    packet_id = None
    if qos:
        packet_id = _packet_id(body[end : end + 2], shown)
        end += 2
    return Publish(topic, body[end:], qos, packet_id, bool(flags & 8), bool(flags & 1))
