"""Encodes what an MQTT 5 client is sent: properties, identifiers, RETAIN, and their bounds."""

from __future__ import annotations

from collections import deque
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from protocol.mqtt import FilterTrie
from protocol.mqtt5 import (
    NO_LOCAL,
    RETAIN_AS_PUBLISHED,
    SHARE,
    PacketVariant,
    SentAliases,
    prepare_publishes,
    with_remaining_expiry,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from actors.routing import Subscriber
    from eventstore.log import Message
    from projections.state import RetainedMessage, SessionState, SubscriptionState
    from protocol.mqtt import ConnectProperties, PublishEncoder
    from protocol.mqtt5 import AliasNumbers, PublishEncoderV5

WIRES_V5: Final = tuple(PacketVariant(qos) for qos in range(3))
"""What most MQTT 5 receivers have in common, by QoS."""

_CACHED_TOPICS = 1024
"""Topics of which it is known which subscription identifiers go with them."""

_FRAME: Final = 13
"""Bytes of a PUBLISH beside topic, payload and properties, at most: the fixed header, the lengths
of topic and properties, the packet identifier."""
_IDENTIFIER: Final = 5
"""Bytes of a subscription identifier, at most."""

_ALIAS: Final = 5
"""By how many bytes a topic alias makes a packet larger, at most."""


class PreparedMessages(Protocol):
    """Messages on their way to many receivers: ``actors.session.session_messages.Batch``."""

    retain: bool
    """Sent because of a new subscription, not of a publication [MQTT-3.3.1-8]."""
    published_retain: bool
    """The publications had RETAIN 1."""

    @property
    def topics(self) -> Sequence[bytes]:
        """The topic of each message."""

    @property
    def publisher(self) -> object:
        """The connection that published the messages, if one did."""

    def __len__(self) -> int:
        """Return the number of messages."""

    def prepared5(
        self, wire: PacketVariant, numbers: Mapping[bytes, int] | None = None
    ) -> PublishEncoderV5:
        """Return what renders the messages for receivers that have a wire in common."""

    def at_qos0_v5(self, wire: PacketVariant) -> bytes:
        """Return the messages as QoS 0 packets."""


class _Asked(NamedTuple):
    """What a subscription asks for."""

    qos: int
    options: int
    identifier: int
    """0: none."""


class DeliveryEncoder:
    """Encodes the deliveries of one session while its client is connected with MQTT 5."""

    __slots__ = (
        "_aliases",
        "_connection",
        "_filters",
        "_identified",
        "_known",
        "_known_of_own",
        "_missing",
        "_numbers",
        "_state",
        "limit",
    )

    def __init__(
        self, state: SessionState, properties: ConnectProperties, numbers: AliasNumbers
    ) -> None:
        self._state = state
        self._numbers = numbers
        self._aliases: SentAliases | None = None
        """Topic aliases that the connection was sent; None: it is sent none."""
        if numbers.most and properties.topic_alias_maximum:
            self._aliases = SentAliases(properties.topic_alias_maximum)
        self._connection: object = None
        self.limit = properties.maximum_packet_size
        """Bytes of the largest packet that the client accepts; 0: any."""
        self._filters: FilterTrie[_Asked] | None = None
        """What the subscriptions ask for, by topic filter; None: no more than messages."""
        self._identified: set[str] = set()
        """Filters of the subscriptions that have an identifier."""
        self._missing: deque[str] = deque()
        """Filters that are not in the index yet."""
        self._known: dict[bytes, tuple[int, ...]] = {}
        self._known_of_own: dict[bytes, tuple[int, ...]] = {}
        if any(map(_asks, state.subscriptions.values())):
            self._begin_index()

    def attach(self, state: SessionState, connection: object) -> None:
        """Encode for a client that connected; ``state`` has the subscriptions as they were."""
        self._state, self._connection = state, connection

    def subscriptions_changed(self, filters: Iterable[str]) -> None:
        """Look anew at the subscriptions with some filters: their identifiers and options."""
        self._known.clear()
        self._known_of_own.clear()
        for topic_filter in filters:
            found = self._state.subscriptions.get(topic_filter)
            held = found if found is not None and found.active else None
            if self._filters is None:
                if held is None or not _asks(held):
                    continue
                self._begin_index()
            self._index(topic_filter, held)

    def _begin_index(self) -> None:
        self._filters = FilterTrie()
        self._missing.extend(self._state.subscriptions)

    def complete(self, most: int) -> bool:
        """Put at most so many filters into the index; return whether some are missing still."""
        for _ in range(min(most, len(self._missing))):
            topic_filter = self._missing.popleft()
            held = self._state.subscriptions.get(topic_filter)
            self._index(topic_filter, held if held is not None and held.active else None)
        return bool(self._missing)

    def _index(self, topic_filter: str, held: SubscriptionState | None) -> None:
        """Have the index say what a subscription asks for; None: there is none any more."""
        filters = self._filters
        if filters is None:
            return
        self._identified.discard(topic_filter)
        filters.remove(topic_filter, topic_filter)
        if held is None:
            return
        identifier = 0 if topic_filter.startswith(SHARE) else held.identifier
        if identifier:
            self._identified.add(topic_filter)
        asked = _Asked(held.qos, held.options, identifier)
        filters.insert(topic_filter, topic_filter, asked)

    def is_as_published(self, topic: bytes) -> bool:
        """Return whether a message that waited has the RETAIN it was published with.

        That is for the subscription with the highest QoS to say. The queue it waited in may be
        that of another one, behind whose messages it has to stay.
        """
        if self._filters is None:
            return False
        asked = [
            (one.qos, bool(one.options & RETAIN_AS_PUBLISHED))
            for one in self._filters.match(topic.decode())
        ]
        return max(asked, default=(0, False))[1]

    @property
    def plain(self) -> bool:
        """True while messages are sent with their own properties, whatever their size."""
        return not self._identified and not self.limit and self._aliases is None

    def identifiers(self, topic: bytes, *, own: bool = False) -> tuple[int, ...]:
        """Return the identifiers of all subscriptions that match a topic [MQTT-3.3.4-3].

        ``own``: of a message that the client published itself [MQTT-3.8.3-3].
        """
        if not self._identified or self._filters is None:
            return ()
        known = self._known_of_own if own else self._known
        found = known.get(topic)
        if found is None:
            if len(known) >= _CACHED_TOPICS:
                known.clear()
            numbers = {
                one.identifier
                for one in self._filters.match(topic.decode())
                if one.identifier and not (own and one.options & NO_LOCAL)
            }
            found = known[topic] = tuple(sorted(numbers))
        return found

    def render(
        self,
        batch: PreparedMessages,
        subscriber: Subscriber,
        qos: int,
        packet_ids: Sequence[int] = (),
        stop: int | None = None,
        *,
        gated: bool = True,
    ) -> bytes:
        """Encode the first messages of a batch, by default all; they must be sent.

        ``gated``: they wait for the disk.
        """
        parts = []
        for wire, begin, end in self._wires(batch, subscriber, qos, stop):
            aliased = self._with_aliases(batch, wire, begin, end, gated=gated)
            if aliased is not None:
                prepared = batch.prepared5(aliased, self._numbers.numbers)
                parts.append(prepared.render(packet_ids[begin:end], begin, end))
            elif not qos and not begin and end == len(batch):
                parts.append(batch.at_qos0_v5(wire))
            else:
                prepared = batch.prepared5(wire)
                parts.append(prepared.render(packet_ids[begin:end], begin, end))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _with_aliases(
        self, batch: PreparedMessages, wire: PacketVariant, begin: int, end: int, *, gated: bool
    ) -> PacketVariant | None:
        """Return the wire that uses topic aliases for some messages of a batch; None: none does."""
        if self._aliases is None:
            return None
        if self.limit:
            sizes = batch.prepared5(wire).sizes[begin:end]
            if max(sizes, default=0) + _ALIAS > self.limit:
                return None
        # All of the batch get their numbers: it is encoded once for all receivers.
        numbers = {topic: self._numbers.number(topic) for topic in set(batch.topics)}
        used = {numbers[topic] for topic in batch.topics[begin:end]}
        use = self._aliases.use(used, gated=gated)
        return wire._replace(aliases=use) if use else None

    def too_large(self, batch: PreparedMessages, subscriber: Subscriber, qos: int) -> list[int]:
        """Return which messages of a batch make packets that the client does not accept."""
        if not self.limit:
            return []
        found: list[int] = []
        for wire, begin, end in self._wires(batch, subscriber, qos, None):
            large = batch.prepared5(wire).too_large(self.limit)
            found += [at for at in large if begin <= at < end]
        return found

    def _wires(
        self, batch: PreparedMessages, subscriber: Subscriber, qos: int, stop: int | None
    ) -> list[tuple[PacketVariant, int, int]]:
        """Return the wires of a batch's messages: each with where it begins and ends."""
        end = len(batch) if stop is None else stop
        published = batch.published_retain and bool(subscriber.options & RETAIN_AS_PUBLISHED)
        retain = batch.retain or published
        if batch.retain or subscriber.filter.startswith(SHARE):
            own = self._own(self._state.subscriptions.get(subscriber.filter))
            wire = (
                PacketVariant(qos, retain=retain, identifiers=own)
                if retain or own
                else WIRES_V5[qos]
            )
            return [(wire, 0, end)]
        if not self._identified:
            return [(PacketVariant(qos, retain=True) if retain else WIRES_V5[qos], 0, end)]
        is_own = batch.publisher is self._connection
        columns = [self.identifiers(topic, own=is_own) for topic in batch.topics[:end]]
        wires, begin = [], 0
        for identifiers, some in groupby(columns):
            count = len([*some])
            wire = WIRES_V5[qos]
            if identifiers or retain:
                wire = PacketVariant(qos, retain=retain, identifiers=identifiers)
            wires.append((wire, begin, begin + count))
            begin += count
        return wires

    def _own(self, held: SubscriptionState | None) -> tuple[int, ...]:
        """Return the identifier of one subscription."""
        return (held.identifier,) if held is not None and held.identifier else ()

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
        """Encode messages that waited, or are sent again; ``flags`` are QoS and RETAIN.

        ``of`` is the only subscription that they are of: of a shared one, or retained ones.
        """
        qos, retain = flags
        own = None if of is None else self._own(of)
        columns = [
            (self._identifiers_of(message) if own is None else own, message, packet_id)
            for message, packet_id in zip(messages, packet_ids, strict=True)
        ]
        parts = []
        for identifiers, some in groupby(columns, itemgetter(0)):
            rows = [*some]
            wire = PacketVariant(qos, retain=retain, identifiers=identifiers)
            prepared = _prepared([row[1] for row in rows], wire, now_ms)
            parts.append(prepared.render([row[2] for row in rows], dup=dup))
        return b"".join(parts)

    def _identifiers_of(self, message: Message) -> tuple[int, ...]:
        """Return the identifiers of all subscriptions by which the client gets a message."""
        return self.identifiers(message.topic, own=message.publisher == self._state.session)

    def is_too_large(self, message: Message, flags: tuple[int, bool], now_ms: int) -> bool:
        """Return whether the client does not accept the packet of a message."""
        if not self.limit:
            return False
        identifiers = self._identifiers_of(message)
        size = len(message.topic) + len(message.payload) + len(message.block)
        if size + _FRAME + _IDENTIFIER * len(identifiers) <= self.limit:
            return False
        wire = PacketVariant(flags[0], retain=flags[1], identifiers=identifiers)
        return len(_prepared([message], wire, now_ms).render([1])) > self.limit


def _asks(held: SubscriptionState) -> bool:
    """Return whether messages must be looked at for what their subscriptions ask for."""
    return bool(held.identifier or held.options & RETAIN_AS_PUBLISHED)


def _prepared(
    messages: Sequence[Message], wire: PacketVariant, now_ms: int
) -> PublishEncoder | PublishEncoderV5:
    """Prepare messages with what is left of their expiry."""
    keys = [(message.block, message.expires) for message in messages]
    left = {key: _remaining_block(*key, now_ms) for key in set(keys)}
    blocks = list(map(left.__getitem__, keys))
    topics = [message.topic for message in messages]
    payloads = [message.payload for message in messages]
    return prepare_publishes(topics, payloads, blocks if any(blocks) else (), wire)


def remaining_properties(message: Message | RetainedMessage, now_ms: int) -> bytes:
    """Return the properties of a message, with the seconds that are left of its expiry."""
    return _remaining_block(message.block, message.expires, now_ms)


def _remaining_block(block: bytes, expires: int, now_ms: int) -> bytes:
    if not expires:
        return block
    return with_remaining_expiry(block, max(0, expires - now_ms // 1000))
