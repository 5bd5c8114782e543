"""The decoder of CONNECT in MQTT 5 (section 3.1)."""

from collections.abc import Mapping
from typing import Final, cast

from protocol.mqtt import property_table as table
from protocol.mqtt.connect_decoder import MQTT_5
from protocol.mqtt.field_reader import FieldReader, check_topic_name
from protocol.mqtt.message_properties import split_properties
from protocol.mqtt.packets import Connect, ConnectProperties, PacketType, UserProperties, Will
from protocol.mqtt.property_codec import Value, malformed, violation

_ABSENT: Final = ConnectProperties()
"""Shared by all clients that send none: a connection costs less memory."""
_USER_NAME, _PASSWORD, _WILL_RETAIN, _WILL, _CLEAN_START = 0x80, 0x40, 0x20, 0x04, 0x02


def parse_connect_v5(body: bytes) -> Connect:
    """Parse variable header and payload of a CONNECT with protocol level 5.

    Raises ``ProtocolError``.
    """
    fields = FieldReader(body, "CONNECT")
    fields.binary("protocol name", "MQTT-3.1.2-1")
    fields.byte("protocol level")
    flags = fields.byte("connect flags")
    _check_flags(flags)
    keep_alive = fields.number("keep alive")
    properties = _properties(*fields.properties(PacketType.CONNECT))
    client_id = fields.text("client identifier", "MQTT-3.1.3-3")
    will = _will(fields, flags) if flags & _WILL else None
    username = password = None
    if flags & _USER_NAME:
        username = fields.text("user name", "MQTT-3.1.2-17")
    if flags & _PASSWORD:
        password = fields.binary("password", "MQTT-3.1.2-19")
    fields.finish()
    clean = bool(flags & _CLEAN_START)
    return Connect(MQTT_5, client_id, clean, keep_alive, will, username, password, properties)


def _check_flags(flags: int) -> None:
    """Check the connect flags (section 3.1.2.3)."""
    will_qos = flags >> 3 & 3
    if flags & 0x01:
        raise malformed("CONNECT: reserved connect flag is set", "MQTT-3.1.2-3")
    if will_qos == 3:
        raise malformed("CONNECT: will QoS is 3", "MQTT-3.1.2-12")
    if not flags & _WILL and will_qos:
        raise malformed("CONNECT: will QoS without will flag", "MQTT-3.1.2-11")
    if not flags & _WILL and flags & _WILL_RETAIN:
        raise malformed("CONNECT: will retain without will flag", "MQTT-3.1.2-13")


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


def _will(fields: FieldReader, flags: int) -> Will:
    found = split_properties(fields.property_bytes(), table.WILL)
    topic = fields.text("will topic", "MQTT-3.1.2-9")
    check_topic_name(topic, "CONNECT: will ")
    payload = fields.binary("will payload", "MQTT-3.1.2-9")
    retain = bool(flags & _WILL_RETAIN)
    return Will(topic, payload, flags >> 3 & 3, retain, found.delay, found.block)
