"""The reader of an MQTT 5 client's packets, used by a ``Decoder``."""

from protocol.mqtt.ack_decoder_v5 import parse_auth, parse_disconnect, read_acks_v5
from protocol.mqtt.connect_decoder import parse_connect
from protocol.mqtt.packets import BATCH_MIN, Acks, Connect, Packet, PacketType, Pingreq
from protocol.mqtt.property_codec import malformed, properties_cost
from protocol.mqtt.publish_decoder import TopicAliases

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
            end = read_acks_v5(data, at, body, stop, acks, room)
            return end, max(len(acks), BATCH_MIN) + properties_cost(stop - at)
        to.append(self._parse(PacketType(first >> 4), data[body:stop]))
        return stop, 1 + properties_cost(stop - at)

    def _parse(self, kind: PacketType, body: bytes) -> Packet:
        if kind is PacketType.DISCONNECT:
            return parse_disconnect(body)
        if kind is PacketType.AUTH:
            return parse_auth(body, self._method)
        if body:
            raise malformed(f"{kind.name} with a Remaining Length of {len(body)}")
        return Pingreq()
