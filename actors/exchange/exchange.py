"""The actor that takes messages from the logs of the other brokers of a node."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import structlog

from actors.exchange.log_follower import LogFollower
from actors.exchange.member_reports import MemberReports
from actors.exchange.qos0_exchange import Qos0Exchange
from actors.exchange.qos0_messages import Qos0Messages
from actors.exchange.retained_versions import RetainedVersion, RetainedVersions
from actors.exchange.shared_parts import SharedParts, only_subscriber
from actors.exchange.taken_messages import TakenClearing, TakenMessages, TakenPart
from actors.kernel import LoopActor
from actors.session import Batch, Outgoing, Publisher
from actors.session.decisions import PACKET_IDS
from actors.sharing import SharedSubscriptions
from eventstore.format import (
    INDEX_BITS,
    LOG_SESSION,
    Followed,
    RetainedCleared,
    SessionClosed,
    SessionOpened,
    expired_until,
    seconds_left,
)
from protocol.errors import FoldmqError
from protocol.mqtt import Publishes
from protocol.mqtt5 import expiry_of, with_remaining_expiry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.exchange.taken_messages import Taken
    from actors.session import NodeContext
    from eventstore.format import Position
    from eventstore.log import EventLog, Message, StoredMessages

_log = structlog.get_logger("foldmq")

_LEVEL = 5
"""Protocol level of the sessions under which messages of other logs are recorded."""
_AT_ONCE, _BYTES_AT_ONCE = 512, 256 * 1024
"""Messages, and bytes of them, that are recorded in one turn."""
_LOOK_EVERY = 0.5
"""Seconds between two announcements of a log that does not grow, and after which a position is
recorded although nothing was taken."""
_CATCH_UP = 30.0


class OtherLog(NamedTuple):
    """The log of another broker."""

    name: str
    log: EventLog


class ExchangeLink(Protocol):
    """Messages between the brokers; they may be lost, but those of one broker keep their order."""

    largest: int
    """Maximum size of a message in bytes."""

    def announce(self, log: str, sequence: int) -> None:
        """Tell the other brokers that a log is stored up to a record."""

    def pass_on(self, batch: bytes) -> bool:
        """Send a batch of QoS 0 messages to the other brokers; return False if that fails."""

    def report(self, members: bytes) -> bool:
        """Tell the other brokers about the members of shared subscriptions."""

    def report_filters(self, filters: bytes) -> bool:
        """Tell the bridges of the other brokers about the topic filters of clients."""


class _Take(NamedTuple):
    """Record the effects of a turn of another log."""

    name: str
    taken: Taken
    done: asyncio.Future[None]


class _Volatile(NamedTuple):
    """Route QoS 0 messages of another broker."""

    name: str
    batch: bytes


_ROUTE_MORE = object()
"""Message of the exchange to itself while such messages wait for another turn."""


class LogExchange(LoopActor):
    """Follows the logs of the other brokers of a node.

    ``names`` are the names of all logs in the order of their numbers, this one included.
    """

    def __init__(
        self,
        node: NodeContext,
        names: Sequence[str],
        others: Sequence[OtherLog],
        link: ExchangeLink,
    ) -> None:
        super().__init__()
        self._node = node
        self._link = link
        self._names = list(names)
        self._number = self._names.index(node.options.node)
        self._followers = {
            name: LogFollower(
                node,
                name,
                log,
                partial(self._taken, name),
                partial(self._reached, name),
                partial(self._acknowledged, name),
            )
            for name, log in others
        }
        self._publishers = {name: Publisher(node, LOG_SESSION + name) for name in self._followers}
        self._through: dict[str, tuple[Position, str]] = {}
        """Position and link up to which each log was taken, recorded or not."""
        self._recorded: dict[str, Position] = {}
        self._taken_by: dict[str, Position] = {}
        """Position up to which each of the other logs has taken this one."""
        self._versions = RetainedVersions()
        self._packet_id = 0
        self._last_to_take = self._last_settled = 0
        """The last position before this log recorded only positions, and the last of these."""
        self._emitted = False
        """Whether anything of the other log was recorded in this turn."""
        self._due: set[str] = set()
        """Logs whose position is to be recorded soon."""
        self._began = False
        self._began_at = node.clock.monotonic()
        self._loop = asyncio.get_running_loop()
        self._shares = SharedSubscriptions(node)
        self._parts = SharedParts(node, self._names, link.report, link.largest, self._taken_through)
        self._qos0 = Qos0Exchange(
            node, link.pass_on, link.largest, self._publishers, self._shares, self._route_later
        )
        self._reports = MemberReports(node, node.options.node, self._taken_through, self.home_of)

    # The life of the exchange.

    def begin(self) -> None:
        """Follow the other logs behind the positions that this one has recorded."""
        node = self._node
        self._began, self._began_at = True, node.clock.monotonic()
        self._reports.begin()
        for name, follower in self._followers.items():
            known = node.state.followed.get(name)
            through, link = (known.through, known.link) if known is not None else (0, "")
            self._through[name], self._recorded[name] = (through, link), through
            node.spawn_task(self._follow(follower, through, link))
        before = node.journal.on_durable

        def on_durable(sequence: int, link: bytes) -> None:
            before(sequence, link)
            self._announce(sequence)

        node.journal.on_durable = on_durable
        self._announce(node.journal.durable)
        self._look_after()

    async def _follow(self, follower: LogFollower, through: Position, link: str) -> None:
        try:
            await follower.run(through, link)
        except FoldmqError as error:
            self._node.fail(error)
        except Exception as error:  # noqa: BLE001 - the broker starts again from the log
            _log.error("a log cannot be followed", log=follower.name, exc_info=error)
            said = f"the exchange with log {follower.name} failed: {error}; please report"
            self._node.fail(FoldmqError(said))

    def _look_after(self) -> None:
        """Announce this log, and record positions, from time to time."""
        node = self._node
        node.timers.after(_LOOK_EVERY, self._look_after)
        self._announce(node.journal.durable)
        self._parts.look_after()
        self._reports.look_after()
        due, self._due = self._due, set()
        self._last_to_take = self.last_to_take
        if due and not node.draining:
            self.settle()
            node.kernel.wake()
        self._last_settled = node.journal.last

    def _announce(self, sequence: int) -> None:
        self._link.announce(self._node.options.node, sequence)

    def end(self) -> None:
        """Close the sessions under which messages of other logs are recorded."""
        self.settle()
        self._parts.end()
        for name in self._followers:
            state = self._node.state.sessions.live.get(LOG_SESSION + name)
            if state is not None and state.connected:
                self._node.emit(SessionClosed(state.session, "broker_stopped", state.generation))

    def heard(self, log: str, sequence: int) -> None:
        """Note that another log is stored up to a record."""
        follower = self._followers.get(log)
        if follower is not None:
            follower.heard(sequence)

    async def catch_up(self) -> None:
        """Wait until all was taken that the other logs had when this broker started.

        Clients that come later find what was retained before. A log that cannot be read is waited
        for in vain: :data:`_CATCH_UP` seconds.
        """
        waits = [one.caught_up.wait() for one in self._followers.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CATCH_UP):
                await asyncio.gather(*waits)

    @property
    def behind(self) -> dict[str, int]:
        """The number of records of each other log that were not taken yet."""
        return {
            name: max(0, one.announced - (self._through[name][0] >> INDEX_BITS))
            for name, one in self._followers.items()
            if name in self._through
        }

    @property
    def catching_up(self) -> bool:
        """Whether this log still takes what the others had when the broker started."""
        late = self._node.clock.monotonic() >= self._began_at + _CATCH_UP
        return not late and not all(one.caught_up.is_set() for one in self._followers.values())

    @property
    def sessions(self) -> int:
        """The number of sessions under which messages of other logs are recorded."""
        sessions = self._node.state.sessions
        return sum(LOG_SESSION + name in sessions for name in self._followers)

    @property
    def last_to_take(self) -> Position:
        """The last position that other logs record to have taken; behind it are only positions."""
        last = self._node.journal.last
        return self._last_to_take if last == self._last_settled else last

    def is_taken(self, through: Position) -> bool:
        """Return whether all other logs record to have taken this one up to a position."""
        return all(self._taken_by.get(name, 0) >= through for name in self._followers)

    # Messages from other logs.

    async def _taken(self, name: str, taken: Taken) -> None:
        times = [
            one.time_ms
            for one in taken.effects
            if isinstance(one, TakenClearing) or (isinstance(one, TakenMessages) and one.retain)
        ]
        if times:
            self._node.journal.not_before(max(times) + 1)
        done = self._loop.create_future()
        self._node.kernel.tell(self, _Take(name, taken, done))
        self._node.kernel.wake()
        await done

    def _reached(self, name: str, through: Position, link: str, *, more: bool) -> None:
        """Note the position behind a turn; ``more``: it has more than positions of other logs."""
        if through > self._through[name][0]:
            self._through[name] = through, link
        self._reports.reached(name)
        if more and through > self._recorded[name]:
            self._due.add(name)

    def _acknowledged(self, by: str, log: str, through: Position) -> None:
        if log == self._node.options.node:
            self._taken_by[by] = max(through, self._taken_by.get(by, 0))

    def settle(self) -> None:
        """Record positions up to which nothing concerned this log.

        This belongs to the turn of each new subscription: after a crash nothing older is matched
        with it.
        """
        for name in self._through:
            self._settle(name)

    def _settle(self, name: str) -> None:
        through, link = self._through[name]
        if through > self._recorded[name]:
            self._record(name, through, link)

    def _record(self, name: str, through: Position, link: str) -> None:
        self._through[name], self._recorded[name] = (through, link), through
        self._node.emit(Followed(name, through, link))

    def on_receive(self, message: Any) -> None:
        """Record and route messages of other brokers."""
        if type(message) is _Take:
            self._take(message)
        elif type(message) is _Volatile:
            self._qos0.take(message.name, message.batch)
        elif message is _ROUTE_MORE:
            self._qos0.route()

    def on_dead_letters(self, messages: list[Any]) -> None:
        """Ignore what is left: the log has it."""

    def _take(self, work: _Take) -> None:
        """Record and route a part of a turn of another log, with the position behind it."""
        name, taken, done = work
        left, through = _AT_ONCE, None
        self._emitted = False
        while taken.effects and left > 0:
            effect = taken.effects[0]
            if isinstance(effect, TakenClearing):
                self._clear(name, effect)
                count = 1
            elif isinstance(effect, TakenPart):
                self._take_part(name, effect)
                count = 1
            else:
                count = self._publish(name, effect, left)
                if not count:  # too much was routed in this turn already
                    break
            through = effect.first + count - 1
            left -= count
            if not isinstance(effect, TakenMessages) or count == len(effect):
                del taken.effects[0]
            else:
                taken.effects[0] = _rest(effect, count)
        if not taken.effects:
            through = taken.through
        if through is not None:
            link = taken.links[through >> INDEX_BITS]
            self._through[name] = through, link
            if self._emitted:
                self._record(name, through, link)
        if not taken.effects:
            if not done.done():
                done.set_result(None)
            return
        self.kernel.later(self, work)

    def _publish(self, name: str, taken: TakenMessages, most: int) -> int:
        """Record and route the first of some messages; return how many, 0: try again later."""
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

    # Shared subscriptions.

    def _take_part(self, name: str, taken: TakenPart) -> None:
        """Record that another log has members of a shared subscription, or none any longer."""
        if self.home_of(taken.share):
            return
        self._emitted = True
        if taken.begun:
            for other in self._through:
                if other != name:  # its position is recorded with the effects of its turn
                    self._settle(other)
            self._shares.log_joined(taken.share, name)
        else:
            self._shares.log_left(taken.share, name)

    def _take_assigned(self, name: str, taken: TakenMessages, count: int) -> None:
        """Record messages that another log assigned to this one, and divide them."""
        passed = expired_until(self._node.clock.time_ms())
        chosen = [
            at
            for at in range(count)
            if not (taken.expires and 0 < taken.expires[at] <= passed)
            and self._fits(name, taken, at)
        ]
        receiver = self._shares.receiver(taken.share) if chosen else None
        if receiver is None:
            return
        self._emitted = True
        self._open(name)
        packet = self._packet(taken, chosen, 0)
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
        receiver.take_in(Outgoing(only_subscriber(taken.share), batch, taken.qos))
        self._shares.settled(taken.share)

    def home_of(self, name: str) -> str:
        """Return the log that is the home of a shared subscription; empty: this one."""
        return self._parts.home_of(name)

    def part_began(self, name: str, at: Position) -> None:
        """Note where a part of a shared subscription in this log began."""
        self._parts.part_began(name, at)

    def part_ended(self, name: str) -> None:
        """Note that a part has ended."""
        self._parts.part_ended(name)

    def is_known(self, name: str) -> bool:
        """Return whether the home of a shared subscription knows that this log has members."""
        return self._parts.is_known(name, self._taken_by)

    def offer(self, name: str, measure: Callable[[], tuple[int, int]]) -> None:
        """Tell the home of a shared subscription how many members are connected, and their room."""
        self._parts.offer(name, measure)

    def reported(self, log: str, members: bytes) -> None:
        """Note what another broker reports about members of shared subscriptions."""
        if self._began and log in self._followers and not self._node.draining:
            self._reports.heard(log, members)

    def reported_filters(self, log: str, filters: bytes) -> None:
        """Pass on to the bridge what that of another broker reports."""
        if self._node.bridge is not None and self._began and log in self._followers:
            self._node.bridge.reported(log, filters)

    def give_back(self, name: str, returned: dict[Position, Message]) -> None:
        """Return a client's unacknowledged messages to the home: this log has no member left."""
        receiver = self._shares.receiver(name)
        if receiver is not None:
            receiver.take_back(returned)
            self._shares.settled(name)

    def _taken_through(self, name: str) -> Position:
        return self._through.get(name, (0, ""))[0]

    def _publish_parts(self, name: str, taken: TakenMessages, count: int) -> None:
        """Record and route messages, retained ones apart from those that later ones replaced."""
        number = self._names.index(name)
        version = RetainedVersion(taken.time_ms, number)
        routes = self._node.router.routes
        passed = expired_until(self._node.clock.time_ms())
        chosen: list[int] = []
        keeps = False
        for at in range(count):
            topic = taken.topics[at]
            wanted = keep = taken.retain and self._versions.accepts(topic, version)
            if taken.live and not keep:
                route = routes[topic]
                wanted = bool(route.targets or route.denied)
            expired = bool(taken.expires) and 0 < taken.expires[at] <= passed
            if not wanted or expired or not self._fits(name, taken, at):
                continue
            if chosen and keep is not keeps:
                self._publish_now(name, taken, chosen, retain=keeps)
                chosen = []
            chosen.append(at)
            keeps = keep
        if chosen:
            self._publish_now(name, taken, chosen, retain=keeps)

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
        self._emitted = True
        self._open(name)
        packet = self._packet(taken, chosen, taken.qos, retain=retain)
        if taken.qos:
            packet.packet_ids += self._packet_ids(len(chosen))
        origins = [taken.origins[at] for at in chosen]
        self._publishers[name].publish_taken(packet, origins, live=taken.live)

    def _packet(
        self, taken: TakenMessages, chosen: Sequence[int], qos: int, *, retain: bool = False
    ) -> Publishes:
        """Return some of the messages, without packet identifiers."""
        packet = Publishes(qos, retain=retain)
        packet.topics += [taken.topics[at] for at in chosen]
        packet.payloads.extend(taken.payloads[at] for at in chosen)
        if taken.blocks:
            packet.blocks = [self._block(taken, at) for at in chosen]
        return packet

    def _block(self, taken: TakenMessages, at: int) -> bytes:
        """Return the properties of a message, with what is left of its expiry."""
        block = taken.blocks[at]
        if not taken.expires or not taken.expires[at]:
            return block
        now = self._node.clock.time_ms()
        left = seconds_left(expiry_of(block), taken.expires[at], now)
        return with_remaining_expiry(block, left)

    def _packet_ids(self, count: int) -> list[int]:
        """Return packet identifiers for messages that take effect in the turn of their arrival."""
        ids = [(self._packet_id + number) % PACKET_IDS + 1 for number in range(count)]
        self._packet_id = ids[-1]
        return ids

    def _open(self, name: str) -> None:
        """Open the session under which the messages of a log are recorded."""
        session = LOG_SESSION + name
        known = self._node.state.sessions.get(session)
        if known is not None and known.connected:
            return
        generation = known.generation + 1 if known is not None else 1
        self._node.emit(SessionOpened(session, False, True, _LEVEL, generation=generation))

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
            self._emitted = True
            self._node.emit(RetainedCleared(topics))

    # What this broker's clients publish.

    def published(self, qos: int, content: StoredMessages, *, retain: bool, gated: bool) -> None:
        """Pass on messages of QoS 0; note which messages are retained now."""
        if retain:
            version = RetainedVersion(self._node.journal.time_ms, self._number)
            self._versions.changed(content.topics, version)
        if not qos and not gated:
            self.pass_on(content.topics, content.payloads, content.blocks, retain=retain)

    def pass_on(
        self,
        topics: Sequence[bytes],
        payloads: Sequence[bytes],
        blocks: Sequence[bytes] | None,
        *,
        retain: bool = False,
    ) -> None:
        """Send messages of QoS 0 to the other brokers, at the end of this iteration of the loop."""
        messages = Qos0Messages(topics, payloads, blocks or (), retain)
        self._qos0.pass_on(messages, gated=False)

    def pass_shared(self, log: str, name: str, batch: Batch) -> None:
        """Send messages of QoS 0 to the part of a shared subscription in another log."""
        messages = Qos0Messages(batch.topics, batch.payloads, batch.blocks or (), False, log, name)
        self._qos0.pass_on(messages, gated=batch.gated)

    # QoS 0 of other brokers.

    def arrived(self, log: str, batch: bytes) -> None:
        """Route a batch of QoS 0 messages of another broker in the next turn.

        During recovery the sessions are not complete, and nothing may be done with them; no client
        is connected yet, so none misses the messages.
        """
        if self._began and log in self._followers and not self._node.draining:
            self._node.kernel.tell(self, _Volatile(log, batch))

    def _route_later(self) -> None:
        self.kernel.later(self, _ROUTE_MORE)


def _rest(taken: TakenMessages, done: int) -> TakenMessages:
    """Return messages without the first ones."""
    return TakenMessages(
        taken.first + done,
        taken.qos,
        taken.retain,
        taken.topics[done:],
        taken.payloads[done:],
        taken.origins[done:],
        taken.time_ms,
        taken.blocks[done:],
        taken.expires[done:],
        live=taken.live,
        share=taken.share,
        refused=taken.refused,
    )
