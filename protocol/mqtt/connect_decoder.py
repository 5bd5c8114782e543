"""The decoder of CONNECT at all protocol levels (section 3.1)."""

from collections.abc import Mapping
from typing import Final, cast

from protocol.mqtt import property_table as table
from protocol.mqtt.field_reader import FieldReader, check_topic_name
from protocol.mqtt.message_properties import split_properties
from protocol.mqtt.packets import (
    Connect,
    ConnectCode,
    ConnectProperties,
    PacketType,
    UserProperties,
    Will,
)
from protocol.mqtt.property_codec import Value, violation
from protocol.mqtt.protocol_error import ProtocolError

MQTT_3_1 = 3
MQTT_3_1_1 = 4
MQTT_5 = 5
LEVELS = {b"MQIsdp": MQTT_3_1, b"MQTT": MQTT_3_1_1}
"""Protocol name -> its protocol level."""
START_V5: Final = b"\0\4MQTT\5"
"""Protocol name and level with which the body of a CONNECT of MQTT 5 begins."""
_BRIDGE = 0x80
"""Bit of the protocol level with which other brokers' bridges connect."""
_USER_NAME, _PASSWORD, _WILL_RETAIN, _WILL, _CLEAN = 0x80, 0x40, 0x20, 0x04, 0x02
_ABSENT: Final = ConnectProperties()
"""Shared by all clients that send none: a connection costs less memory."""


def parse_connect(body: bytes, *, v5: bool = False) -> Connect:
    """Parse variable header and payload of a CONNECT; raises ``ProtocolError``.

    With ``v5`` it begins with ``START_V5``.
    """
    fields = FieldReader(body, "CONNECT", v5=v5)
    version, bridge = MQTT_5, False
    if v5:
        fields.at = len(START_V5)
    else:
        version, bridge = _protocol_level(fields)
    flags = fields.byte("connect flags")
    _check_connect_flags(flags, version)
    keep_alive = fields.number("keep alive")
    properties = _properties(*fields.properties(PacketType.CONNECT)) if v5 else None
    client_id = fields.text("client identifier", "MQTT-3.1.3-3")
    clean = bool(flags & _CLEAN)
    if not client_id and not v5 and (version == MQTT_3_1 or not clean):
        raise ProtocolError(
            "empty client identifier" + ("" if clean else " without clean session"),
            "MQTT-3.1.3-8",
            ConnectCode.IDENTIFIER_REJECTED,
        )
    will = _will(fields, flags, v5=v5) if flags & _WILL else None
    username = password = None
    # In MQTT 3.1 the Remaining Length overrides these flags: a field may be missing.
    if flags & _USER_NAME and not (version == MQTT_3_1 and fields.at_end()):
        username = fields.text("user name", "MQTT-3.1.2-17" if v5 else "MQTT-3.1.2-19")
    if flags & _PASSWORD and not (version == MQTT_3_1 and fields.at_end()):
        password = fields.binary("password", "MQTT-3.1.2-19" if v5 else "MQTT-3.1.2-21")
    fields.finish()
    return Connect(
        version, client_id, clean, keep_alive, will, username, password, properties, bridge
    )


def _protocol_level(fields: FieldReader) -> tuple[int, bool]:
    """Return the protocol level before MQTT 5, and whether the client is a bridge."""
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
    """Check the connect flags (section 3.1.2.3).

    MQTT 3.1 has no rule for bit 0, and MQTT 3.1.1 alone has one for a password without user name.
    """
    v5, will_qos = version == MQTT_5, flags >> 3 & 3
    if version != MQTT_3_1 and flags & 0x01:
        raise ProtocolError("CONNECT: reserved connect flag is set", "MQTT-3.1.2-3")
    if will_qos == 3:
        statement = "MQTT-3.1.2-12" if v5 else "MQTT-3.1.2-14"
        raise ProtocolError("CONNECT: will QoS is 3", statement)
    if not flags & _WILL and will_qos:
        statement = "MQTT-3.1.2-11" if v5 else "MQTT-3.1.2-13"
        raise ProtocolError("CONNECT: will QoS without will flag", statement)
    if not flags & _WILL and flags & _WILL_RETAIN:
        statement = "MQTT-3.1.2-13" if v5 else "MQTT-3.1.2-15"
        raise ProtocolError("CONNECT: will retain without will flag", statement)
    if version == MQTT_3_1_1 and flags & (_USER_NAME | _PASSWORD) == _PASSWORD:
        raise ProtocolError("CONNECT: password flag without user name flag", "MQTT-3.1.2-22")


def _properties(values: Mapping[int, Value], user: UserProperties) -> ConnectProperties:
    if not values and not user:
        return _ABSENT
    if table.AUTHENTICATION_DATA in values and table.AUTHENTICATION_METHOD not in values:
        raise violation("CONNECT: Authentication Data without Authentication Method")

    def number(identifier: int, absent: int) -> int:
        return cast("int", values.get(identifier, absent))

    return ConnectProperties(
        number(table.SESSION_EXPIRY, 0),
        number(table.RECEIVE_MAXIMUM, 65_535),
        number(table.MAXIMUM_PACKET_SIZE, 0),
        number(table.TOPIC_ALIAS_MAXIMUM, 0),
        bool(number(table.REQUEST_RESPONSE_INFORMATION, 0)),
        bool(number(table.REQUEST_PROBLEM_INFORMATION, 1)),
        user,
        cast("str | None", values.get(table.AUTHENTICATION_METHOD)),
        cast("bytes | None", values.get(table.AUTHENTICATION_DATA)),
    )


def _will(fields: FieldReader, flags: int, *, v5: bool) -> Will:
    delay, block = 0, b""
    if v5:
        read = split_properties(fields.property_bytes(), table.WILL)
        delay, block = read.delay, read.block
    topic = fields.text("will topic", "MQTT-3.1.2-9")
    check_topic_name(topic, "CONNECT: will ", v5=v5)
    payload = fields.binary("will payload" if v5 else "will message", "MQTT-3.1.2-9")
    return Will(topic, payload, flags >> 3 & 3, bool(flags & _WILL_RETAIN), delay, block)
