"""Encodes the packets of a server into bytes.

These are the answers, and the messages: ``PublishEncoder`` encodes a batch of messages once for all
receivers.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain, repeat

from protocol.mqtt.connect_decoder import MQTT_3_1
from protocol.mqtt.packets import ConnectCode, PacketType
from protocol.mqtt.remaining_length import encode_length

SUBSCRIBE_FAILURE = 0x80
"""SUBACK return code of a refused filter (section 3.9.3)."""

PINGRESP = b"\xd0\x00"
PINGREQ = b"\xc0\x00"
DISCONNECT = b"\xe0\x00"

PID_BYTES = [number.to_bytes(2, "big") for number in range(65_536)]
"""Every two-byte number, encoded once: packet identifiers and lengths."""

_ACK_HEADS = {
    PacketType.PUBACK: b"\x40\x02",
    PacketType.PUBREC: b"\x50\x02",
    PacketType.PUBREL: b"\x62\x02",
    PacketType.PUBCOMP: b"\x70\x02",
}


def encode_connack(code: ConnectCode, *, session_present: bool = False, version: int = 4) -> bytes:
    """Encode a CONNACK (section 3.2).

    Session present is only set with code 0 [MQTT-3.2.2-4], and never for clients of MQTT 3.1
    (``version`` 3), where the byte is reserved.
    """
    present = session_present and code is ConnectCode.ACCEPTED and version != MQTT_3_1
    return bytes((0x20, 2, present, code))


def encode_acks(kind: PacketType, packet_ids: Sequence[int]) -> bytes:
    """Encode one PUBACK, PUBREC, PUBREL or PUBCOMP per packet identifier, in order.

    Raises ``KeyError`` for another ``kind``, ``OverflowError`` or ``IndexError`` for a number
    above 65 535.
    """
    head = _ACK_HEADS[kind]
    count = len(packet_ids)
    if count == 1:
        return head + PID_BYTES[packet_ids[0]]
    numbers = array("H", packet_ids)
    if sys.byteorder == "little":
        numbers.byteswap()
    raw = numbers.tobytes()
    encoded = bytearray(head * (2 * count))
    encoded[2::4] = raw[0::2]
    encoded[3::4] = raw[1::2]
    return bytes(encoded)


def encode_suback(packet_id: int, codes: Sequence[int]) -> bytes:
    """Encode a SUBACK (section 3.9): one granted QoS or ``SUBSCRIBE_FAILURE`` per filter."""
    return b"\x90" + encode_length(2 + len(codes)) + PID_BYTES[packet_id] + bytes(codes)


def encode_unsuback(packet_id: int) -> bytes:
    """Encode an UNSUBACK (section 3.11)."""
    return b"\xb0\x02" + PID_BYTES[packet_id]


class PublishEncoder:
    """Messages of one QoS and variant, prepared once for any number of receivers.

    ``topics`` (raw UTF-8) and ``payloads`` run in parallel; ``qos`` is the one granted to the
    receivers, ``retain`` is set only on retained messages sent because of a new subscription
    [MQTT-3.3.1-8, MQTT-3.3.1-9]. In MQTT 5 ``ends`` has the Property Length and the properties of
    each message; if none has properties, ``end`` is their length, a byte 0. Only the packet
    identifiers differ between receivers at QoS 1 and 2, and nothing at all at QoS 0.

    Raises ``ValueError`` when a message is too large for any MQTT packet.
    """

    __slots__ = ("_again", "_end", "_ends", "_heads", "_packets", "_payloads", "_whole", "qos")

    def __init__(
        self,
        topics: Sequence[bytes],
        payloads: Sequence[bytes],
        qos: int,
        *,
        retain: bool = False,
        end: bytes = b"",
        ends: Sequence[bytes] | None = None,
    ) -> None:
        self.qos = qos
        self._payloads = payloads
        self._end = end
        self._ends = ends
        sizes = list(map(len, payloads))
        extra = 2 if qos else 0
        if ends is None:
            extra += len(end)
        else:
            sizes = list(map(int.__add__, sizes, map(len, ends)))
        self._heads = packet_heads(topics, sizes, 0x30 | qos << 1 | retain, extra)
        self._again: list[bytes] | None = None
        self._packets: Sequence[bytes] = ()
        self._whole: bytes | None = None

    @classmethod
    def verbatim(cls, packets: Sequence[bytes]) -> "PublishEncoder":
        """Prepare packets received at QoS 0 (``Publishes.packets``) for unchanged transmission."""
        outgoing = cls((), (), 0)
        outgoing._packets = packets
        return outgoing

    def __len__(self) -> int:
        return len(self._packets) or len(self._heads)

    def __bool__(self) -> bool:
        """Return whether it is not empty; a compiled class does not use ``__len__`` for this."""
        return len(self) > 0

    @property
    def sizes(self) -> list[int]:
        """Size of each packet in bytes."""
        extra = 2 if self.qos else 0
        ends: Iterable[bytes] = repeat(self._end) if self._ends is None else self._ends
        return [
            len(head) + extra + len(end) + len(payload)
            for head, end, payload in zip(self._heads, ends, self._payloads, strict=False)
        ]

    def too_large(self, limit: int) -> list[int]:
        """Return the messages whose packets exceed ``limit`` bytes; 0: no limit."""
        if not limit:
            return []
        sizes = self.sizes
        if not sizes or max(sizes) <= limit:
            return []
        return [index for index, size in enumerate(sizes) if size > limit]

    def render(
        self,
        packet_ids: Sequence[int] = (),
        start: int = 0,
        stop: int | None = None,
        *,
        dup: bool = False,
    ) -> bytes:
        """Encode the messages ``[start:stop]``, by default all, for one receiver.

        ``packet_ids`` has one packet identifier for each of them at QoS 1 and 2 (``ValueError``
        otherwise), and is ignored when the batch is of QoS 0. ``dup`` marks the packets as sent
        again [MQTT-3.3.1-1].
        """
        if not self.qos:
            return self._render_qos0(start, stop)
        return b"".join(self.pieces(packet_ids, start, stop, dup=dup))

    def pieces(
        self,
        packet_ids: Sequence[int],
        start: int = 0,
        stop: int | None = None,
        *,
        dup: bool = False,
    ) -> Iterable[bytes]:
        """Encode messages of QoS 1 or 2 as ``render`` does, without copying payloads."""
        heads, payloads, ends = self._heads, self._payloads, self._ends
        if dup:
            if self._again is None:
                self._again = [bytes((head[0] | 8,)) + head[1:] for head in heads]
            heads = self._again
        if start or (stop is not None and stop < len(heads)):
            heads, payloads = heads[start:stop], payloads[start:stop]
            ends = ends[start:stop] if ends is not None else None
        if len(heads) != len(packet_ids):
            raise ValueError(f"{len(packet_ids)} packet identifiers for {len(heads)} messages")
        if ends is None:
            encoded = _closed_ids() if self._end else PID_BYTES
            numbers = map(encoded.__getitem__, packet_ids)
            return chain.from_iterable(zip(heads, numbers, payloads, strict=True))
        numbers = map(PID_BYTES.__getitem__, packet_ids)
        return chain.from_iterable(zip(heads, numbers, ends, payloads, strict=True))

    def _render_qos0(self, start: int, stop: int | None) -> bytes:
        if not start and (stop is None or stop >= len(self)):
            if self._whole is None:
                self._whole = self._join(0, None)
            return self._whole
        return self._join(start, stop)

    def _join(self, start: int, stop: int | None) -> bytes:
        if self._packets:
            return b"".join(self._packets[start:stop])
        heads, payloads = self._heads[start:stop], self._payloads[start:stop]
        if self._ends is None and not self._end:
            return b"".join(chain.from_iterable(zip(heads, payloads, strict=True)))
        ends: Iterable[bytes] = repeat(self._end, len(heads))
        if self._ends is not None:
            ends = self._ends[start:stop]
        return b"".join(chain.from_iterable(zip(heads, ends, payloads, strict=True)))


@cache
def _closed_ids() -> list[bytes]:
    """Return every packet identifier with the Property Length of 0 that follows it."""
    return [number + b"\0" for number in PID_BYTES]


def publish_head(qos: int, topic: bytes, size: int) -> bytes:
    """Encode a PUBLISH with ``size`` bytes of payload up to its packet identifier or payload."""
    key = qos, topic, size
    head = _known_heads.get(key)
    if head is None:
        head = _head(0x30 | qos << 1, topic, size + 2 if qos else size)
        if len(topic) <= _KNOWN_TOPIC:
            if len(_known_heads) >= _KNOWN_HEADS:
                _known_heads.clear()
            _known_heads[key] = head
    return head


_KNOWN_HEADS, _KNOWN_TOPIC = 8192, 256
_known_heads: dict[tuple[int, bytes, int], bytes] = {}
"""Cache of encoded heads, of topics up to ``_KNOWN_TOPIC`` bytes; it only saves time, and may be
emptied at any time."""


def packet_heads(
    topics: Sequence[bytes], sizes: Sequence[int], first: int, extra: int
) -> list[bytes]:
    """Encode PUBLISH packets up to their packet identifiers.

    ``sizes`` has the number of bytes after each head; ``extra`` is added to all of them. Each
    distinct head is encoded once: messages are many, topics and lengths are few.
    """
    if len(sizes) != len(topics):
        raise ValueError(f"{len(sizes)} payloads for {len(topics)} topics")
    if sizes and sizes.count(sizes[0]) == len(sizes):
        by_topic = {topic: _head(first, topic, sizes[0] + extra) for topic in set(topics)}
        return list(map(by_topic.__getitem__, topics))
    pairs = list(zip(topics, sizes, strict=True))
    by_pair = {pair: _head(first, pair[0], pair[1] + extra) for pair in set(pairs)}
    return list(map(by_pair.__getitem__, pairs))


def _head(first: int, topic: bytes, remaining: int) -> bytes:
    return (
        bytes((first,)) + encode_length(2 + len(topic) + remaining) + PID_BYTES[len(topic)] + topic
    )
