"""The decoder of the rarer packets, field by field: CONNECT, SUBSCRIBE and UNSUBSCRIBE."""

import sys

from protocol.mqtt.packets import Connect, ConnectCode, Subscribe, Unsubscribe, Will
from protocol.mqtt.protocol_error import ProtocolError
from protocol.mqtt.topics import TopicError, validate_topic_filter, validate_topic_name

MQTT_3_1 = 3
MQTT_3_1_1 = 4
MQTT_5 = 5
LEVELS = {b"MQIsdp": MQTT_3_1, b"MQTT": MQTT_3_1_1}
"""Protocol name -> its protocol level."""
_BRIDGE = 0x80
"""Bit of the protocol level with which other brokers' bridges connect."""


def decode_utf8(raw: bytes, what: str) -> str:
    """Decode a UTF-8 encoded string (section 1.5.3); U+FEFF is kept [MQTT-1.5.3-3].

    Raises ``ProtocolError`` for ill-formed UTF-8, surrogates and U+0000. Other control characters
    and non-characters are legal: the standard only advises against them.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(
            f"{what} is not well-formed UTF-8 at byte {error.start}", "MQTT-1.5.3-1"
        ) from None
    if "\0" in text:
        raise ProtocolError(f"{what} contains U+0000", "MQTT-1.5.3-2")
    return text


def parse_connect(body: bytes) -> Connect:
    """Parse variable header and payload of a CONNECT (section 3.1); raises ``ProtocolError``."""
    fields = _Fields(body, "CONNECT")
    version, bridge = _protocol_level(fields)
    flags = fields.byte("connect flags")
    _check_connect_flags(flags, version)
    keep_alive = fields.number("keep alive")
    client_id = fields.text("client identifier", "MQTT-3.1.3-3")
    clean = bool(flags & 0x02)
    if not client_id and (version == MQTT_3_1 or not clean):
        raise ProtocolError(
            "empty client identifier" + ("" if clean else " without clean session"),
            "MQTT-3.1.3-8",
            ConnectCode.IDENTIFIER_REJECTED,
        )
    will = _will(fields, flags) if flags & 0x04 else None
    username = password = None
    # In MQTT 3.1 the Remaining Length overrides these flags: a field may be missing.
    if flags & 0x80 and not (version == MQTT_3_1 and fields.at_end()):
        username = fields.text("user name", "MQTT-3.1.2-19")
    if flags & 0x40 and not (version == MQTT_3_1 and fields.at_end()):
        password = fields.binary("password", "MQTT-3.1.2-21")
    fields.finish()
    return Connect(version, client_id, clean, keep_alive, will, username, password, bridge=bridge)


class FilterReader:
    """Reads a SUBSCRIBE (section 3.8) or UNSUBSCRIBE (3.10), some topic filters at a time.

    Raises ``ProtocolError`` when it reaches an error.
    """

    __slots__ = ("_fields", "_subscribing", "found", "names", "packet_id")

    def __init__(self, body: bytes, *, subscribing: bool) -> None:
        self._fields = _Fields(body, "SUBSCRIBE" if subscribing else "UNSUBSCRIBE")
        self._subscribing = subscribing
        self.packet_id = self._fields.packet_id()
        self.found: list[tuple[str, int]] = []
        """Topic filters of a SUBSCRIBE, with the requested QoS."""
        self.names: list[str] = []
        """Topic filters of an UNSUBSCRIBE."""
        if self._fields.at_end():
            name, statement = "UNSUBSCRIBE", "MQTT-3.10.3-2"
            if subscribing:
                name, statement = "SUBSCRIBE", "MQTT-3.8.3-3"
            raise ProtocolError(f"{name} without a topic filter", statement)

    @property
    def count(self) -> int:
        """The number of filters that have been read."""
        return len(self.found) + len(self.names)

    def read(self, most: int = sys.maxsize) -> bool:
        """Read at most ``most`` filters; return whether all filters have been read."""
        fields, stop = self._fields, self.count + most
        while not fields.at_end() and self.count < stop:
            self._read_plain(stop)
            if fields.at_end() or self.count >= stop:
                break
            # The next filter is invalid, or only appears to be.
            topic_filter = fields.topic_filter()
            if not self._subscribing:
                self.names.append(topic_filter)
                continue
            qos = fields.byte("requested QoS")
            if qos > 2:
                raise ProtocolError(
                    f"SUBSCRIBE: requested QoS byte is 0x{qos:02x}, not 0, 1 or 2", "MQTT-3.8.3-4"
                )
            self.found.append((topic_filter, qos))
        return fields.at_end()

    def packet(self) -> Subscribe | Unsubscribe:
        """Return the packet; call this when all of its filters have been read."""
        if self._subscribing:
            return Subscribe(self.packet_id, self.found)
        return Unsubscribe(self.packet_id, self.names)

    def _read_plain(self, most: int) -> None:
        """Read valid filters on a fast path for packets with thousands of them."""
        fields, found, names = self._fields, self.found, self.names
        options = int(self._subscribing)
        body, at = fields.body, fields.at
        size = len(body)
        last = size - options
        try:
            while at < size and len(found) + len(names) < most:
                start = at + 2
                stop = start + (body[at] << 8 | body[at + 1])
                text = body[start:stop].decode()
                if stop > last or start == stop or "\0" in text:
                    break
                if "+" in text or "#" in text:
                    validate_topic_filter(text)
                if options:
                    qos = body[stop]
                    if qos > 2:
                        break
                    found.append((text, qos))
                else:
                    names.append(text)
                at = stop + options
        except (IndexError, UnicodeDecodeError, TopicError):
            pass
        fields.at = at


def _protocol_level(fields: "_Fields") -> tuple[int, bool]:
    """Return the protocol level, and whether the client is a bridge."""
    name = fields.binary("protocol name", "MQTT-3.1.2-1")
    if name not in LEVELS:
        raise ProtocolError(f"protocol name is {name[:16]!r}, not 'MQTT'", "MQTT-3.1.2-1")
    level = fields.byte("protocol level")
    if level & ~_BRIDGE != LEVELS[name]:
        raise ProtocolError(
            f"protocol level {level} of {name.decode()} is not supported",
            "MQTT-3.1.2-2",
            ConnectCode.UNACCEPTABLE_PROTOCOL_VERSION,
        )
    return LEVELS[name], bool(level & _BRIDGE)


def _check_connect_flags(flags: int, version: int) -> None:
    """Check the connect flags (section 3.1.2.3). MQTT 3.1 has no rule for bit 0 and password."""
    will_qos = flags >> 3 & 3
    if version != MQTT_3_1 and flags & 0x01:
        raise ProtocolError("CONNECT: reserved connect flag is set", "MQTT-3.1.2-3")
    if will_qos == 3:
        raise ProtocolError("CONNECT: will QoS is 3", "MQTT-3.1.2-14")
    if not flags & 0x04 and will_qos:
        raise ProtocolError("CONNECT: will QoS without will flag", "MQTT-3.1.2-13")
    if not flags & 0x04 and flags & 0x20:
        raise ProtocolError("CONNECT: will retain without will flag", "MQTT-3.1.2-15")
    if version != MQTT_3_1 and flags & 0xC0 == 0x40:
        raise ProtocolError("CONNECT: password flag without user name flag", "MQTT-3.1.2-22")


def _will(fields: "_Fields", flags: int) -> Will:
    topic = fields.text("will topic", "MQTT-3.1.2-9")
    try:
        validate_topic_name(topic)
    except TopicError as error:
        raise ProtocolError(f"CONNECT: will {error.reason}", error.statement) from None
    payload = fields.binary("will message", "MQTT-3.1.2-9")
    return Will(topic, payload, flags >> 3 & 3, bool(flags & 0x20))


class _Fields:
    """Reads one field after the other; a field that exceeds the body is a ``ProtocolError``."""

    __slots__ = ("_packet", "at", "body")

    def __init__(self, body: bytes, packet: str) -> None:
        self.body = body
        self._packet = packet
        self.at = 0

    def at_end(self) -> bool:
        return self.at == len(self.body)

    def finish(self) -> None:
        extra = len(self.body) - self.at
        if extra:
            raise ProtocolError(f"{self._packet}: {extra} bytes too many", "MQTT-4.8.0-1")

    def byte(self, what: str) -> int:
        return self._take(1, what, "MQTT-4.8.0-1")[0]

    def number(self, what: str, statement: str = "MQTT-4.8.0-1") -> int:
        return int.from_bytes(self._take(2, what, statement), "big")

    def binary(self, what: str, statement: str) -> bytes:
        return self._take(self.number(what, statement), what, statement)

    def text(self, what: str, statement: str) -> str:
        return decode_utf8(self.binary(what, statement), f"{self._packet}: {what}")

    def packet_id(self) -> int:
        packet_id = self.number("packet identifier", "MQTT-2.3.1-1")
        if not packet_id:
            raise ProtocolError(f"{self._packet} with packet identifier 0", "MQTT-2.3.1-1")
        return packet_id

    def topic_filter(self) -> str:
        text = self.text("topic filter", "MQTT-4.8.0-1")
        try:
            validate_topic_filter(text)
        except TopicError as error:
            raise ProtocolError(f"{self._packet}: {error.reason}", error.statement) from None
        return text

    def _take(self, size: int, what: str, statement: str) -> bytes:
        start = self.at
        end = start + size
        if end > len(self.body):
            raise ProtocolError(f"{self._packet} ends inside its {what}", statement)
        self.at = end
        return self.body[start:end]
