"""Encodes deliveries to an MQTT 5 client: properties, identifiers, RETAIN, and their limits."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from actors.routing.option_semantics import is_no_local, is_retain_as_published
from actors.routing.subscriber import Subscriber
from actors.session.session_messages import VARIANTS_V5, Batch
from eventstore.format.stored_properties import seconds_left
from eventstore.log.message_store import Message
from projections.state.retained import RetainedMessage
from projections.state.session import SessionState, SubscriptionState
from protocol.mqtt.encoder import PublishEncoder
from protocol.mqtt.message_properties import expiry_of, with_remaining_expiry
from protocol.mqtt.packets import ConnectProperties
from protocol.mqtt.publish_encoder_v5 import (
    AliasNumbers,
    PacketVariant,
    SentAliases,
    prepare_publishes,
)
from protocol.mqtt.shared_filters import SHARE
from protocol.mqtt.topic_trie import FilterTrie

_FRAME: Final = 13
"""Maximum bytes of a PUBLISH besides topic, payload and properties: the fixed header, the lengths
of topic and properties, the packet identifier."""
_IDENTIFIER: Final = 5
"""Maximum bytes of a subscription identifier."""

_ALIAS: Final = 5
"""Maximum bytes that a topic alias adds to a packet."""


class DeliveryEncoder:
    """Encodes the deliveries of one session while its client is connected with MQTT 5."""

    __slots__ = ("_aliases", "_connection", "_index", "_numbers", "_state", "limit", "plain")

    def __init__(
        self, state: SessionState, properties: ConnectProperties, numbers: AliasNumbers
    ) -> None:
        self._state = state
        self._numbers = numbers
        self._aliases: SentAliases | None = None
        """Topic aliases assigned on this connection; None: aliases are not used."""
        if numbers.most and properties.topic_alias_maximum:
            self._aliases = SentAliases(properties.topic_alias_maximum)
        self._connection: object = None
        self.limit = properties.maximum_packet_size
        """Maximum packet size of the client in bytes; 0: unlimited."""
        self._index: SubscriptionOptionIndex | None = None
        """Options of the subscriptions; None: no subscription has relevant options."""
        if any(map(SubscriptionOptionIndex.needed, state.subscriptions.values())):
            self._index = SubscriptionOptionIndex(state.subscriptions)
        self.plain = self._is_plain()
        """True while messages of any size are sent without additional properties."""

    def _is_plain(self) -> bool:
        return not self._identified and not self.limit and self._aliases is None

    def attach(self, state: SessionState, connection: object) -> None:
        """Begin encoding for a client that connected; ``state`` has its resumed subscriptions."""
        self._state, self._connection = state, connection

    def subscriptions_changed(self, filters: Iterable[str]) -> None:
        """Update the identifiers and options of the subscriptions with these filters."""
        for topic_filter in filters:
            subscription = self._state.subscriptions.get(topic_filter)
            if self._index is None:
                if (
                    subscription is None
                    or not subscription.active
                    or not SubscriptionOptionIndex.needed(subscription)
                ):
                    continue
                self._index = SubscriptionOptionIndex(self._state.subscriptions)
            self._index.set(topic_filter, subscription)
        self.plain = self._is_plain()

    def complete(self, most: int) -> bool:
        """Add at most ``most`` filters to the index; return whether some are still missing."""
        if self._index is None:
            return False
        missing = self._index.complete(self._state.subscriptions, most)
        self.plain = self._is_plain()
        return missing

    def is_as_published(self, topic: bytes) -> bool:
        """Return whether a queued message keeps the RETAIN flag of its publication.

        The matching subscription with the highest QoS decides. The message may wait in the queue of
        another subscription, as it must stay behind the messages there.
        """
        return self._index is not None and self._index.is_as_published(topic)

    @property
    def _identified(self) -> bool:
        """Whether a subscription has an identifier."""
        return self._index is not None and bool(self._index.identified)

    def identifiers(self, topic: bytes, *, own: bool = False) -> tuple[int, ...]:
        """Return the identifiers of all subscriptions that match a topic [MQTT-3.3.4-3].

        ``own``: the message was published by the client itself [MQTT-3.8.3-3].
        """
        return self._index.identifiers(topic, own=own) if self._index is not None else ()

    def render(
        self,
        batch: Batch,
        subscriber: Subscriber,
        qos: int,
        packet_ids: Sequence[int] = (),
        stop: int | None = None,
        *,
        gated: bool = True,
    ) -> bytes:
        """Encode the first messages of a batch, by default all; the caller must send them.

        ``gated``: they wait for the disk.
        """
        parts = []
        for variant, begin, end in self._variants(batch, subscriber, qos, stop):
            aliased = self._with_aliases(batch, variant, begin, end, gated=gated)
            if aliased is not None:
                prepared = batch.prepared5(aliased, self._numbers.numbers)
                parts.append(prepared.render(packet_ids[begin:end], begin, end))
            elif not qos and not begin and end == len(batch):
                parts.append(batch.at_qos0_v5(variant))
            else:
                prepared = batch.prepared5(variant)
                parts.append(prepared.render(packet_ids[begin:end], begin, end))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pieces(
        self,
        batch: Batch,
        subscriber: Subscriber,
        qos: int,
        packet_ids: Sequence[int],
        stop: int,
    ) -> list[bytes]:
        """Encode messages of QoS 1 or 2 as ``render`` does, without copying payloads."""
        pieces: list[bytes] = []
        for variant, begin, end in self._variants(batch, subscriber, qos, stop):
            aliased = self._with_aliases(batch, variant, begin, end, gated=True)
            if aliased is not None:
                prepared = batch.prepared5(aliased, self._numbers.numbers)
            else:
                prepared = batch.prepared5(variant)
            pieces += prepared.pieces(packet_ids[begin:end], begin, end)
        return pieces

    def _with_aliases(
        self, batch: Batch, variant: PacketVariant, begin: int, end: int, *, gated: bool
    ) -> PacketVariant | None:
        """Return the variant with topic aliases for messages of a batch; None: without aliases."""
        if self._aliases is None:
            return None
        if self.limit:
            sizes = batch.prepared5(variant).sizes[begin:end]
            if max(sizes, default=0) + _ALIAS > self.limit:
                return None
        # All topics of the batch get their aliases: it is encoded once for all receivers.
        numbers = {topic: self._numbers.number(topic) for topic in set(batch.topics)}
        used = {numbers[topic] for topic in batch.topics[begin:end]}
        use = self._aliases.use(used, gated=gated)
        return variant._replace(aliases=use) if use else None

    def too_large(self, batch: Batch, subscriber: Subscriber, qos: int) -> list[int]:
        """Return the numbers of a batch's messages that exceed the client's maximum packet size."""
        if not self.limit:
            return []
        numbers: list[int] = []
        for variant, begin, end in self._variants(batch, subscriber, qos, None):
            large = batch.prepared5(variant).too_large(self.limit)
            numbers += [at for at in large if begin <= at < end]
        return numbers

    def _variants(
        self, batch: Batch, subscriber: Subscriber, qos: int, stop: int | None
    ) -> list[tuple[PacketVariant, int, int]]:
        """Return the variants of a batch's messages, each with its first message and the end."""
        end = len(batch) if stop is None else stop
        published = batch.published_retain and is_retain_as_published(subscriber.options)
        retain = batch.retain or published
        if batch.retain or subscriber.filter.startswith(SHARE):
            own = self._own(self._state.subscriptions.get(subscriber.filter))
            variant = (
                PacketVariant(qos, retain=retain, identifiers=own)
                if retain or own
                else VARIANTS_V5[qos]
            )
            return [(variant, 0, end)]
        if not self._identified:
            return [(PacketVariant(qos, retain=True) if retain else VARIANTS_V5[qos], 0, end)]
        is_own = batch.publisher is self._connection
        columns = [self.identifiers(topic, own=is_own) for topic in batch.topics[:end]]
        variants, begin = [], 0
        for identifiers, run in groupby(columns):
            count = len([*run])
            variant = VARIANTS_V5[qos]
            if identifiers or retain:
                variant = PacketVariant(qos, retain=retain, identifiers=identifiers)
            variants.append((variant, begin, begin + count))
            begin += count
        return variants

    def _own(self, subscription: SubscriptionState | None) -> tuple[int, ...]:
        """Return the identifier of one subscription."""
        return (
            (subscription.identifier,)
            if subscription is not None and subscription.identifier
            else ()
        )

    def variant(self, flags: tuple[int, bool], of: SubscriptionState) -> PacketVariant:
        """Return the variant of new messages of one subscription; ``flags`` are QoS and RETAIN."""
        return PacketVariant(flags[0], retain=flags[1], identifiers=self._own(of))

    def render_messages(
        self,
        messages: Sequence[Message],
        flags: tuple[int, bool],
        packet_ids: Sequence[int],
        now_ms: int,
        *,
        dup: bool = False,
        of: SubscriptionState | None = None,
    ) -> bytes:
        """Encode queued or redelivered messages; ``flags`` are QoS and RETAIN.

        ``of`` is the subscription if there is only one: for shared subscriptions and retained
        messages.
        """
        qos, retain = flags
        own = None if of is None else self._own(of)
        if own is None and not self._identified:
            own = ()
        if own is not None:
            variant = PacketVariant(qos, retain=retain, identifiers=own)
            return _prepared(messages, variant, now_ms).render(packet_ids, dup=dup)
        columns = [
            (self._identifiers_of(message), message, packet_id)
            for message, packet_id in zip(messages, packet_ids, strict=True)
        ]
        parts = []
        for identifiers, run in groupby(columns, itemgetter(0)):
            rows = [*run]
            variant = PacketVariant(qos, retain=retain, identifiers=identifiers)
            prepared = _prepared([row[1] for row in rows], variant, now_ms)
            parts.append(prepared.render([row[2] for row in rows], dup=dup))
        return b"".join(parts)

    def _identifiers_of(self, message: Message) -> tuple[int, ...]:
        """Return the identifiers of all subscriptions that match a message."""
        return self.identifiers(message.topic, own=message.publisher == self._state.session)

    def is_too_large(
        self,
        message: Message,
        flags: tuple[int, bool],
        now_ms: int,
        of: SubscriptionState | None = None,
    ) -> bool:
        """Return whether the packet of a message exceeds the client's maximum packet size.

        ``flags`` and ``of`` are those of ``render_messages``.
        """
        if not self.limit:
            return False
        identifiers = self._identifiers_of(message) if of is None else self._own(of)
        size = len(message.topic) + len(message.payload) + len(message.block)
        if size + _FRAME + _IDENTIFIER * len(identifiers) <= self.limit:
            return False
        variant = PacketVariant(flags[0], retain=flags[1], identifiers=identifiers)
        return len(_prepared([message], variant, now_ms).render([1])) > self.limit


