"""The reader of an MQTT 5 client's packets, used by a ``Decoder``: of all but PUBLISH.

Acknowledgements, DISCONNECT and AUTH may be sent in shorter forms: without properties, and where
the reason code is 0, without that too (sections 3.4.2.1, 3.14.2.1, 3.15.2.1).
"""

import sys
from array import array
from typing import cast

from protocol.mqtt import property_table as table
from protocol.mqtt.connect_decoder import parse_connect
from protocol.mqtt.field_reader import FieldReader
from protocol.mqtt.packets import (
    BATCH_MIN,
    Acks,
    Auth,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
)
from protocol.mqtt.property_codec import malformed, properties_cost, violation
from protocol.mqtt.protocol_error import ProtocolError
from protocol.mqtt.publish_decoder import TopicAliases, count_alike
from protocol.mqtt.reason_codes import FROM_CLIENTS, STATEMENTS

PUBLISH = frozenset({0x30, 0x31, *range(0x32, 0x36), *range(0x3A, 0x3E)})
_ACKS = {
    0x40: PacketType.PUBACK,
    0x50: PacketType.PUBREC,
    0x62: PacketType.PUBREL,
    0x70: PacketType.PUBCOMP,
}
LEGAL_V5 = PUBLISH | frozenset(_ACKS) | {0x82, 0xA2, 0xC0, 0xE0, 0xF0}
"""The first bytes of packets that are legal after CONNECT."""


class PacketDecoderV5:
    """Reads the packets of one client in MQTT 5, and keeps the state for it: topic aliases.

    ``max_topic_aliases`` is the Topic Alias Maximum of the CONNACK.
    """

    __slots__ = ("_aliases", "_max_topic_aliases", "_method")

    def __init__(self, max_topic_aliases: int = 0) -> None:
        self._max_topic_aliases = max_topic_aliases
        self._aliases: TopicAliases | None = None
        """Created for the first PUBLISH: most clients of a broker send none."""
        self._method: str | None = None

    @property
    def aliases(self) -> TopicAliases:
        """The topics of the client's topic aliases."""
        if self._aliases is None:
            self._aliases = TopicAliases(self._max_topic_aliases)
        return self._aliases

    def connect(self, body: bytes) -> Connect:
        """Parse a CONNECT; raises ``ProtocolError``."""
        connect = parse_connect(body, v5=True)
        if connect.properties is not None:
            self._method = connect.properties.authentication_method
        return connect

    def read(
        self, data: bytes, at: int, body: int, stop: int, room: int, to: list[Packet]
    ) -> tuple[int, int]:
        """Read any packet but PUBLISH at ``data[at:stop]``, and similar ones that follow.

        At most ``room`` of them. Returns the offset of the first unread byte, and the room used.
        Raises ``ProtocolError``; the packets in ``to`` then precede the offending one.
        """
        first = data[at]
        if first in _ACKS:
            acks = Acks(_ACKS[first])
            to.append(acks)
            end = _read_acks(data, at, body, stop, acks, room)
            return end, max(len(acks), BATCH_MIN) + properties_cost(stop - at)
        to.append(self._parse(PacketType(first >> 4), data[body:stop]))
        return stop, 1 + properties_cost(stop - at)

    def _parse(self, kind: PacketType, body: bytes) -> Packet:
        if kind is PacketType.DISCONNECT:
            return _parse_disconnect(body)
        if kind is PacketType.AUTH:
            return _parse_auth(body, self._method)
        if body:
            raise malformed(f"{kind.name} with a Remaining Length of {len(body)}")
        return Pingreq()


_LONGEST_RUN_SIZE = 6
"""Size of the longest acknowledgement without properties: with a reason code and a 0."""


