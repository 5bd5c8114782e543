"""The encoder of messages to MQTT 5 clients: messages are encoded once for each variant.

Receivers of the same messages differ in few ways: the granted QoS, their protocol level, RETAIN,
their subscription identifiers, how long the messages have waited, and whether topic aliases are
used. A ``PacketVariant`` contains these, and messages are prepared once for all receivers that
share it; then only packet identifiers have to be filled in.

Blocks are not parsed for that. The remaining seconds are in their first five bytes, identifiers
and the alias are put after them; each distinct block of a batch is completed once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import cache
from itertools import chain, repeat
from typing import NamedTuple

from protocol.mqtt.connect_decoder import MQTT_5
from protocol.mqtt.encoder import PID_BYTES, PublishEncoder, packet_heads
from protocol.mqtt.message_properties import expiry_of, with_remaining_expiry
from protocol.mqtt.property_codec import encode_property, with_length
from protocol.mqtt.property_table import SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS


class TopicAliasMode(IntEnum):
    """The use of topic aliases for a receiver."""

    NONE = 0
    """Topics are sent in full."""
    SET = 1
    """Topics are sent in full, together with the aliases that replace them from now on."""
    NUMBERS = 2
    """Aliases are sent in place of topics."""


class PacketVariant(NamedTuple):
    """Everything besides the messages that a batch's packets depend on; receivers may share it."""

    qos: int
    version: int = MQTT_5
    """Protocol level."""
    retain: bool = False
    identifiers: tuple[int, ...] = ()
    """Subscription identifiers."""
    waited: int = 0
    """Whole seconds since the messages were published, which are subtracted from their expiry."""
    aliases: TopicAliasMode = TopicAliasMode.NONE


def prepare_publishes(
    topics: Sequence[bytes],
    payloads: Sequence[bytes],
    blocks: Sequence[bytes],
    variant: PacketVariant,
    numbers: Mapping[bytes, int] | None = None,
) -> PublishEncoder | PublishEncoderV5:
    """Prepare messages in a variant.

    ``blocks`` has one property block for each message, or is empty if none has properties.
    ``numbers`` has the topic aliases, for a variant that uses them. Before MQTT 5 only topic and
    payload are sent. Raises ``ValueError`` when a message is too large for any MQTT packet.
    """
    if variant.version < MQTT_5:
        return PublishEncoder(topics, payloads, variant.qos, retain=variant.retain)
    return PublishEncoderV5(topics, payloads, blocks, variant, numbers or {})


class PublishEncoderV5:
    """Messages prepared for any number of receivers of one variant in MQTT 5.

    It is used like ``protocol.mqtt.encoder.PublishEncoder``.
    """

    __slots__ = ("_again", "_ends", "_heads", "_payloads", "_whole", "qos")

    def __init__(
        self,
        topics: Sequence[bytes],
        payloads: Sequence[bytes],
        blocks: Sequence[bytes],
        variant: PacketVariant,
        numbers: Mapping[bytes, int],
    ) -> None:
        self.qos = variant.qos
        self._payloads = payloads
        ends: Sequence[bytes] | None = None
        if variant.aliases:
            used = [numbers.get(topic, 0) for topic in topics]
            ends = _ends_with_aliases(blocks, used, variant)
            if variant.aliases is TopicAliasMode.NUMBERS:
                pairs = zip(topics, used, strict=True)
                topics = [b"" if number else topic for topic, number in pairs]
        elif blocks or variant.identifiers:
            ends = _ends(len(topics), blocks, variant)
        self._ends = ends
        """Property Length and properties of each message; None: none has any."""
        sizes = list(map(len, payloads))
        extra = 2 if variant.qos else 0
        if ends is None:
            extra += 1
        else:
            sizes = list(map(int.__add__, sizes, map(len, ends)))
        first = 0x30 | variant.qos << 1 | variant.retain
        self._heads = packet_heads(topics, sizes, first, extra)
        self._again: list[bytes] | None = None
        self._whole: bytes | None = None

    def __len__(self) -> int:
        return len(self._heads)

    def __bool__(self) -> bool:
        """Return whether it is not empty; a compiled class does not ask ``__len__``."""
        return len(self) > 0

    @property
    def sizes(self) -> list[int]:
        """Size of each packet in bytes."""
        extra = 2 if self.qos else 0
        ends: Iterable[bytes] = repeat(b"\0") if self._ends is None else self._ends
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
        otherwise), and is ignored when the messages are of QoS 0. ``dup`` marks the packets as sent
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
            numbers = map(_closed_ids().__getitem__, packet_ids)
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
        heads, payloads = self._heads[start:stop], self._payloads[start:stop]
        ends: Iterable[bytes] = repeat(b"\0", len(heads))
        if self._ends is not None:
            ends = self._ends[start:stop]
        return b"".join(chain.from_iterable(zip(heads, ends, payloads, strict=True)))