def _prepared(messages: Sequence[Message], variant: PacketVariant, now_ms: int) -> PublishEncoder:
    """Prepare messages with their remaining expiry."""
    blocks = remaining_properties(messages, now_ms)
    topics = [message.topic for message in messages]
    payloads = [message.payload for message in messages]
    return prepare_publishes(topics, payloads, blocks, variant)


def remaining_properties(
    messages: Sequence[Message | RetainedMessage], now_ms: int
) -> Sequence[bytes]:
    """Return the properties of messages, with the remaining expiry in seconds; empty: none has any.

    Each distinct block is changed once.
    """
    blocks = [message.block for message in messages]
    if not any(blocks):
        return ()
    if not any(message.expires for message in messages):
        return blocks
    keys = [(message.block, message.expires) for message in messages]
    remaining = {key: _remaining_block(*key, now_ms) for key in set(keys)}
    return list(map(remaining.__getitem__, keys))


def _remaining_block(block: bytes, expires: int, now_ms: int) -> bytes:
    if not expires:
        return block
    interval = expiry_of(block)
    return with_remaining_expiry(block, seconds_left(interval, expires, now_ms))


_CACHED_TOPICS: Final = 1024
"""Maximum number of topics whose subscription identifiers are cached."""


class _Asked(NamedTuple):
    """The options of one subscription."""

    qos: int
    options: int
    identifier: int
    """Subscription identifier; 0: none."""


