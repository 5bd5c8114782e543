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
        known = self._last.get(topic)
        if known is not None and version < known:
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

    def _publish(self, name: str, taken: TakenMessages, most: int) -> int:
        """Record and route the first messages; return how many, 0: try again later."""
        publisher = self._publishers[name]
        count = min(most, len(taken))
        if taken.live and not taken.share:
            count = min(count, publisher.at_once(taken.topics[:count], taken.qos))
        size = 0
        for number in range(count):
            size += len(taken.payloads[number])
            if size > _BYTES_AT_ONCE and number:
                count = number
                break
        if taken.share:
            self._take_assigned(name, taken, count)
        else:
            self._publish_parts(name, taken, count)
        return count

    def _take_part(self, name: str, taken: TakenPart) -> None:
        """Record that another log has members of a shared subscription, or no longer has any."""
        if self._parts.home_of(taken.share):
            return
        self.emitted = True
        if taken.begun:
            # The position of this log is recorded with the effects of its turn.
            self._positions.settle(but=name)
            self._shares.log_joined(taken.share, name)
        else:
            self._shares.log_left(taken.share, name)

    def _take_assigned(self, name: str, taken: TakenMessages, count: int) -> None:
        """Record messages that another log assigned to this one, and divide them among members."""
        passed = self._node.expired_until
        chosen = [
            at
            for at in range(count)
            if not self._is_gone(name, taken, at, passed) and self._fits(name, taken, at)
        ]
        receiver = self._shares.receiver(taken.share) if chosen else None
        if receiver is None:
            return
        self.emitted = True
        self._publishers[name].open(_LEVEL)
        packet = self._packet(name, taken, chosen, 0)
        origins = [taken.origins[at] for at in chosen]
        content = self._publishers[name].record_assigned(packet, origins, taken.share)
        refs = range(content.first, content.first + len(chosen))
        if taken.refused:
            refused = self._node.router.groups.find(taken.share).refused
            refused.update((ref, [*taken.refused]) for ref in refs)
        batch = Batch(
            taken.qos,
            content.topics,
            content.payloads,
            refs,
            size=content.size,
            blocks=content.blocks,
            expires=content.expires,
        )
        receiver.add_assigned(Outgoing(only_subscriber(taken.share), batch, taken.qos))
        self._shares.settled(taken.share)

    def _publish_parts(self, name: str, taken: TakenMessages, count: int) -> None:
        """Record and route messages; retained ones that later ones replaced are kept separate."""
        number = self._names.index(name)
        version = RetainedVersion(taken.time_ms, number)
        routes = self._node.router.routes
        passed = self._node.expired_until
        chosen: list[int] = []
        keeps = False
        for at in range(count):
            topic = taken.topics[at]
            wanted = keep = taken.retain and self._versions.accepts(topic, version)
            if taken.live and not keep:
                route = routes[topic]
                wanted = bool(route.targets or route.denied or route.frozen)
                if not wanted:
                    self.unwanted.append(topic)
            if not wanted or self._is_gone(name, taken, at, passed):
                continue
            if not self._fits(name, taken, at):
                continue
            if chosen and keep is not keeps:
                self._publish_now(name, taken, chosen, retain=keeps)
                chosen = []
            chosen.append(at)
            keeps = keep
        if chosen:
            self._publish_now(name, taken, chosen, retain=keeps)

    def _is_gone(self, name: str, taken: TakenMessages, at: int, passed: int) -> bool:
        """Return whether a message is erased or expired; if so, count and note it."""
        if is_closed(taken.payloads[at]) or (taken.blocks and is_closed(taken.blocks[at])):
            gone, reason = self.erased, "erased"
        elif taken.expires and 0 < taken.expires[at] <= passed:
            gone, reason = self.expired, "expired"
        else:
            return False
        gone.append(taken.origins[at])
        self._node.count_dropped(reason, 1, client=LOG_SESSION + name)
        return True

    def _fits(self, name: str, taken: TakenMessages, at: int) -> bool:
        """Return whether a record has room for a message with a longer publisher's name."""
        block = taken.blocks[at] if taken.blocks else b""
        if self._publishers[name].fits(taken.topics[at], taken.payloads[at], block, taken.share):
            return True
        self._node.count_dropped("message_too_large", 1, client=LOG_SESSION + name)
        return False

    def _publish_now(
        self, name: str, taken: TakenMessages, chosen: Sequence[int], *, retain: bool
    ) -> None:
        """Record and route some of the messages."""
        self.emitted = True
        self._publishers[name].open(_LEVEL)
        packet = self._packet(name, taken, chosen, taken.qos, retain=retain)
        if taken.qos:
            packet.packet_ids += packet_ids_after(self._packet_id, len(chosen))
            self._packet_id = packet.packet_ids[-1]
        origins = [taken.origins[at] for at in chosen]
        self._publishers[name].publish_taken(packet, origins, live=taken.live)

    def _packet(
        self,
        name: str,
        taken: TakenMessages,
        chosen: Sequence[int],
        qos: int,
        *,
        retain: bool = False,
    ) -> Publishes:
        """Return some of the messages, without packet identifiers.

        What the other log has sealed gets a key of this log.
        """
        packet = Publishes(qos, retain=retain)
        packet.topics += [taken.topics[at] for at in chosen]
        packet.payloads.extend(taken.payloads[at] for at in chosen)
        if taken.blocks:
            packet.blocks = [self._block(taken, at) for at in chosen]
        sealing = self._node.sealing
        if sealing is None:
            return packet
        named: set[int] = set()
        for number, at in enumerate(chosen):
            payload, block = taken.payloads[at], taken.blocks[at] if taken.blocks else b""
            if packet.blocks:
                packet.blocks[number] = bytes(packet.blocks[number])
            part = block if isinstance(block, SealedBytes) else payload
            if isinstance(part, SealedBytes):
                topic, clock = taken.topics[at].decode(), self._node.clock
                published_ms = (part.time_ms or clock.time_ms()) - clock.jumped_ms
                key = sealing.adopt(topic, published_ms, named)
                self._erasures.took(name, topic)
                packet.payloads[number] = SealedBytes.of(payload, key, opened=True)
        return packet

    def _block(self, taken: TakenMessages, at: int) -> bytes:
        """Return the properties of a message, with its remaining expiry."""
        block = taken.blocks[at]
        if not taken.expires or not taken.expires[at]:
            return block
        now = self._node.clock.steady_ms()
        left = seconds_left(expiry_of(block), taken.expires[at], now)
        return with_remaining_expiry(block, left)

    def _clear(self, name: str, taken: TakenClearing) -> None:
        """Remove retained messages that an operator removed elsewhere."""
        version = RetainedVersion(taken.time_ms, self._names.index(name))
        retained = self._node.state.retained
        topics = [
            topic
            for topic in taken.topics
            if self._versions.accepts(topic.encode(), version) and retained.get(topic) is not None
        ]
        if topics:
            self.emitted = True
            self._node.emit(RetainedCleared(topics))
