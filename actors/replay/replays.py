"""The replays of a broker: which there are, whose step is next, and which are refused.

An actor makes their steps, one after the other, in parts of longer work: with other work to do, a
part takes about a millisecond. A replay has a place while its client is connected; beyond
``max_replays`` they wait for one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Any, Final

import structlog

from actors.exchange.skipped_records import HELD_RECORDS
from actors.kernel.actor import LoopActor
from actors.replay.log_cursor import STILL_LIVE
from actors.replay.log_reader import LogReader
from actors.replay.replay import Replay
from actors.session.node_context import NodeContext, owner_of
from actors.session.session import Session
from actors.session.session_messages import ClientConnection
from eventstore.format.events import ReplayOpened
from eventstore.format.node_events import MessagesCarried
from eventstore.format.positions import INDEX_BITS, Position, from_runs, position, sequence_of
from eventstore.log.pending_record import PendingRecord
from eventstore.partitions import short_name
from eventstore.reading.moments import ALL, LAST, NEW, BadMoment, ends_before, parse_moment
from projections.state.session import SessionState
from protocol.errors import FoldmqError
from protocol.mqtt.reason_codes import ReasonCode
from protocol.mqtt.replay_filters import replayed_filter, split_replay
from protocol.mqtt.topics import TopicError

if TYPE_CHECKING:
    from actors.exchange.exchange import LogExchange, OtherLog
    from eventstore.log.jetstream_log import EventLog
    from eventstore.log.message_store import Message
    from projections.log_proof import Doubt

_log = structlog.get_logger("foldmq")

_STEP: Final = object()
_SLICE: Final = 0.001
"""Seconds after which the steps that are due follow in another part."""
_LIVE_EVERY, _LIVE_STEPS = 0.005, 2000
"""Least seconds between two steps of a live replay, and steps of all of them in a second."""
_AHEAD_MS: Final = 60_000
"""How far the clock of a client may be ahead, in milliseconds."""


_OPEN_MS: Final = 10_000
"""Age at which no record of another broker that could still get events is open, or on its way."""


class OtherLogReader(LogReader):
    """Reads the log of another broker; ``name`` is the name of the log.

    A replay reads of it what the exchange has taken: complete turns, which are on disk.
    """

    def __init__(self, node: NodeContext, name: str, log: EventLog, exchange: LogExchange) -> None:
        super().__init__(node, log)
        self.name = name
        self._exchange = exchange
        self._carried: dict[int, set[int]] = {}
        """The records that repeat messages of records that were cut off."""
        self._carried_from = 0
        """Where the log began when these were looked for."""

    @property
    def last(self) -> int:
        """Sequence of the last record that replays may read."""
        return self._exchange.last_taken(self.name)

    @property
    def first(self) -> int:
        """Sequence at which the log begins."""
        return max(1, self._log.first)

    def is_settled(self, time_ms: int) -> bool:
        """Return whether no record of a time up to this one will follow those that may be read."""
        late = self._node.clock.time_ms() > time_ms + _OPEN_MS
        return late and not self._exchange.behind.get(self.name)

    async def _look_again(self) -> None:
        await self._log.tail()

    def _on_damage(self, error: FoldmqError) -> None:
        """Leave it to the broker of that log."""

    def _recent(self, _ref: Position) -> Message | None:
        return None

    @property
    def given_up(self) -> Sequence[Doubt]:
        """Nothing: the log of another process is not salvaged."""
        return ()

    async def _carriers(self, removed: set[int]) -> set[int]:
        # They are before the end of a log that was cut; the exchange may not have taken them yet.
        end = (await self._log.tail()).sequence
        first = self.first
        if self._carried_from != first:
            carried: dict[int, set[int]] = {}
            async for record in self._log.read(first, end):
                await asyncio.sleep(0)
                if not any(raw["e"] == "MessagesCarried" for raw in record.raw_events):
                    continue
                for _, event in record.events():
                    if isinstance(event, MessagesCarried):
                        for ref in from_runs(event.refs):
                            carried.setdefault(ref >> INDEX_BITS, set()).add(record.sequence)
            self._carried, self._carried_from = carried, first
        return {carrier for sequence in removed for carrier in self._carried.get(sequence, ())}


class Replays:
    """The replays of a node."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self.reader = LogReader(node)
        self._readers: dict[str, LogReader] = {"": self.reader}
        """The readers of the logs in order, by the names of these; the empty one is the own log."""
        self._placed: dict[Replay, None] = {}
        """The replays that read."""
        self._waiting: dict[Replay, None] = {}
        """Those that wait for a place."""
        self._ready: deque[Replay] = deque()
        self._actor: ReplayWork | None = None
        self._pause_until = 0.0
        """Monotonic time until which others have the loop while light clients are active."""
        self._pausing = False

    def __len__(self) -> int:
        """Return the number of replays of connected clients."""
        return len(self._placed) + len(self._waiting)

    @property
    def connected(self) -> Iterable[Replay]:
        """The replays of connected clients."""
        return [*self._placed, *self._waiting]

    def states(self) -> dict[str, int]:
        """Return the number of replays of connected clients by state."""
        counts = Counter(replay.state for replay in self._placed)
        if self._waiting:
            counts["waiting"] = len(self._waiting)
        return dict(counts)

    @property
    def records_read(self) -> int:
        """The number of records read since the start."""
        return sum(reader.records_read for reader in self._readers.values())

    @property
    def lag(self) -> int:
        """The largest number of records that a replay has not read yet."""
        return max((replay.lag for replay in self._placed), default=0)

    def join(self, names: Sequence[str], others: Sequence[OtherLog], exchange: LogExchange) -> None:
        """Read also the other logs of the node; ``names`` are those of all logs in order."""
        node, logs = self._node, dict(others)
        self._readers = {
            name if name in logs else "": OtherLogReader(node, name, logs[name], exchange)
            if name in logs
            else self.reader
            for name in names
        }
        exchange.on_taken = self._wake_all
        exchange.unwanted.all_wanted = lambda: bool(self._placed)

    # Subscribing.

    def refuses(
        self,
        session: SessionState,
        connection: ClientConnection,
        topic_filter: str,
        offset: str,
        opened: int,
    ) -> int | ReplayOpened:
        """Return the reason code with which a replay is refused, or the event that opens it.

        0: the subscription exists, and continues. Raises TopicError or BadMoment for a malformed
        filter. ``offset`` is the ``stream-offset`` of the
        SUBSCRIBE, ``opened`` the number of replays that it opens and that are not recorded yet.
        """
        node, name = self._node, session.session
        try:
            event = self._parse(name, topic_filter, offset)
        except (TopicError, BadMoment) as error:
            _log.info("replay refused", client=name, filter=topic_filter[:200], reason=str(error))
            raise
        inner = event.topic_filter or replayed_filter(topic_filter)
        code = node.permissions.refuses_replay(connection, inner)
        if code:
            return code
        if topic_filter in session.replays:
            return 0
        bounds = node.options.bounds
        if len(self) + opened >= bounds.max_replays:
            return self._over("replays", name)
        if len(session.replays) + opened >= bounds.max_replays_per_client:
            return self._over("replays_per_client", name)
        total = node.router.subscriptions
        if not node.router.quota.allows(
            owner_of(connection), total, bounds.max_subscriptions_total
        ):
            return self._over("subscriptions_total", name)
        return event

    def _over(self, limit: str, client: str) -> int:
        self._node.limits.refused.add(limit, self._node.clock.monotonic(), client=client, filters=1)
        return ReasonCode.QUOTA_EXCEEDED

    def _parse(self, name: str, topic_filter: str, offset: str) -> ReplayOpened:
        """Return the event that opens a replay; raises TopicError or BadMoment."""
        parts = split_replay(topic_filter, offset)
        declared = ""
        if not parts.topic_filter:
            declared = self._declared(parts.stream)
        now_ms, ends = self._node.clock.time_ms(), self._last()
        start = parse_moment(parts.start, now_ms)
        event = ReplayOpened(name, topic_filter, {}, topic_filter=declared)
        if start.word in (NEW, LAST):
            event.start, event.last = ends, start.word == LAST
        elif start.word != ALL:
            event.start, event.start_ms = self._named(start.positions), start.time_ms or 0
        if parts.until:
            until = parse_moment(parts.until, now_ms, words=frozenset())
            if ends_before(start, until):
                raise BadMoment("the replay ends before it begins")
            event.until, event.until_ms = self._named(until.positions), until.time_ms or 0
        if event.start_ms > now_ms + _AHEAD_MS:
            raise BadMoment("the replay begins in the future")
        for log, at in (*event.start.items(), *event.until.items()):
            end = sequence_of(ends[log])
            # Another log may have held back its last records.
            if end and sequence_of(at) > end + (HELD_RECORDS if log else 0):
                raise BadMoment("the position is beyond the end of the log")
        # The first record is 1: nothing was cut before it.
        event.start = {log: max(at, position(1, 0) - 1) for log, at in event.start.items()}
        return event

    def _declared(self, stream: str) -> str:
        """Return the filter of a declared stream; raises BadMoment."""
        for declared in self._node.options.streams:
            name, _, topic_filter = declared.partition("=")
            if name == stream:
                return topic_filter
        raise BadMoment("no such stream is declared: $stream/NAME/FILTER needs no declaration")

    def _last(self) -> dict[str, Position]:
        """Return the last known position of each log."""
        exchange, ends = self._node.exchange, {"": self._node.journal.last}
        for log in self._readers:
            if log and exchange is not None:
                ends[log] = position(exchange.last_known(log) + 1, 0) - 1
        return ends

    def _named(self, positions: Mapping[str, Position]) -> dict[str, Position]:
        """Return positions by the names of the logs, which may be short; raises BadMoment."""
        if len(self._readers) == 1:
            if any(positions):
                raise BadMoment("positions with the name of a log are for several logs")
            return {**positions}
        node = self._node.options.node
        name_of = {log: log or node for log in self._readers}
        places = {
            log: positions[written]
            for log, name in name_of.items()
            for written in {name, short_name(name)} & positions.keys()
        }
        if positions and len(places) < max(len(name_of), len(positions)):
            example = ",".join(f"{short_name(name)}:12.3" for name in name_of.values())
            raise BadMoment(f"with several logs a position names each of them: {example}")
        return places

    def begin(self, session: Session, topic_filter: str) -> None:
        """Begin or continue a replay that was granted."""
        replay = self._find(session, topic_filter)
        if replay is None:
            self._place(session, topic_filter)
        else:
            replay.wake()

    def end(self, session: Session, topic_filter: str) -> None:
        """End a replay before its subscription ends."""
        replay = self._find(session, topic_filter)
        if replay is not None:
            replay.record_cursor()
            self._remove(replay)
            others = [other for other in session.delivery.replays or () if other is not replay]
            session.delivery.replays = others or None

    def _find(self, session: Session, topic_filter: str) -> Replay | None:
        for replay in self.connected:
            if replay.session is session and replay.filter == topic_filter:
                return replay
        return None

    # Connections.

    def attach(self, session: Session) -> None:
        """Continue the replays of a session whose client has connected."""
        for topic_filter in session.state.replays:
            self._place(session, topic_filter)

    def detach(self, session: Session) -> None:
        """Record the cursors of a session whose connection is about to end."""
        for replay in self.connected:
            if replay.session is session:
                replay.record_cursor()
                self._remove(replay)
        session.delivery.replays = None

    def record_cursors(self) -> None:
        """Record the cursors of all replays: the log is about to be cut."""
        for replay in self._placed:
            replay.record_cursor()
        self._node.kernel.wake()

    def left_before(self, first: int) -> int:
        """Return how many positions of the node's log replays have to read before a record.

        Those that have more than a few records left do not count.
        """
        remaining = 0
        for replay in self._placed:
            if replay.goes_on and 0 < first - replay.own.next_sequence <= STILL_LIVE:
                remaining += position(first, 0) - 1 - (replay.own.cursor or 0)
        return remaining

    @contextmanager
    def held_before(self, first: int) -> Iterator[None]:
        """Send no message of the records before one: the log is about to be cut there."""
        self.reader.hold(first)
        for replay in self._placed:
            replay.own.ahead.clear()
        try:
            yield
        finally:
            self.reader.hold(0)
            for replay in self._placed:
                self._wake(replay)

    def _place(self, session: Session, topic_filter: str) -> None:
        state = session.state.replays[topic_filter].replay
        if state is None:
            return
        replay = Replay(self._node, self._readers, session, topic_filter, state, self._wake)
        session.delivery.replays = [*(session.delivery.replays or ()), replay]
        if self._actor is None:
            self._actor = ReplayWork(self)
            self._node.kernel.spawn(self._actor, self._node.root)
        self._waiting[replay] = None
        self.fill_places()

    def restart(self) -> None:
        """Go on with a new actor: the old one failed."""
        self._actor = ReplayWork(self)
        self._node.kernel.spawn(self._actor, self._node.root)
        self._pausing = False
        self._ready.clear()
        for replay in self._placed:
            replay.queued = False
            replay.due = inf
            self._wake(replay)

    def fill_places(self) -> None:
        """Begin with waiting replays as long as there are places."""
        most = self._node.options.bounds.max_replays
        while self._waiting and len(self._placed) < most:
            replay = next(iter(self._waiting))
            del self._waiting[replay]
            self._placed[replay] = None
            self._node.journal.on_stored = self._on_stored
            self._wake(replay)
        for reader in self._readers.values():
            reader.replays = max(1, len(self._placed))

    def _remove(self, replay: Replay) -> None:
        self._waiting.pop(replay, None)
        self._placed.pop(replay, None)
        for log in replay.logs:
            log.reader.withdraw(log)
            log.ahead.clear()
        self.fill_places()
        if not self._placed:
            self._node.journal.on_stored = None
            for reader in self._readers.values():
                reader.clear()

    # Steps.

    def _on_stored(self, record: PendingRecord) -> None:
        """Take a record that is on disk."""
        self.reader.stored(record)
        self._wake_all()

    def _wake_all(self, _log: str = "") -> None:
        """Look which steps are possible: a log has grown."""
        for replay in self._placed:
            self._wake(replay)

    def _wake(self, replay: Replay) -> None:
        if replay.queued or self._actor is None or replay not in self._placed:
            return
        replay.queued = True
        self._ready.append(replay)
        if len(self._ready) == 1:
            self._go_on()

    def _go_on(self) -> None:
        """Make the steps that are due, while light clients are active not before a pause."""
        node, actor = self._node, self._actor
        if actor is None or self._pausing:
            return
        pause = self._pause_until - node.clock.monotonic() if node.kernel.shared else 0.0
        if pause <= 0:
            node.kernel.later(actor, _STEP)
            return
        self._pausing = True

        def resume() -> None:
            self._pausing = False
            node.kernel.later(actor, _STEP)

        actor.start_timer(node.timers, pause, resume)

    def step(self) -> None:
        """Make the steps that are due, for a while."""
        node, ready = self._node, self._ready
        began = node.clock.stopwatch()
        until = began + _SLICE
        interval = max(_LIVE_EVERY, len(self._placed) / _LIVE_STEPS)
        for _ in range(len(ready)):
            replay = ready.popleft()
            replay.queued = False
            if replay not in self._placed:
                continue
            delay = self._step_of(replay, interval)
            if delay <= 0:
                replay.queued = True
                ready.append(replay)
            elif delay < inf:
                self._wake_later(replay, delay)
            if node.clock.stopwatch() >= until:
                break
        self._pause_until = node.clock.monotonic() + node.clock.stopwatch() - began
        if ready:
            self._go_on()

    def _step_of(self, replay: Replay, interval: float) -> float:
        if replay.subscription is None:
            self._remove(replay)
            return inf
        try:
            return replay.step(interval)
        except Exception as error:  # noqa: BLE001 - the others go on
            _log.error("a replay failed", client=replay.session.name, exc_info=error)
            if replay.damage is not None:  # it could not even record that
                self._remove(replay)
                return inf
            replay.on_damage(FoldmqError(f"a bug: {error!r}; please report it"))
            return 0.0

    def _wake_later(self, replay: Replay, delay: float) -> None:
        due = self._node.clock.monotonic() + delay
        if self._actor is None or replay.due <= due:
            return
        replay.due = due

        def wake() -> None:
            if replay.due == due:
                replay.due = inf
                self._wake(replay)

        self._actor.start_timer(self._node.timers, delay, wake)


class ReplayWork(LoopActor):
    """Makes the steps of replays, in parts of longer work."""

    def __init__(self, replays: Replays) -> None:
        super().__init__()
        self._replays = replays

    def on_receive(self, _message: Any) -> None:
        """Make the steps that are due."""
        self._replays.step()
