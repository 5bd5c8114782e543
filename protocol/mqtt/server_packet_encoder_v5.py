"""Encoder of the packets of a server in MQTT 5, except messages.

``limit`` is the client's Maximum Packet Size in bytes, 0 for none. User properties, and if
necessary the reason string, are left out of a packet that would exceed it; a packet that is still
too large is not sent: then the result is empty, and if the client expects an answer the connection
must be closed. A client that turned Request Problem Information off gets neither (``explain`` is
False), except in CONNACK and DISCONNECT [MQTT-3.1.2-29].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protocol.mqtt import encoder
from protocol.mqtt import property_table as table
from protocol.mqtt.packets import PacketType, UserProperties
from protocol.mqtt.property_codec import (
    Value,
    encode_properties,
    encode_property,
    with_length,
)
from protocol.mqtt.reason_codes import FAILURE, code_string
from protocol.mqtt.remaining_length import encode_length

_FIRST = {
    PacketType.PUBACK: b"\x40",
    PacketType.PUBREC: b"\x50",
    PacketType.PUBREL: b"\x62",
    PacketType.PUBCOMP: b"\x70",
}


@dataclass(slots=True)
class Explanation:
    """The explanation of a reason code in a packet, for a human reader."""

    reason_string: str | None = None
    user: UserProperties = ()


NO_EXPLANATION = Explanation()


@dataclass(slots=True)
class ConnackProperties:
    """Properties of a CONNACK (section 3.2.2.3).

    Values equal to the defaults are not sent.
    """

    session_expiry: int | None = None
    """Seconds, where they differ from the client's request."""
    receive_maximum: int = 65_535
    maximum_qos: int = 2
    retain_available: bool = True
    maximum_packet_size: int = 0
    """Bytes; 0: no limit."""
    assigned_client_identifier: str | None = None
    topic_alias_maximum: int = 0
    wildcard_subscriptions: bool = True
    subscription_identifiers: bool = True
    shared_subscriptions: bool = True
    server_keep_alive: int | None = None
    """Seconds that replace the client's request."""
    response_information: str | None = None
    server_reference: str | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = field(default=None, repr=False)

    def values(self) -> dict[int, Value | None]:
        """Return the properties to be sent; None for the others."""

        def unless(value: int, absent: int) -> int | None:
            return None if value == absent else int(value)

        return {
            table.SESSION_EXPIRY: self.session_expiry,
            table.RECEIVE_MAXIMUM: unless(self.receive_maximum, 65_535),
            table.MAXIMUM_QOS: unless(self.maximum_qos, 2),
            table.RETAIN_AVAILABLE: unless(self.retain_available, True),
            table.MAXIMUM_PACKET_SIZE: unless(self.maximum_packet_size, 0),
            table.ASSIGNED_CLIENT_IDENTIFIER: self.assigned_client_identifier,
            table.TOPIC_ALIAS_MAXIMUM: unless(self.topic_alias_maximum, 0),
            table.WILDCARD_SUBSCRIPTION_AVAILABLE: unless(self.wildcard_subscriptions, True),
            table.SUBSCRIPTION_IDENTIFIERS_AVAILABLE: unless(self.subscription_identifiers, True),
            table.SHARED_SUBSCRIPTION_AVAILABLE: unless(self.shared_subscriptions, True),
            table.SERVER_KEEP_ALIVE: self.server_keep_alive,
            table.RESPONSE_INFORMATION: self.response_information,
            table.SERVER_REFERENCE: self.server_reference,
            table.AUTHENTICATION_METHOD: self.authentication_method,
            table.AUTHENTICATION_DATA: self.authentication_data,
        }


def encode_connack_v5(
    reason: int,
    *,
    session_present: bool = False,
    properties: ConnackProperties | None = None,
    about: Explanation = NO_EXPLANATION,
    limit: int = 0,
) -> bytes:
    """Encode a CONNACK (section 3.2); session present is only set on success [MQTT-3.2.2-6]."""
    present = session_present and reason < FAILURE
    values = properties.values() if properties is not None else {}
    return _packet(b"\x20", bytes((present, reason)), values, about, limit)


