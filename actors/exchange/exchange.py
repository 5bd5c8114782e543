"""The actor that takes messages from the logs of the other brokers of a node."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import structlog

from actors.exchange.effect_recorder import EffectRecorder, RetainedVersion, RetainedVersions
from actors.exchange.followed_positions import FollowedPositions
from actors.exchange.log_follower import LogFollower
from actors.exchange.member_reports import MemberReports, SharedParts
from actors.exchange.qos0_exchange import Qos0Exchange, Qos0Messages
from actors.exchange.skipped_records import RecordPushes, Skipped
from actors.exchange.taken_erasures import TakenErasures
from actors.exchange.taken_messages import Taken, TakenClearing, TakenErasure, TakenMessages
from actors.exchange.unwanted_topics import SILENCE, UnwantedTopics, read_report
from actors.kernel.actor import LoopActor
from actors.session.node_context import NodeContext
from actors.session.outside_publisher import OutsidePublisher
from actors.session.session_messages import Batch
from actors.sharing.shared_subscriptions import SharedSubscriptions
from eventstore.format.events import LOG_SESSION
from eventstore.format.positions import INDEX_BITS, Position
from eventstore.log.message_store import Message
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from eventstore.log.jetstream_log import EventLog
    from eventstore.log.pending_record import PendingRecord


_log = structlog.get_logger("foldmq")

_AT_ONCE = 512
"""Maximum number of messages that are recorded in one turn."""
_LOOK_EVERY = 0.5
"""Seconds after which a position is recorded although nothing was taken, and seconds between two
announcements of a log that has grown a short while ago."""
_LOOK_AGAIN = 0.005
"""Seconds after which it is looked again whether the erasure before is completed."""
_REPEATS, _IDLE_LOOKS = 10, 8
"""Number of these announcements. Then each ``_IDLE_LOOKS``-th time is enough for those that missed
all of them."""
_CATCH_UP = 30.0
"""Seconds for which a broker that starts waits for the messages of the other logs."""
_CATCH_UP_IN_CLUSTER = 1.0
"""The same for a node that takes over: the previous leader has taken nearly all of them."""


class OtherLog(NamedTuple):
    """The log of another broker."""

    name: str
    log: EventLog


class ExchangeLink(Protocol):
    """Messages between the brokers; they may be lost, but those of one broker stay in order."""

    largest: int
    """Maximum size of a message in bytes."""

    def announce(self, log: str, sequence: int, record: bytes) -> None:
        """Notify the other brokers that a log is stored up to a record; it may be empty."""

    def push(self, to: str, records: bytes) -> bool:
        """Send a message of ``skipped_records`` to the broker of one log."""

    def report_topics(self, to: str, topics: bytes) -> None:
        """Report to the broker of a log which topics are wanted and which are not."""

    def pass_on(self, batch: bytes) -> bool:
        """Send a batch of QoS 0 messages to the other brokers; return False if that fails."""

    def report(self, members: bytes) -> bool:
        """Report the members of shared subscriptions to the other brokers."""

    def report_filters(self, filters: bytes) -> bool:
        """Report the topic filters of clients to the bridges of the other brokers."""


class _Take(NamedTuple):
    """Record the effects of turns of another log."""

    name: str
    taken: Taken
    done: asyncio.Future[None]


class _Volatile(NamedTuple):
    """Route QoS 0 messages of another broker."""

    name: str
    batch: bytes


_ROUTE_MORE = object()
"""Message of the exchange to itself while QoS 0 messages wait for another turn."""


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
        if node.options.node not in self._names:
            raise FoldmqError(
                f"log {node.options.node} is not one of this node's logs, {', '.join(names)}: its "
                "data directory was replaced while it ran; stop all processes and start again"
            )
        self._number = self._names.index(node.options.node)
        self._erasures = TakenErasures(node)
        self._followers = {
            name: LogFollower(
                node,
                name,
                log,
                partial(self._taken, name),
                partial(self._reached, name),
                partial(self._acknowledged, name),
                self._erasures.find,
                partial(self._may_skip, name),
            )
            for name, log in others
        }
        self._publishers = {
            name: OutsidePublisher(node, LOG_SESSION + name) for name in self._followers
        }
        self._positions = FollowedPositions(node, tuple(self._followers))
        self._pushes: RecordPushes | None = None
        """Passes on the records of this log; None until it has begun."""
        self.unwanted = UnwantedTopics(
            node, tuple(self._followers), link.report_topics, link.largest
        )
        """The topics with which other logs need not wake this one."""
        self._reported_at: dict[str, float] = {}
        """Monotonic time at which each log reported topics last, if that is not too long ago."""
        self._versions = RetainedVersions()
        self._complete: dict[str, int] = {}
        """The last record of each log up to which all turns were taken."""
        self.on_taken: Callable[[str], object] | None = None
        """Called with the name of a log when more of it was taken; None: there are no replays."""
        self._began = False
        self._began_at = node.clock.monotonic()
        self._marks: dict[str, tuple[int, float]] = {}
        """A record that each log was known to have, and since when this log has to take it."""
        self._repeated, self._repeats = 0, 0
        """The record that was announced last, and how often it was looked whether it still is."""
        self._loop = asyncio.get_running_loop()
        self._shares = SharedSubscriptions(node)
        through = self._positions.through
        self._parts = SharedParts(node, self._names, self._report, link.largest, through)
        self._recorder = EffectRecorder(
            node,
            self._names,
            self._publishers,
            self._positions,
            self._versions,
            self._shares,
            self._parts,
            self._erasures,
        )
        self._qos0 = Qos0Exchange(
            node, link.pass_on, link.largest, self._publishers, self._shares, self._route_later
        )
        # What the parts of the exchange do for others.
        self.home_of = self._parts.home_of
        self.part_began = self._parts.part_began
        self.part_ended = self._parts.part_ended
        self.offer = self._parts.offer
        self.is_taken = self._positions.is_taken
        self.await_proof = self._qos0.await_proof
        self._reports = MemberReports(node, node.options.node, through, self.home_of)

    # Beginning and end.

    def begin(self) -> None:
        """Follow the other logs after the positions that this one has recorded."""
        node = self._node
        self._began, self._began_at = True, node.clock.monotonic()
        self._reports.begin()
        self._erasures.begin()
        for name, follower in self._followers.items():
            through, link = self._positions.begin(name)
            self._complete[name] = (through + 1 >> INDEX_BITS) - 1
            node.spawn_task(self._follow(follower, through, link))
        announce = partial(self._link.announce, node.options.node)
        pushes = RecordPushes(
            self._followers,
            node.journal.durable,
            self._link.push,
            self._link.largest,
            announce,
            node.timers.after,
        )
        self._pushes, before = pushes, node.journal.on_durable

        def on_durable(newest: PendingRecord) -> None:
            before(newest)
            for record in node.journal.pending:
                if record.sequence <= newest.sequence:
                    pushes.stored(record)

        node.journal.on_durable = on_durable
        self.unwanted.begin()
        self._announce(node.journal.durable)
        self._run_periodically()

    async def _follow(self, follower: LogFollower, through: Position, link: str) -> None:
        try:
            await follower.run(through, link)
        except FoldmqError as error:
            self._node.fail(error)
        except Exception as error:  # noqa: BLE001 - the broker starts again from the log
            _log.error("a log cannot be followed", log=follower.name, exc_info=error)
            reason = f"the exchange with log {follower.name} failed: {error}; please report"
            self._node.fail(FoldmqError(reason))

    def _run_periodically(self) -> None:
        """Announce this log, and record positions, from time to time."""
        node = self._node
        node.timers.after(_LOOK_EVERY, self._run_periodically)
        durable = node.journal.durable
        self._repeats = self._repeats + 1 if durable == self._repeated else 0
        self._repeated = durable
        # While it grows, what is sent of it says so.
        repeats = self._repeats
        if repeats and (repeats < _REPEATS or not repeats % _IDLE_LOOKS):
            self._announce(durable)
        self._mark()
        self._parts.run_periodically()
        self._reports.run_periodically()
        self._positions.settle_due()

    def _announce(self, sequence: int, record: bytes = b"") -> None:
        self._link.announce(self._node.options.node, sequence, record)

    def end(self) -> None:
        """Close the sessions under which messages of other logs are recorded."""
        self._positions.settle()
        self._parts.end()
        for publisher in self._publishers.values():
            publisher.close("broker_stopped")

    def heard(self, log: str, sequence: int, record: bytes = b"") -> None:
        """Note that another log is stored up to a record, and what this is, if it was sent."""
        follower = self._followers.get(log)
        if follower is not None:
            follower.heard(sequence, record)

    def pushed(self, log: str, records: bytes) -> None:
        """Note records of another log that were sent to this one alone."""
        follower = self._followers.get(log)
        if follower is not None:
            follower.heard_push(records)

    def reported_topics(self, log: str, topics: bytes) -> None:
        """Note which topics another log wants, and which it does not."""
        if self._pushes is None or log not in self._followers:
            return
        try:
            report = read_report(topics)
        except ValueError as error:
            _log.warning("a report of another broker cannot be read", reason=str(error))
            return
        self._reported_at[log] = self._node.clock.monotonic()
        self._pushes.deaf.discard(log)
        topics_of_log, (wanted, unwanted) = self._pushes.unwanted[log], report or (None, ())
        if wanted is None:
            topics_of_log.clear()
        else:
            topics_of_log.remove(wanted)
        topics_of_log.add(unwanted)
        if wanted != []:
            self._pushes.flush()
        if report is None:
            self.unwanted.begun(log)

    def _report(self, members: bytes) -> bool:
        """Report members of shared subscriptions, and what the others must take before."""
        if self._pushes is not None:
            self._pushes.at_once_through = self._node.journal.end
            self._pushes.flush()
        return self._link.report(members)

    async def catch_up(self) -> None:
        """Wait until everything was taken that the other logs had when this broker started.

        Clients that connect later then find all retained messages. If a log cannot be read because
        a NATS server does not answer, the wait ends after a time limit.
        """
        waits = [follower.caught_up.wait() for follower in self._followers.values()]
        longest = _CATCH_UP_IN_CLUSTER if self._node.state.epoch else _CATCH_UP
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest):
                await asyncio.gather(*waits)

    @property
    def behind(self) -> dict[str, int]:
        """The number of records of each other log that were not taken yet."""
        return {
            name: max(0, follower.announced - (self._positions.through(name) >> INDEX_BITS))
            for name, follower in self._followers.items()
            if self._began
        }

    def _mark(self) -> None:
        """Note the last record of each log that has taken the one noted before, and the silent."""
        now = self._node.clock.monotonic()
        for name, at in [*self._reported_at.items()]:
            if now > at + SILENCE and self._pushes is not None:
                del self._reported_at[name]
                self._pushes.deafen(name)
        for name, follower in self._followers.items():
            if self.last_taken(name) >= self._marks.get(name, (0, 0.0))[0]:
                self._marks[name] = max(follower.announced, self.last_taken(name)), now

    @property
    def lags(self) -> list[dict[str, Any]]:
        """The logs that are not taken whole: number of records left, and since when, in ms."""
        now, lags = self._node.clock.monotonic(), []
        for name, (_, since) in self._marks.items():
            behind = self._followers[name].announced - self.last_taken(name)
            if behind > 0:
                ms = round((now - since) * 1000)
                lags.append({"log": name, "records": behind, "behind_ms": ms})
        return lags

    def last_taken(self, name: str) -> int:
        """Return the last record of another log up to which all turns were taken."""
        return self._complete.get(name, 0)

    def last_known(self, name: str) -> int:
        """Return the last record that another log is known to have; 0: that is not known yet."""
        follower = self._followers[name]
        return max(follower.announced, follower.end, self.last_taken(name))

    @property
    def taken(self) -> dict[str, Position]:
        """The position up to which each other log was taken."""
        return {name: self._positions.through(name) for name in self._followers}

    @property
    def catching_up(self) -> bool:
        """Whether this log still takes messages that the others had when the broker started."""
        late = self._node.clock.monotonic() >= self._began_at + _CATCH_UP
        return not late and not all(
            follower.caught_up.is_set() for follower in self._followers.values()
        )

    @property
    def sessions(self) -> int:
        """The number of sessions under which messages of other logs are recorded."""
        sessions = self._node.state.sessions
        return sum(LOG_SESSION + name in sessions for name in self._followers)

    @property
    def last_to_take(self) -> Position:
        """The last position that other logs must take; after it there are only positions."""
        return self._positions.last_to_take

    # Messages from other logs.

    async def _taken(self, name: str, effects: Taken) -> None:
        times = [
            effect.time_ms
            for effect in effects.effects
            if isinstance(effect, TakenClearing)
            or (isinstance(effect, TakenMessages) and effect.retain)
        ]
        if times:
            self._node.journal.not_before(max(times) + 1)
        recorded = self._loop.create_future()
        self._node.kernel.tell_waiting(
            self, _Take(name, effects, recorded), self._may_wait(effects)
        )
        await recorded

    def _may_wait(self, effects: Taken) -> float:
        """Return for how many seconds effects may wait for others and for reads of clients.

        Each turn that takes something costs a record.
        """
        kernel, now = self._node.kernel, self._node.clock.monotonic()
        gathering = kernel.gathering
        if kernel.scheduled or not gathering.delay or not kernel.may_wait():
            return 0.0
        joins = gathering.joins(
            now, effects.size, released=-math.inf, until=-math.inf, took=kernel.last_took
        )
        return gathering.left(now) if joins else 0.0

    def _reached(self, name: str, through: Position, link: str, *, more: bool) -> None:
        """Record the position after turns; ``more``: they have more than positions."""
        self._positions.reached(name, through, link, more=more)
        self._reports.reached(name)
        self._complete[name] = through >> INDEX_BITS
        if self.on_taken is not None:
            self.on_taken(name)

    def _may_skip(self, name: str, skipped: Skipped) -> bool:
        """Return whether no subscription matches a topic of skipped records."""
        return not self.unwanted.wanted(name, skipped.topics)

    def _acknowledged(self, by: str, log: str, through: Position) -> None:
        if log == self._node.options.node:
            self._positions.acknowledged(by, through)

    def settle(self, filters: Iterable[str]) -> None:
        """Record positions up to which nothing concerned this log.

        Called in the turn of new subscriptions, so that after a crash older messages are not
        matched with them. ``filters`` are those that the client had not subscribed to.
        """
        self._positions.settle()
        self.unwanted.subscribed(filters)

    def on_receive(self, message: Any) -> None:
        """Record and route messages of other brokers."""
        if type(message) is _Take:
            self._take(message)
        elif type(message) is _Volatile:
            self._qos0.take(message.name, message.batch)
        elif message is _ROUTE_MORE:
            self._qos0.route()

    def on_dead_letters(self, messages: list[Any]) -> None:
        """Ignore the remaining messages, which are in the log."""

    def _take(self, work: _Take) -> None:
        """Record and route a part of the effects, with the position after it."""
        name, turns, recorded = work
        room, through = _AT_ONCE, None
        recorder = self._recorder
        recorder.emitted, recorder.expired, recorder.erased = False, [], []
        recorder.unwanted = []
        while turns.effects and room > 0:
            effect = turns.effects[0]
            count = recorder.record(name, effect, room)
            if not count:  # too much was already routed in this turn, or an erasure goes on
                break
            through = effect.first + count - 1
            room -= count
            if not isinstance(effect, TakenMessages) or count == len(effect):
                del turns.effects[0]
            else:
                turns.effects[0] = _rest(effect, count)
            if not isinstance(effect, TakenMessages) and self._pushes is not None:
                # Its log may wait until this one has recorded it.
                self._pushes.at_once_through = self._node.journal.end + 1
        self.unwanted.add(name, recorder.unwanted)
        if not turns.effects:
            through = turns.through
        if through is not None:
            link = turns.links[through >> INDEX_BITS]
            if recorder.emitted or recorder.expired or recorder.erased:
                self._positions.record(name, through, link, recorder.expired, recorder.erased)
            else:
                self._positions.advance(name, through, link)
        if not turns.effects:
            if not recorded.done():
                recorded.set_result(None)
            return
        if isinstance(turns.effects[0], TakenErasure):
            self._node.timers.after(_LOOK_AGAIN, partial(self.kernel.later, self, work))
        else:
            self.kernel.later(self, work)

    @property
    def partition(self) -> tuple[int, int]:
        """The number of this log among those of the node, and their total number."""
        return self._number, len(self._names)

    # Shared subscriptions.

    def is_known(self, name: str) -> bool:
        """Return whether the home of a shared subscription knows that this log has members."""
        return self._parts.is_known(name, self._positions.taken_by)

    def reported(self, log: str, members: bytes) -> None:
        """Process a report of another broker about members of shared subscriptions."""
        if self._began and log in self._followers and not self._node.draining:
            self._reports.heard(log, members)

    def reported_filters(self, log: str, filters: bytes) -> None:
        """Pass a report of another broker's bridge on to the bridge."""
        if self._node.bridge is not None and self._began and log in self._followers:
            self._node.bridge.reported(log, filters)

    def give_back(self, name: str, returned: dict[Position, Message]) -> None:
        """Return a client's unacknowledged messages to the home: this log has no more members."""
        receiver = self._shares.receiver(name)
        if receiver is not None:
            receiver.shared_delivery.requeue(returned)
            self._shares.settled(name)

    # Publications of this broker's clients.

    def published(self, batch: Batch) -> None:
        """Pass on messages of QoS 0; record which messages are retained now."""
        retain = batch.published_retain
        if retain:
            version = RetainedVersion(self._node.journal.steady_ms, self._number)
            self._versions.changed(batch.topics, version)
        if not batch.qos and not batch.gated:
            self.pass_on(batch.topics, batch.payloads, batch.blocks, retain=retain)

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

        During recovery the batch is dropped: the sessions are incomplete and must not be used, and
        no client is connected that could miss the messages.
        """
        if self._began and log in self._followers and not self._node.draining:
            self._node.kernel.tell(self, _Volatile(log, batch))
            self._node.kernel.wake()

    def _route_later(self) -> None:
        self.kernel.later(self, _ROUTE_MORE)


def _rest(messages: TakenMessages, count: int) -> TakenMessages:
    """Return messages without the first ones."""
    columns = ("topics", "payloads", "origins", "blocks", "expires")
    following: dict[str, Any] = {name: getattr(messages, name)[count:] for name in columns}
    return replace(messages, first=messages.first + count, **following)
