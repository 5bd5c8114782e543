"""Decodes the bytes of one connection into packets.

``feed`` puts the rest of the previous bytes before the new ones, then goes from packet to packet.
The first byte alone decides whether a packet is legal at this point of the connection: ``_legal``
is the set of legal first bytes. Next come the Remaining Length and the limit on the size, so that a
packet that is too large is refused before its body is kept. A complete packet goes to the parser
of its kind; PUBLISH and acknowledgements go to ``protocol.mqtt.publish_decoder``, which reads as
many as follow one another.

The level in the CONNECT decides how later packets are read. MQTT 3.1 and 3.1.1 are read here; the
packets of an MQTT 5 client are read by a ``PacketDecoderV5``, if there is a factory for it.
Both share the code here: framing, limits, and the division of the work into calls.

If the work of a call is limited, ``feed`` stops at the limit and keeps the rest undecoded; ``more``
reports this, and ``feed(b"")`` continues.

An incomplete packet is kept in a ``bytearray`` that is inspected again only when the packet is
complete: however a packet is cut into pieces, each of its bytes is copied a fixed number of times.
"""

import sys
from collections.abc import Callable

from protocol.mqtt.connect_decoder import MQTT_3_1, MQTT_5, START_V5, parse_connect
from protocol.mqtt.decoder_v5 import LEGAL_V5, PUBLISH, PacketDecoderV5
from protocol.mqtt.field_reader import read_frame
from protocol.mqtt.filter_reader import FilterReader
from protocol.mqtt.packets import (
    BATCH_MIN,
    Acks,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Publishes,
)
from protocol.mqtt.property_codec import malformed, properties_cost, violation
from protocol.mqtt.protocol_error import ProtocolError
from protocol.mqtt.publish_decoder import read_acks, read_publishes
from protocol.mqtt.reason_codes import ReasonCode
from protocol.mqtt.remaining_length import read_length

MAX_CONNECT_SIZE = 327_701
"""Size in bytes of the largest CONNECT in MQTT 3.1 and 3.1.1: five fields of 65 535 bytes.

It is the limit for the first packet, so that an unauthenticated client cannot make the broker
buffer more than that; in MQTT 5 too, where properties could make it larger.
"""

_CONNECT = 0x10
_FIRST = frozenset({_CONNECT})
_LEGAL = PUBLISH | {0x40, 0x50, 0x62, 0x70, 0x82, 0xA2, 0xC0, 0xE0}
_LEGAL_3_1 = _LEGAL | {0x6A, 0x8A, 0xAA}
"""MQTT 3.1 allows DUP in PUBREL, SUBSCRIBE and UNSUBSCRIBE."""

_ACKS = {
    0x40: PacketType.PUBACK,
    0x50: PacketType.PUBREC,
    0x62: PacketType.PUBREL,
    0x6A: PacketType.PUBREL,
    0x70: PacketType.PUBCOMP,
}
_FILTER_WORK = 4
"""Work of reading one topic filter, counted in packets."""
_WITH_FILTERS = frozenset({PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE})
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


_LARGE_PIECE = 4096
"""Pieces of an incomplete packet of at least this many bytes are kept apart, and copied only
once."""
_LEVEL_AT = 6
"""Offset of the protocol level in a CONNECT of MQTT 3.1.1 or later."""