def _read_acks(data: bytes, at: int, body: int, stop: int, batch: Acks, most: int) -> int:
    """Read the acknowledgement at ``data[at:stop]``, and similar ones that follow, into ``batch``.

    At most ``most``. Returns the offset of the first unread byte. Raises ``ProtocolError``.
    """
    size = stop - at
    if (  # the most common case first: a single valid one
        size <= _LONGEST_RUN_SIZE
        and data[stop : stop + 2] != data[at : at + 2]
        and size >= 4
        and not any(data[at + 4 : stop])
    ):
        packet_id = data[at + 2] << 8 | data[at + 3]
        if not packet_id:
            raise _no_identifier(batch)
        batch.packet_ids.append(packet_id)
        return stop
    if body - at != 2 or not 4 <= size <= _LONGEST_RUN_SIZE or (size == 6 and data[at + 5]):
        _read_ack(data[body:stop], batch)
        return stop
    count = 1
    head = data[at : at + 2]
    if data[stop : stop + 2] == head:
        count = max(1, count_alike(data, at, size, head, most))
    end = at + size * count
    if size == 6:  # the last byte is a Property Length of 0, or the packet does not belong here
        lengths = data[at + 5 : end : 6]
        end -= 6 * len(lengths.lstrip(b"\0"))
    if size == 4:
        halves = array("H", data[at:end])
    else:
        numbers = bytearray(4 * (end - at) // size)
        numbers[2::4] = data[at + 2 : end : size]
        numbers[3::4] = data[at + 3 : end : size]
        halves = array("H", bytes(numbers))
    if sys.byteorder == "little":
        halves.byteswap()
    reasons = data[at + 4 : end : size] if size > 4 else b""
    _add(batch, halves[1::2].tolist(), reasons)
    return end


def _add(batch: Acks, ids: list[int], reasons: bytes) -> None:
    """Append acknowledgements up to the first invalid one, and raise its error."""
    failed = bool(reasons.strip(b"\0"))
    if not failed and all(ids):
        batch.packet_ids += ids
        return
    allowed = FROM_CLIENTS[batch.kind]
    wrong = ids.index(0) if 0 in ids else len(ids)
    if failed and not allowed.issuperset(reasons):
        wrong = min(wrong, next(n for n, reason in enumerate(reasons) if reason not in allowed))
    batch.packet_ids += ids[:wrong]
    if any(reasons[:wrong]):
        batch.reasons = list(reasons[:wrong])
    if wrong < len(ids):
        if not ids[wrong]:
            raise _no_identifier(batch)
        _check_reason(batch.kind, reasons[wrong])


def _no_identifier(batch: Acks) -> ProtocolError:
    return violation(f"{batch.kind.name} with packet identifier 0", "MQTT-2.2.1-5")


def _read_ack(body: bytes, batch: Acks) -> None:
    fields = FieldReader(body, batch.kind.name)
    packet_id = fields.number("packet identifier")
    reason = 0 if fields.at_end() else fields.byte("reason code")
    if not fields.at_end():
        fields.properties(batch.kind)
        fields.finish()
    _add(batch, [packet_id], bytes((reason,)))


def _check_reason(kind: PacketType, reason: int) -> None:
    """Raise ``ProtocolError`` unless a client may send a reason code in a packet."""
    if reason not in FROM_CLIENTS[kind]:
        raise violation(f"{kind.name} with reason code 0x{reason:02x}", STATEMENTS[kind])


def _parse_disconnect(body: bytes) -> Disconnect:
    """Parse a DISCONNECT (section 3.14); raises ``ProtocolError``."""
    fields = FieldReader(body, "DISCONNECT")
    if fields.at_end():
        return Disconnect()
    reason = fields.byte("reason code")
    _check_reason(PacketType.DISCONNECT, reason)
    if fields.at_end():
        return Disconnect(reason)
    values, user = fields.properties(PacketType.DISCONNECT)
    fields.finish()
    return Disconnect(
        reason,
        cast("int | None", values.get(table.SESSION_EXPIRY)),
        cast("str | None", values.get(table.REASON_STRING)),
        user,
    )


def _parse_auth(body: bytes, method: str | None) -> Auth:
    """Parse an AUTH (section 3.15) of a client that began with an Authentication Method.

    Raises ``ProtocolError``, also if it began without one [MQTT-4.12.0-7].
    """
    if method is None:
        raise violation("AUTH, and the CONNECT had no Authentication Method", "MQTT-4.12.0-7")
    fields = FieldReader(body, "AUTH")
    if fields.at_end():
        raise violation("AUTH with reason code 0x00", STATEMENTS[PacketType.AUTH])
    reason = fields.byte("reason code")
    _check_reason(PacketType.AUTH, reason)
    if fields.at_end():
        raise malformed("AUTH without properties")
    values, user = fields.properties(PacketType.AUTH)
    fields.finish()
    named = values.get(table.AUTHENTICATION_METHOD)
    if named is None:
        raise violation("AUTH without Authentication Method")
    if named != method:
        raise violation("AUTH with another Authentication Method", "MQTT-4.12.0-5")
    return Auth(
        reason,
        method,
        cast("bytes | None", values.get(table.AUTHENTICATION_DATA)),
        cast("str | None", values.get(table.REASON_STRING)),
        user,
    )