def encode_acks_v5(
    kind: PacketType, packet_ids: Sequence[int], reasons: Sequence[int] = ()
) -> bytes:
    """Encode one PUBACK, PUBREC, PUBREL or PUBCOMP per packet identifier, in order.

    ``reasons`` is empty if all are 0. Each has four bytes, or five where the reason is not 0.
    """
    if not any(reasons):
        return encoder.encode_acks(kind, packet_ids)
    first = _FIRST[kind]
    numbers = encoder.PID_BYTES
    return b"".join(
        first + b"\x03" + numbers[packet_id] + bytes((reason,))
        if reason
        else first + b"\x02" + numbers[packet_id]
        for packet_id, reason in zip(packet_ids, reasons, strict=True)
    )


def encode_explained_ack(
    kind: PacketType,
    packet_id: int,
    reason: int,
    about: Explanation,
    *,
    limit: int = 0,
    explain: bool = True,
) -> bytes:
    """Encode one acknowledgement with an explanation."""
    head = encoder.PID_BYTES[packet_id] + bytes((reason,))
    explanation = about if explain else NO_EXPLANATION
    if explanation.reason_string is None and not explanation.user:
        return encode_acks_v5(kind, [packet_id], [reason])
    return _packet(_FIRST[kind], head, {}, explanation, limit) or encode_acks_v5(
        kind, [packet_id], [reason]
    )


def encode_explained_acks(
    kind: PacketType,
    packet_ids: Sequence[int],
    reasons: Sequence[int],
    *,
    limit: int = 0,
    explain: bool = True,
) -> bytes:
    """Encode acknowledgements as :func:`encode_acks_v5` does; errors get an explanation."""
    texts = {code: code_string(code) for code in set(reasons)} if explain else {}
    if not any(texts.values()):
        return encode_acks_v5(kind, packet_ids, reasons)
    return b"".join(
        encode_explained_ack(kind, packet_id, reason, Explanation(texts[reason]), limit=limit)
        for packet_id, reason in zip(packet_ids, reasons, strict=True)
    )


def encode_codes_v5(
    kind: PacketType,
    packet_id: int,
    codes: Sequence[int],
    about: Explanation = NO_EXPLANATION,
    *,
    limit: int = 0,
    explain: bool = True,
) -> bytes:
    """Encode a SUBACK (section 3.9) or UNSUBACK (3.11): the result of each filter."""
    first, head = bytes((kind << 4,)), encoder.PID_BYTES[packet_id]
    return _packet(first, head, {}, about if explain else NO_EXPLANATION, limit, bytes(codes))


def encode_server_disconnect(
    reason: int,
    about: Explanation = NO_EXPLANATION,
    *,
    server_reference: str | None = None,
    limit: int = 0,
) -> bytes:
    """Encode a DISCONNECT (section 3.14), which has no Session Expiry Interval [MQTT-3.14.2-2]."""
    values: dict[int, Value | None] = {table.SERVER_REFERENCE: server_reference}
    if server_reference is None and about.reason_string is None and not about.user:
        short = bytes((0xE0, 1, reason))
        return short if len(short) <= (limit or len(short)) else b""
    return _packet(b"\xe0", bytes((reason,)), values, about, limit)


def encode_server_auth(
    reason: int,
    method: str,
    data: bytes | None = None,
    about: Explanation = NO_EXPLANATION,
    *,
    limit: int = 0,
    explain: bool = True,
) -> bytes:
    """Encode an AUTH (section 3.15)."""
    values: dict[int, Value | None] = {
        table.AUTHENTICATION_METHOD: method,
        table.AUTHENTICATION_DATA: data,
    }
    explanation = about if explain else NO_EXPLANATION
    return _packet(b"\xf0", bytes((reason,)), values, explanation, limit)


def _packet(
    first: bytes,
    head: bytes,
    values: Mapping[int, Value | None],
    about: Explanation,
    limit: int,
    tail: bytes = b"",
) -> bytes:
    """Encode a packet with as many of the user properties and the reason string as fit."""
    if about is NO_EXPLANATION and not values:
        body = head + b"\0" + tail
        packet = first + encode_length(len(body)) + body
        return packet if not limit or len(packet) <= limit else b""
    block = encode_properties(values)
    string = b""
    if about.reason_string is not None:
        string = encode_property(table.REASON_STRING, about.reason_string)
    user = encode_properties({}, about.user)
    for more in (string + user, string, b""):
        body = head + with_length(block + more) + tail
        packet = first + encode_length(len(body)) + body
        if not limit or len(packet) <= limit:
            return packet
    return b""