class Decoder:
    """Decodes the packets of one client, as long as its connection lasts.

    ``max_packet_size`` is the largest whole packet accepted, in bytes; ``at_once``, which may be
    changed, is the approximate number of packets that one call decodes: one of QoS 1 or 2 counts as
    eight, and a batch of similar packets as at least ``BATCH_MIN``. ``v5`` returns the reader for
    an MQTT 5 client; without it, that level is refused.

    ``feed`` never raises for input of a client. Check ``error`` after each call: once it is set,
    the packets returned by that call must still be processed, then ``error.connack`` must be sent
    if there is one, and the connection must be closed; later calls return nothing. When ``level``
    is 5, ``error.reason`` must be sent instead.
    """

    __slots__ = (
        "_buffered",
        "_decoder_v5",
        "_ended",
        "_legal",
        "_limit",
        "_max_packet_size",
        "_needed",
        "_partial",
        "_reader",
        "_unread",
        "_v5",
        "at_once",
        "error",
        "level",
    )

    def __init__(
        self,
        max_packet_size: int,
        at_once: int = sys.maxsize,
        v5: Callable[[], PacketDecoderV5] | None = None,
    ) -> None:
        self.error: ProtocolError | None = None
        self.at_once = at_once
        self.level = 0
        """The protocol level, 3, 4 or 5, as soon as it is known; also of a CONNECT refused for
        another reason. 0 for all others."""
        self._v5 = v5
        self._decoder_v5: PacketDecoderV5 | None = None
        """Reads the packets of an MQTT 5 client."""
        self._reader: FilterReader | None = None
        """A SUBSCRIBE or UNSUBSCRIBE whose topic filters have not all been read."""
        self._unread: tuple[bytes, int] | None = None
        """Input that is not decoded yet, and the offset of its first undecoded byte."""
        self._max_packet_size = max_packet_size
        self._limit = min(max_packet_size, MAX_CONNECT_SIZE)
        self._legal = _FIRST
        self._partial: list[bytes | bytearray] | None = None
        """The beginning of an incomplete packet, in pieces as they arrived; None: there is none."""
        self._buffered = 0
        self._needed = 0
        self._ended = False

    @property
    def buffered(self) -> int:
        """Number of buffered bytes of an incomplete packet."""
        return self._buffered

    @property
    def empty(self) -> bool:
        """True when no input is buffered, and more may follow."""
        return not (
            self._partial
            or self._unread is not None
            or self._reader is not None
            or self._ended
            or self.error is not None
        )

    @property
    def more(self) -> bool:
        """True when packets were left for the next call."""
        return self._unread is not None or self._reader is not None

    def stop(self) -> None:
        """Ignore all further input."""
        self._ended = True
        self._partial = None
        self._buffered = 0
        self._unread = self._reader = None

    def feed(self, data: bytes) -> list[Packet]:
        """Decode the next bytes of the connection; return the packets they complete, in order.

        Input after a DISCONNECT is ignored: a client sends nothing more [MQTT-3.14.4-2].
        """
        if self.error is not None or self._ended:
            return []
        if self._partial:
            self._buffered += len(data)
            if self._buffered < self._needed:
                self._keep_piece(self._partial, data)
                return []
            self._partial.append(data)
            data = b"".join(self._partial)
            self._partial = None
            self._buffered = 0
        data, at = self._take_unread(data)
        packets: list[Packet] = []
        try:
            if self._reader is not None and not self._read_filters(self._reader, packets):
                self._unread = data, at
                return packets
            at = self._read(data, at, packets)
        except ProtocolError as error:
            # Drop its context: the frames in it would keep the input in memory.
            error.__context__ = None
            self.error = error.with_traceback(None)
            if packets and isinstance(packets[-1], Publishes | Acks) and not len(packets[-1]):
                packets.pop()
            return packets
        if at < len(data) and not self._ended and self._unread is None:
            self._partial = [data[at:] if at else data]
            self._buffered = len(data) - at
        return packets

    def _keep_piece(self, pieces: list[bytes | bytearray], data: bytes) -> None:
        """Keep a piece of an incomplete packet; small ones are joined, so that they stay few."""
        if len(data) >= _LARGE_PIECE:
            pieces.append(data)
            return
        newest = pieces[-1]
        if isinstance(newest, bytearray):
            newest += data
        else:
            pieces.append(bytearray(data))

    def _take_unread(self, data: bytes) -> tuple[bytes, int]:
        """Return the unread input together with ``data``, and the offset of its first byte."""
        if self._unread is None:
            return data, 0
        unread, at = self._unread
        self._unread = None
        return (unread[at:] + data, 0) if data else (unread, at)

    def _read(self, data: bytes, at: int, packets: list[Packet]) -> int:
        """Read whole packets from an offset on; return the offset of the first unread byte."""
        level = self._decoder_v5
        end, room = len(data), self.at_once if level is None else self.at_once - len(packets)
        while at < end and not self._ended:
            if room <= 0:
                self._unread = data, at
                break
            first = data[at]
            if first not in self._legal:
                connected = self._legal is not _FIRST
                raise _first_byte_violation(first, connected, v5=level is not None)
            body = at + 2
            if body <= end and data[at + 1] < 0x80:  # the most common case first
                stop = body + data[at + 1]
            else:
                framed = read_length(data, at + 1) if level is None else read_frame(data, at + 1)
                if framed is None:
                    self._needed = end - at + 1
                    break
                length, body = framed
                stop = body + length
            if stop - at > self._limit:
                self._needed = self._refuse_size(data, at, body, stop)
                break
            if stop > end:
                self._needed = stop - at
                break
            if first in PUBLISH:
                batch = Publishes(first >> 1 & 3, retain=first & 1 == 1, dup=first & 8 == 8)
                packets.append(batch)
                weight = 8 if batch.qos else 1
                most = (room + weight - 1) // weight
                begin, aliases = at, None if level is None else level.aliases
                at, spare = read_publishes(data, at, body, stop, self._limit, batch, most, aliases)
                batch.size = at - begin
                room -= max((most - spare) * weight, BATCH_MIN)
            elif level is None and first in _ACKS:
                acks = Acks(_ACKS[first], [])
                packets.append(acks)
                if stop - body == 2 == body - at:
                    at = read_acks(data, at, acks, room)
                else:
                    _read_long_ack(data, body, stop, acks)
                    at = stop
                room -= max(len(acks.packet_ids), BATCH_MIN)
            elif first >> 4 in _WITH_FILTERS:
                kind = PacketType(first >> 4)
                reader = FilterReader(data[body:stop], kind, v5=level is not None)
                room -= properties_cost(stop - at) if level is not None else 0
                at = stop
                if not self._read_filters(reader, packets):
                    self._unread = data, at
                    break
                room -= BATCH_MIN + reader.count * _FILTER_WORK
            elif level is not None:
                at, work = level.read(data, at, body, stop, room, packets)
                room -= work
                self._ended = type(packets[-1]) is Disconnect
            else:
                redundant = body - at > 2 and not data[body - 1]
                packets.append(self._parse(PacketType(first >> 4), data[body:stop], redundant))
                level, at = self._decoder_v5, stop
                room -= 1
        return at

    def _read_filters(self, reader: FilterReader, packets: list[Packet]) -> bool:
        """Read some topic filters of a packet; return whether all have been read."""
        self._reader = None
        if not reader.read(max(1, self.at_once // _FILTER_WORK)):
            self._reader = reader
            return False
        packets.append(reader.packet())
        return True

    def _parse(self, kind: PacketType, body: bytes, redundant: bool) -> Packet:
        """Parse any other packet; ``redundant``: its Remaining Length is longer than necessary."""
        if kind is PacketType.CONNECT:
            return self._parse_connect(body, redundant)
        if body:
            raise malformed(f"{kind.name} with a Remaining Length of {len(body)}", "MQTT-4.8.0-1")
        if kind is PacketType.PINGREQ:
            return Pingreq()
        self._ended = True
        return Disconnect()

    def _parse_connect(self, body: bytes, redundant: bool) -> Connect:
        if self._v5 is not None and _names_v5(body):
            self.level = MQTT_5
            reader = self._v5()
            connect = reader.connect(body)
            if redundant:  # legal before MQTT 5
                text = "CONNECT: Remaining Length is longer than necessary"
                raise malformed(text, "MQTT-1.5.5-1")
            self._decoder_v5 = reader
            self._legal = LEGAL_V5
        else:
            connect = parse_connect(body)
            self.level = connect.version
            self._legal = _LEGAL_3_1 if connect.version == MQTT_3_1 else _LEGAL
        self._limit = self._max_packet_size
        return connect

    def _refuse_size(self, data: bytes, at: int, body: int, stop: int) -> int:
        """Raise ``ProtocolError`` for a packet that is too large.

        A CONNECT may name MQTT 5, in which its refusal has a reason code: if its protocol level has
        not arrived yet, the number of bytes needed for that is returned.
        """
        if self._legal is _FIRST and self._v5 is not None:
            if len(data) - body <= _LEVEL_AT:
                return body - at + _LEVEL_AT + 1
            self.level = MQTT_5 * _names_v5(data[body : body + _LEVEL_AT + 1])
        raise self._too_large(stop - at)

    def _too_large(self, size: int) -> ProtocolError:
        return violation(
            f"packet of {size} bytes, at most {self._limit} are accepted",
            "MQTT-3.2.2-15" if self.level == MQTT_5 else "MQTT-4.8.0-1",
            ReasonCode.PACKET_TOO_LARGE,
        )


def _read_long_ack(data: bytes, body: int, stop: int, acks: Acks) -> None:
    """Read one acknowledgement alone: redundant bytes of its Remaining Length are legal."""
    if stop - body != 2:
        raise ProtocolError(
            f"{acks.kind.name} with a Remaining Length of {stop - body}", "MQTT-4.8.0-1"
        )
    read_acks(data[body - 2 : stop], 0, acks)


def _names_v5(body: bytes) -> bool:
    """Return whether a CONNECT is of MQTT 5."""
    return body.startswith(START_V5)


def _first_byte_violation(first: int, connected: bool, *, v5: bool) -> ProtocolError:
    """Return the error for an illegal first byte."""
    kind, flags = first >> 4, first & 15
    statement, flag_statement = "MQTT-4.8.0-1", "MQTT-2.2.2-2"
    broken = malformed
    if v5:
        statement, flag_statement = "MQTT-4.13.1-1", "MQTT-2.1.3-1"
        broken = violation
    elif kind == PacketType.CONNECT and flags:
        return malformed(f"CONNECT with flags {flags:04b}", flag_statement)
    if not connected:
        what = f"first packet begins with 0x{first:02x}, which is not a CONNECT"
        return malformed(what, "MQTT-3.1.0-1")
    if not kind or (kind == PacketType.AUTH and not v5):
        return malformed(f"packet type {kind} is reserved", statement)
    name = PacketType(kind).name
    if kind == PacketType.CONNECT:
        return broken("second CONNECT", "MQTT-3.1.0-2")
    if kind in _FROM_SERVERS:
        return broken(f"{name}, which only a server sends", statement)
    if kind == PacketType.PUBLISH and flags & 6 == 6:
        return malformed("PUBLISH with QoS 3", "MQTT-3.3.1-4")
    if kind == PacketType.PUBLISH:
        return malformed("PUBLISH with DUP at QoS 0", "MQTT-3.3.1-2")
    what = f"{name} with flags {flags:04b}"
    return malformed(what, _FLAG_STATEMENTS.get(PacketType(kind), flag_statement))