class SubscriptionOptionIndex:
    """The options of the subscriptions of one session.

    A session has one only if a subscription has an identifier or Retain As Published: without them
    a connection costs less memory.
    """

    __slots__ = ("_filters", "_known", "_known_of_own", "_missing", "identified")

    def __init__(self, subscriptions: Mapping[str, SubscriptionState]) -> None:
        self._filters: FilterTrie[_Asked] = FilterTrie()
        self.identified: set[str] = set()
        """Filters of the subscriptions with an identifier."""
        self._missing = deque(subscriptions)
        """Filters that are not in the index yet."""
        self._known: dict[bytes, tuple[int, ...]] = {}
        self._known_of_own: dict[bytes, tuple[int, ...]] = {}

    @staticmethod
    def needed(subscription: SubscriptionState) -> bool:
        """Return whether a subscription has options that affect its messages."""
        return bool(subscription.identifier) or is_retain_as_published(subscription.options)

    def complete(self, subscriptions: Mapping[str, SubscriptionState], most: int) -> bool:
        """Add at most ``most`` missing filters; return whether some are still missing."""
        for _ in range(min(most, len(self._missing))):
            topic_filter = self._missing.popleft()
            self.set(topic_filter, subscriptions.get(topic_filter))
        return bool(self._missing)

    def set(self, topic_filter: str, subscription: SubscriptionState | None) -> None:
        """Set the options of a subscription; None, or one that has ended: remove it."""
        self._known.clear()
        self._known_of_own.clear()
        self.identified.discard(topic_filter)
        self._filters.remove(topic_filter, topic_filter)
        if subscription is None or not subscription.active:
            return
        identifier = 0 if topic_filter.startswith(SHARE) else subscription.identifier
        if identifier:
            self.identified.add(topic_filter)
        asked = _Asked(subscription.qos, subscription.options, identifier)
        self._filters.insert(topic_filter, topic_filter, asked)

    def is_as_published(self, topic: bytes) -> bool:
        """Return whether the matching subscription with the highest QoS has Retain As Published."""
        asked = [
            (entry.qos, is_retain_as_published(entry.options))
            for entry in self._filters.match(topic.decode())
        ]
        return max(asked, default=(0, False))[1]

    def identifiers(self, topic: bytes, *, own: bool) -> tuple[int, ...]:
        """Return the identifiers of all subscriptions that match a topic [MQTT-3.3.4-3].

        An identifier of several subscriptions is repeated for each (MQTT 5, 3.3.4). ``own``:
        without subscriptions that have No Local [MQTT-3.8.3-3].
        """
        if not self.identified:
            return ()
        cache = self._known_of_own if own else self._known
        known_identifiers = cache.get(topic)
        if known_identifiers is None:
            if len(cache) >= _CACHED_TOPICS:
                cache.clear()
            numbers = [
                entry.identifier
                for entry in self._filters.match(topic.decode())
                if entry.identifier and not (own and is_no_local(entry.options))
            ]
            known_identifiers = cache[topic] = tuple(sorted(numbers))
        return known_identifiers