@cache
def _closed_ids() -> list[bytes]:
    """Return every packet identifier with the Property Length of 0 that follows it."""
    return [number + b"\0" for number in PID_BYTES]


def encode_identifiers(variant: PacketVariant) -> bytes:
    """Encode the subscription identifiers of a variant."""
    if not variant.identifiers:
        return b""
    return b"".join([encode_property(SUBSCRIPTION_IDENTIFIER, one) for one in variant.identifiers])


def _ends(count: int, blocks: Sequence[bytes], variant: PacketVariant) -> Sequence[bytes]:
    """Complete the blocks of messages, including their lengths."""
    common = encode_identifiers(variant)
    if not blocks:
        return [with_length(common)] * count
    if len(blocks) == 1:
        return [_end(blocks[0], variant.waited, common)]
    whole = {block: _end(block, variant.waited, common) for block in set(blocks)}
    return list(map(whole.__getitem__, blocks))


def _ends_with_aliases(
    blocks: Sequence[bytes], used: Sequence[int], variant: PacketVariant
) -> Sequence[bytes]:
    """Complete the blocks of messages with the topic aliases that are used, 0 for none."""
    common = encode_identifiers(variant)
    pairs = list(zip(blocks or repeat(b"", len(used)), used, strict=True))
    whole = {
        (block, number): _end(
            block,
            variant.waited,
            common + (encode_property(TOPIC_ALIAS, number) if number else b""),
        )
        for block, number in set(pairs)
    }
    return list(map(whole.__getitem__, pairs))


def _end(block: bytes, waited: int, behind: bytes) -> bytes:
    """Complete a block: set the remaining seconds, and append ``behind``."""
    if waited:
        expiry = expiry_of(block)
        if expiry is not None:
            block = with_remaining_expiry(block, max(0, expiry - waited))
    return with_length(block + behind)


class AliasNumbers:
    """Topic aliases that are the same for all connections of a broker.

    So receivers can share packets with aliases, too. Numbers are assigned once and never
    reassigned; ``most`` is the maximum number of aliases, ``shortest`` the size in bytes of the
    shortest topic that gets one.
    """

    __slots__ = ("most", "numbers", "shortest")

    def __init__(self, most: int, shortest: int = 8) -> None:
        self.most = most
        self.shortest = shortest
        self.numbers: dict[bytes, int] = {}

    def number(self, topic: bytes) -> int:
        """Return the number of a topic, 0 if it has none."""
        found = self.numbers.get(topic, 0)
        if not found and len(self.numbers) < self.most and len(topic) >= self.shortest:
            found = self.numbers[topic] = len(self.numbers) + 1
        return found


class SentAliases:
    """The topic aliases that were sent on one connection, one bit for each.

    Other messages may overtake those that wait for the disk; they do not use the aliases of these.
    """

    __slots__ = ("_gated", "_maximum", "_sent")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._sent = 0
        self._gated = 0
        """Aliases that were sent only with messages that wait for the disk."""

    def use(self, numbers: Collection[int], *, gated: bool = False) -> TopicAliasMode:
        """Return the use of aliases for messages whose topics have these numbers, 0: none.

        Numbers that have to be set count as sent: the messages must be sent. ``gated``: they wait
        for the disk.
        """
        wanted = 0
        for number in numbers:
            if not 0 < number <= self._maximum:  # [MQTT-3.3.2-11]
                return TopicAliasMode.NONE
            wanted |= 1 << number
        known = self._sent | self._gated if gated else self._sent
        if not wanted & ~known:
            return TopicAliasMode.NUMBERS if wanted else TopicAliasMode.NONE
        if gated:
            self._gated |= wanted
        else:
            self._sent |= wanted
        return TopicAliasMode.SET
