"""The decoder of CONNECT before MQTT 5 (section 3.1)."""

from protocol.mqtt.field_reader import FieldReader, check_topic_name
from protocol.mqtt.packets import Connect, ConnectCode, Will
from protocol.mqtt.protocol_error import ProtocolError

MQTT_3_1 = 3
MQTT_3_1_1 = 4
MQTT_5 = 5
LEVELS = {b"MQIsdp": MQTT_3_1, b"MQTT": MQTT_3_1_1}
"""Protocol name -> its protocol level."""
_BRIDGE = 0x80
"""Bit of the protocol level with which other brokers' bridges connect."""


def parse_connect(body: bytes) -> Connect:
    """Parse variable header and payload of a CONNECT (section 3.1); raises ``ProtocolError``."""
    fields = FieldReader(body, "CONNECT", v5=False)
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


def _protocol_level(fields: FieldReader) -> tuple[int, bool]:
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


def _will(fields: FieldReader, flags: int) -> Will:
    topic = fields.text("will topic", "MQTT-3.1.2-9")
    check_topic_name(topic, "CONNECT: will ", v5=False)
    payload = fields.binary("will message", "MQTT-3.1.2-9")
    return Will(topic, payload, flags >> 3 & 3, bool(flags & 0x20))
