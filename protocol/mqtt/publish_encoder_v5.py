"""The encoder of messages to MQTT 5 clients: messages are encoded once for each variant.

Receivers of the same messages differ in few ways: the granted QoS, their protocol level, RETAIN,
their subscription identifiers, how long the messages have waited, and whether topic aliases are
used. A ``PacketVariant`` contains these, and messages are prepared once for all receivers that
share it; then only packet identifiers have to be filled in.

Blocks are not parsed for that. The remaining seconds are in their first five bytes, identifiers
and the alias are put after them; each distinct block of a batch is completed once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from itertools import repeat
from typing import NamedTuple

from protocol.mqtt.connect_decoder import MQTT_5
from protocol.mqtt.encoder import PublishEncoder
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
) -> PublishEncoder:
    """Prepare messages in a variant.

    ``blocks`` has one property block for each message, or is empty if none has properties.
    ``numbers`` has the topic aliases, for a variant that uses them. Before MQTT 5 only topic and
    payload are sent. Raises ``ValueError`` when a message is too large for any MQTT packet.
    """
    if variant.version < MQTT_5:
        return PublishEncoder(topics, payloads, variant.qos, retain=variant.retain)
    ends: Sequence[bytes] | None = None
    if variant.aliases:
        used = [(numbers or {}).get(topic, 0) for topic in topics]
        ends = _ends_with_aliases(blocks, used, variant)
        if variant.aliases is TopicAliasMode.NUMBERS:
            pairs = zip(topics, used, strict=True)
            topics = [b"" if number else topic for topic, number in pairs]
    elif blocks or variant.identifiers:
        ends = _ends(len(topics), blocks, variant)
    return PublishEncoder(
        topics, payloads, variant.qos, retain=variant.retain, end=b"\0", ends=ends
    )


def encode_identifiers(variant: PacketVariant) -> bytes:
    """Encode the subscription identifiers of a variant."""
    if not variant.identifiers:
        return b""
    return b"".join(
        [encode_property(SUBSCRIPTION_IDENTIFIER, identifier) for identifier in variant.identifiers]
    )


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
        number = self.numbers.get(topic, 0)
        if not number and len(self.numbers) < self.most and len(topic) >= self.shortest:
            number = self.numbers[topic] = len(self.numbers) + 1
        return number


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
        needed = 0
        for number in numbers:
            if not 0 < number <= self._maximum:  # [MQTT-3.3.2-11]
                return TopicAliasMode.NONE
            needed |= 1 << number
        sent = self._sent | self._gated if gated else self._sent
        if not needed & ~sent:
            return TopicAliasMode.NUMBERS if needed else TopicAliasMode.NONE
        if gated:
            self._gated |= needed
        else:
            self._sent |= needed
        return TopicAliasMode.SET
