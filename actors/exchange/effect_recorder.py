"""Records the messages that took effect in another log, and routes them to clients of this log."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from actors.exchange.member_reports import SharedParts, only_subscriber
from actors.exchange.taken_erasures import TakenErasures
from actors.exchange.taken_messages import (
    TakenClearing,
    TakenEffect,
    TakenErasure,
    TakenMessages,
    TakenPart,
)
from actors.session.node_context import NodeContext
from actors.session.outside_publisher import OutsidePublisher, packet_ids_after
from actors.session.session_messages import Batch, Outgoing
from actors.sharing.shared_subscriptions import SharedSubscriptions
from eventstore.format.events import LOG_SESSION
from eventstore.format.node_events import RetainedCleared
from eventstore.format.positions import Position
from eventstore.format.sealing import SealedBytes, is_closed
from eventstore.format.stored_properties import seconds_left
from protocol.mqtt.message_properties import expiry_of, with_remaining_expiry
from protocol.mqtt.packets import Publishes

if TYPE_CHECKING:
    from actors.exchange.followed_positions import FollowedPositions

# The order of retained messages of one topic in different logs.
#
# All logs keep all retained messages. The last one of a topic is the one whose record has the
# latest time; if the times are equal, the log with the highest number decides. So all logs end with
# the same message, in whatever order they receive the messages.

_MAX = 100_000
"""Maximum number of topics whose last change is remembered; forgotten changes count as old."""


class RetainedVersion(NamedTuple):
    """When a retained message took effect."""

    time_ms: int
    """Time of its record, Unix time in milliseconds."""
    number: int
    """Number of its log."""


class RetainedVersions:
    """The last changes of retained messages, by topic."""

    def __init__(self) -> None:
        self._last: OrderedDict[bytes, RetainedVersion] = OrderedDict()

    def changed(self, topics: Sequence[bytes], version: RetainedVersion) -> None:
        """Record messages of this log: they are the last ones of their topics here."""
        for topic in topics:
            self._set(topic, version)

    def accepts(self, topic: bytes, version: RetainedVersion) -> bool:
        """Return whether a message of another log is the last one of its topic, and record that."""
        latest = self._last.get(topic)
        if latest is not None and version < latest:
            return False
        self._set(topic, version)
        return True

    def _set(self, topic: bytes, version: RetainedVersion) -> None:
        self._last[topic] = version
        self._last.move_to_end(topic)
        if len(self._last) > _MAX:
            self._last.popitem(last=False)


_LEVEL = 5
"""Protocol level of the sessions under which messages of other logs are recorded."""
_BYTES_AT_ONCE = 256 * 1024
"""Maximum bytes of messages that are recorded together."""


@dataclass(eq=False, repr=False)
class EffectRecorder:
    """Records and routes the effects of other logs, each under a separate session.

    ``names`` are the names of all logs in the order of their numbers, ``publishers`` route the
    messages of each other log.
    """

    _node: NodeContext
    _names: Sequence[str]
    _publishers: Mapping[str, OutsidePublisher]
    _positions: FollowedPositions
    _versions: RetainedVersions
    _shares: SharedSubscriptions
    _parts: SharedParts
    _erasures: TakenErasures

    def __post_init__(self) -> None:
        self._packet_id = 0
        self.emitted = False
        """Whether anything was recorded; the caller resets it."""
        self.expired: list[Position] = []
        """Messages that were not recorded because they had expired; the caller resets it."""
        self.erased: list[Position] = []
        """Those that were not recorded because they are erased; the caller resets it."""
        self.unwanted: list[bytes] = []
        """Topics of messages to which no subscription matches; the caller resets it."""

    def record(self, name: str, effect: TakenEffect, most: int) -> int:
        """Record and route an effect, or at most ``most`` of its messages.

        Returns how many were recorded; 0: try again later, too much was routed in this turn.
        """
        if isinstance(effect, TakenClearing):
            self._clear(name, effect)
            return 1
        if isinstance(effect, TakenPart):
            self._take_part(name, effect)
            return 1
        if isinstance(effect, TakenErasure):
            if not self._erasures.record(name, effect):
                return 0
            self.emitted = True
            return 1
        return self._publish(name, effect, most)

    def _publish(self, name: str, messages: TakenMessages, most: int) -> int:
        """Record and route the first messages; return how many, 0: try again later."""
        publisher = self._publishers[name]
        count = min(most, len(messages))
        if messages.live and not messages.share:
            count = min(count, publisher.at_once(messages.topics[:count], messages.qos))
        size = 0
        for number in range(count):
            size += len(messages.payloads[number])
            if size > _BYTES_AT_ONCE and number:
                count = number
                break
        if messages.share:
            self._take_assigned(name, messages, count)
        else:
            self._publish_parts(name, messages, count)
        return count

    def _take_part(self, name: str, part: TakenPart) -> None:
        """Record that another log has members of a shared subscription, or no longer has any."""
        if self._parts.home_of(part.share):
            return
        self.emitted = True
        if part.begun:
            # The position of this log is recorded with the effects of its turn.
            self._positions.settle(but=name)
            self._shares.log_joined(part.share, name)
        else:
            self._shares.log_left(part.share, name)

    def _take_assigned(self, name: str, messages: TakenMessages, count: int) -> None:
        """Record messages that another log assigned to this one, and divide them among members."""
        passed = self._node.expired_until
        chosen = [
            at
            for at in range(count)
            if not self._is_gone(name, messages, at, passed) and self._fits(name, messages, at)
        ]
        receiver = self._shares.receiver(messages.share) if chosen else None
        if receiver is None:
            return
        self.emitted = True
        self._publishers[name].open(_LEVEL)
        packet = self._packet(name, messages, chosen, 0)
        origins = [messages.origins[at] for at in chosen]
        content = self._publishers[name].record_assigned(packet, origins, messages.share)
        refs = range(content.first, content.first + len(chosen))
        if messages.refused:
            refused = self._node.router.groups.find(messages.share).refused
            refused.update((ref, [*messages.refused]) for ref in refs)
        batch = Batch(
            messages.qos,
            content.topics,
            content.payloads,
            refs,
            size=content.size,
            blocks=content.blocks,
            expires=content.expires,
        )
        receiver.add_assigned(Outgoing(only_subscriber(messages.share), batch, messages.qos))
        self._shares.settled(messages.share)

    def _publish_parts(self, name: str, messages: TakenMessages, count: int) -> None:
        """Record and route messages; retained ones that later ones replaced are kept separate."""
        number = self._names.index(name)
        version = RetainedVersion(messages.time_ms, number)
        routes = self._node.router.routes
        passed = self._node.expired_until
        chosen: list[int] = []
        keeps = False
        for at in range(count):
            topic = messages.topics[at]
            is_wanted = keep = messages.retain and self._versions.accepts(topic, version)
            if messages.live and not keep:
                route = routes[topic]
                is_wanted = bool(route.targets or route.denied or route.frozen)
                if not is_wanted:
                    self.unwanted.append(topic)
            if not is_wanted or self._is_gone(name, messages, at, passed):
                continue
            if not self._fits(name, messages, at):
                continue
            if chosen and keep is not keeps:
                self._publish_now(name, messages, chosen, retain=keeps)
                chosen = []
            chosen.append(at)
            keeps = keep
        if chosen:
            self._publish_now(name, messages, chosen, retain=keeps)

    def _is_gone(self, name: str, messages: TakenMessages, at: int, passed: int) -> bool:
        """Return whether a message is erased or expired; if so, count and note it."""
        if is_closed(messages.payloads[at]) or (messages.blocks and is_closed(messages.blocks[at])):
            omitted, reason = self.erased, "erased"
        elif messages.expires and 0 < messages.expires[at] <= passed:
            omitted, reason = self.expired, "expired"
        else:
            return False
        omitted.append(messages.origins[at])
        self._node.count_dropped(reason, 1, client=LOG_SESSION + name)
        return True

    def _fits(self, name: str, messages: TakenMessages, at: int) -> bool:
        """Return whether a record has room for a message with a longer publisher's name."""
        block = messages.blocks[at] if messages.blocks else b""
        if self._publishers[name].fits(
            messages.topics[at], messages.payloads[at], block, messages.share
        ):
            return True
        self._node.count_dropped("message_too_large", 1, client=LOG_SESSION + name)
        return False

    def _publish_now(
        self, name: str, messages: TakenMessages, chosen: Sequence[int], *, retain: bool
    ) -> None:
        """Record and route some of the messages."""
        self.emitted = True
        self._publishers[name].open(_LEVEL)
        packet = self._packet(name, messages, chosen, messages.qos, retain=retain)
        if messages.qos:
            packet.packet_ids += packet_ids_after(self._packet_id, len(chosen))
            self._packet_id = packet.packet_ids[-1]
        origins = [messages.origins[at] for at in chosen]
        self._publishers[name].publish_taken(packet, origins, live=messages.live)

    def _packet(
        self,
        name: str,
        messages: TakenMessages,
        chosen: Sequence[int],
        qos: int,
        *,
        retain: bool = False,
    ) -> Publishes:
        """Return some of the messages, without packet identifiers.

        What the other log has sealed gets a key of this log.
        """
        packet = Publishes(qos, retain=retain)
        packet.topics += [messages.topics[at] for at in chosen]
        packet.payloads.extend(messages.payloads[at] for at in chosen)
        if messages.blocks:
            packet.blocks = [self._block(messages, at) for at in chosen]
        sealing = self._node.sealing
        if sealing is None:
            return packet
        named: set[int] = set()
        for number, at in enumerate(chosen):
            payload, block = messages.payloads[at], messages.blocks[at] if messages.blocks else b""
            if packet.blocks:
                packet.blocks[number] = bytes(packet.blocks[number])
            part = block if isinstance(block, SealedBytes) else payload
            if isinstance(part, SealedBytes):
                topic, clock = messages.topics[at].decode(), self._node.clock
                published_ms = (part.time_ms or clock.time_ms()) - clock.jumped_ms
                key = sealing.adopt(topic, published_ms, named)
                self._erasures.took(name, topic)
                packet.payloads[number] = SealedBytes.of(payload, key, opened=True)
        return packet

    def _block(self, messages: TakenMessages, at: int) -> bytes:
        """Return the properties of a message, with its remaining expiry."""
        block = messages.blocks[at]
        if not messages.expires or not messages.expires[at]:
            return block
        now = self._node.clock.steady_ms()
        remaining_seconds = seconds_left(expiry_of(block), messages.expires[at], now)
        return with_remaining_expiry(block, remaining_seconds)

    def _clear(self, name: str, clearing: TakenClearing) -> None:
        """Remove retained messages that an operator removed elsewhere."""
        version = RetainedVersion(clearing.time_ms, self._names.index(name))
        retained = self._node.state.retained
        topics = [
            topic
            for topic in clearing.topics
            if self._versions.accepts(topic.encode(), version) and retained.get(topic) is not None
        ]
        if topics:
            self.emitted = True
            self._node.emit(RetainedCleared(topics))
