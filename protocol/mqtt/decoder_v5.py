"""The reader of an MQTT 5 client's packets, used by a ``Decoder``."""

from protocol.mqtt.ack_decoder_v5 import parse_auth, parse_disconnect, read_acks_v5
from protocol.mqtt.connect_decoder_v5 import parse_connect_v5
from protocol.mqtt.field_reader import read_frame
from protocol.mqtt.packets import BATCH_MIN, Acks, Connect, Packet, PacketType, Pingreq, Publishes
from protocol.mqtt.property_codec import malformed, properties_cost, violation
from protocol.mqtt.protocol_error import ProtocolError
from protocol.mqtt.publish_decoder_v5 import TopicAliases, read_publishes_v5
from protocol.mqtt.reason_codes import ReasonCode
from protocol.mqtt.subscribe_decoder_v5 import SubscriptionReader

_PUBLISH = frozenset({0x30, 0x31, *range(0x32, 0x36), *range(0x3A, 0x3E)})
_ACKS = {
    0x40: PacketType.PUBACK,
    0x50: PacketType.PUBREC,
    0x62: PacketType.PUBREL,
    0x70: PacketType.PUBCOMP,
}
_WITH_FILTERS = {0x82: PacketType.SUBSCRIBE, 0xA2: PacketType.UNSUBSCRIBE}
_LEGAL = _PUBLISH | frozenset(_ACKS) | frozenset(_WITH_FILTERS) | {0xC0, 0xE0, 0xF0}
_FROM_SERVERS = frozenset(
    {PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PINGRESP}
)
_FLAG_STATEMENTS = {
    PacketType.PUBREL: "MQTT-3.6.1-1",
    PacketType.SUBSCRIBE: "MQTT-3.8.1-1",
    PacketType.UNSUBSCRIBE: "MQTT-3.10.1-1",
    PacketType.DISCONNECT: "MQTT-3.14.1-1",
    PacketType.AUTH: "MQTT-3.15.1-1",
}


class PacketDecoderV5:
    """Reads the packets of one client in MQTT 5, and keeps the state for it: topic aliases.

    ``max_topic_aliases`` is the Topic Alias Maximum of the CONNACK.
    """

    __slots__ = ("_aliases", "_max_topic_aliases", "_method")

    legal = _LEGAL
    """The first bytes of packets that are legal after CONNECT."""
    read_frame = staticmethod(read_frame)
    properties_cost = staticmethod(properties_cost)

    def __init__(self, max_topic_aliases: int = 0) -> None:
        self._max_topic_aliases = max_topic_aliases
        self._aliases: TopicAliases | None = None
        """Created for the first PUBLISH: most clients of a broker send none."""
        self._method: str | None = None

    def connect(self, body: bytes) -> Connect:
        """Parse a CONNECT; raises ``ProtocolError``."""
        connect = parse_connect_v5(body)
        if connect.properties is not None:
            self._method = connect.properties.authentication_method
        return connect

    def read(
        self, data: bytes, at: int, body: int, stop: int, limit: int, room: int, to: list[Packet]
    ) -> tuple[int, int]:
        """Read the packet at ``data[at:stop]``, and similar ones that follow, up to ``room``.

        Returns the offset of the first unread byte, and the room used. Raises ``ProtocolError``;
        the packets in ``to`` then precede the offending one.
        """
        first = data[at]
        if first in _PUBLISH:
            batch = Publishes(first >> 1 & 3, retain=first & 1 == 1, dup=first & 8 == 8)
            batch.blocks = []
            to.append(batch)
            weight = 8 if batch.qos else 1
            most = (room + weight - 1) // weight
            aliases = self._aliases
            if aliases is None:
                aliases = self._aliases = TopicAliases(self._max_topic_aliases)
            end, left = read_publishes_v5(data, at, body, stop, limit, batch, most, aliases)
            batch.size = end - at
            return end, max((most - left) * weight, BATCH_MIN)
        if first in _ACKS:
            acks = Acks(_ACKS[first])
            to.append(acks)
            end = read_acks_v5(data, at, body, stop, acks, room)
            return end, max(len(acks), BATCH_MIN) + properties_cost(stop - at)
        to.append(self._parse(PacketType(first >> 4), data[body:stop]))
        return stop, 1 + properties_cost(stop - at)

    def subscription_reader(self, first: int, body: bytes) -> SubscriptionReader:
        """Return a reader for a SUBSCRIBE or UNSUBSCRIBE; raises ``ProtocolError``."""
        return SubscriptionReader(body, _WITH_FILTERS[first])

    @staticmethod
    def too_large(size: int, limit: int) -> ProtocolError:
        """Return the error for a packet that is larger than the limit."""
        return violation(
            f"packet of {size} bytes, at most {limit} are accepted",
            "MQTT-3.2.2-15",
            ReasonCode.PACKET_TOO_LARGE,
        )

    @staticmethod
    def first_byte_violation(first: int) -> ProtocolError:
        """Return the error for a first byte that is not in ``PacketDecoderV5.legal``."""
        kind, flags = PacketType(first >> 4) if first >> 4 else None, first & 15
        if kind is None:
            return malformed("packet type 0 is reserved")
        name = kind.name
        if kind is PacketType.CONNECT:
            return violation("second CONNECT", "MQTT-3.1.0-2")
        if kind in _FROM_SERVERS:
            return violation(f"{name}, which only a server sends")
        if kind is PacketType.PUBLISH and flags & 6 == 6:
            return malformed("PUBLISH with QoS 3", "MQTT-3.3.1-4")
        if kind is PacketType.PUBLISH:
            return malformed("PUBLISH with DUP at QoS 0", "MQTT-3.3.1-2")
        return malformed(
            f"{name} with flags {flags:04b}", _FLAG_STATEMENTS.get(kind, "MQTT-2.1.3-1")
        )

    def _parse(self, kind: PacketType, body: bytes) -> Packet:
        if kind is PacketType.DISCONNECT:
            return parse_disconnect(body)
        if kind is PacketType.AUTH:
            return parse_auth(body, self._method)
        if body:
            raise malformed(f"{kind.name} with a Remaining Length of {len(body)}")
        return Pingreq()
