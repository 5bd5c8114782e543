"""The state of a log that another node leads, folded as the log grows.

The subscription index of the state is kept as well, so that a node that takes over has it at once:
frozen sessions are in it by name, as in the index of a broker, and those changed by an event are
indexed again some time later, or when the node takes over.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from actors.maintenance.state_reader import FollowedState, StateReader
from actors.routing.router import Router, routed
from eventstore.errors import CorruptLog, EventStoreError
from eventstore.format.records import GENESIS, ChainChecker
from eventstore.log.record_reader import LogTail
from projections.state.format import BadProjection
from projections.state.node_state import NodeState

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.format.records import Record
    from eventstore.log.jetstream_log import EventLog
    from projections.state.loading import LoadedProjections
    from projections.state.session import SessionState

_YIELD_EVERY = 16
"""Records folded between two returns to the event loop."""
_FREEZE_EVERY = 1024
_FROZEN_AT_ONCE = 16
"""Sessions frozen between two returns to the event loop."""
_INDEXED_AT_ONCE = 64
"""Sessions indexed between two returns to the event loop."""


class FellBehind(EventStoreError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """The log was cut behind the follower's position; the follower has to read it again."""

    exit_code = 75

    def __init__(self) -> None:
        super().__init__("the log was cut before this node had read it: start it again")


class Follower:
    """Folds a log up to the record that its leader reports as stored."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._reader = StateReader(log, self._index_frozen, self._index_thawed)
        self._state = NodeState()
        self._router = Router()
        self._checker = ChainChecker()
        self._reading = asyncio.Lock()
        self.end = LogTail(0, GENESIS)
        """The last folded record."""
        self.stopped = False
        """Whether the last record says that the leader shut down cleanly."""

    @property
    def sequence(self) -> int:
        """Sequence of the last folded record."""
        return self._checker.sequence

    @property
    def link(self) -> bytes:
        """Link of the last folded record."""
        return self._checker.link

    @property
    def state(self) -> NodeState:
        """The fold of the log up to the last folded record."""
        return self._state

    async def begin(self, progress: Callable[[int, int], None]) -> None:
        """Read the log.

        Raises the EventStoreError that prevents it, FellBehind when the log is cut meanwhile.
        """
        try:
            found = await self._reader.read(self._state, self._reset, progress)
            self._state = found.state
            await self._index(frozen=found.loaded is None)
            self._checker = ChainChecker(found.tail.sequence, found.tail.link)
            if found.tail.sequence:
                for record in await self._log.read_some([found.tail.sequence]):
                    self._look(record)
        except CorruptLog:
            read_from = self._log.first
            await self._log.tail()
            if self._log.first > read_from:
                raise FellBehind from None
            raise

    async def read_to(self, last: int) -> None:
        """Fold the records up to a sequence.

        Raises CorruptLog when a record is damaged or does not follow the one before it, FellBehind
        when the log is cut before it is read, LogUnavailable when JetStream does not answer.
        """
        async with self._reading:
            if self.sequence >= last:
                return
            try:
                await self._read_to(last)
            except CorruptLog:
                await self._log.tail()
                if self._log.first > self.sequence + 1:
                    raise FellBehind from None
                raise

    async def _read_to(self, last: int) -> None:
        async for record in self._log.read(self.sequence + 1, last):
            await self._take(record)
            if record.sequence % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
                if len(self._state.dirty or ()) > _INDEXED_AT_ONCE:
                    await self._index_changes()
            if record.sequence % _FREEZE_EVERY == 0:
                await self._freeze_offline()
        if self.sequence < last:
            raise CorruptLog(self.sequence + 1, "is missing")

    async def add(self, record: Record) -> None:
        """Fold a record that this node has appended, unless it was read meanwhile."""
        async with self._reading:
            if self.sequence < record.sequence:
                await self._take(record)

    async def _take(self, record: Record) -> None:
        before = self.sequence, self.link
        self._checker.check(record)
        try:
            await self._reader.take(record)
        except BaseException as error:
            # The record was not folded and has to be read again: something that it refers to could
            # not be read, or the task was cancelled.
            self._checker = ChainChecker(*before)
            if isinstance(error, BadProjection):
                raise FellBehind from error
            raise
        self._look(record)

    def _look(self, record: Record) -> None:
        self.end = LogTail.of(record)
        self.stopped = bool(record.raw_events) and record.raw_events[-1]["e"] == "BrokerStopped"
        cuts = self._state.cuts
        if cuts and cuts[-1].first > self._state.begin:
            self._state.forget_before(cuts[-1].first)

    async def tail(self) -> LogTail:
        """Return the end of the log; raises as :meth:`EventLog.tail`."""
        return await self._log.tail()

    async def result(self) -> FollowedState:
        """Return the state, for a broker to adopt; do not use the follower afterwards."""
        async with self._reading:
            await self._index_changes()
        self._state.dirty = None
        self._state.begin = self._log.first
        return FollowedState(self._state, self.end, self._router)

    # The subscription index.

    def _reset(self) -> NodeState:
        self._router = Router()
        return NodeState()

    def _index_frozen(self, state: SessionState) -> None:
        self._router.freeze(state.session, [held.filter for held in routed(state)])

    def _index_thawed(self, _loaded: LoadedProjections) -> None:
        """Index sessions by their subscriptions as soon as an event is about to change them."""
        self._state.sessions.on_thaw = self._router.restore

    async def _index(self, *, frozen: bool) -> None:
        """Index the sessions that are not yet; with ``frozen``, also those that are frozen."""
        sessions = self._state.sessions
        for number, (name, state) in enumerate(sessions.items()):
            if name in sessions.live:
                self._router.restore(state)
            elif frozen:
                self._index_frozen(state)
            else:
                break  # the others come behind
            if number % _INDEXED_AT_ONCE == 0:
                await asyncio.sleep(0)
        for name in self._router.active_sessions():
            if name not in sessions:
                self._router.remove_session(name)
        sessions.on_thaw = self._router.restore
        self._state.dirty = {}

    async def _index_changes(self) -> None:
        """Index the sessions that were changed by events."""
        sessions, router = self._state.sessions, self._router
        changed = self._state.dirty or {}
        number = 0
        while changed:
            number += 1
            if number % _INDEXED_AT_ONCE == 0:
                await asyncio.sleep(0)
            name, _ = changed.popitem()
            state = sessions.live.get(name)
            if state is not None:
                router.restore(state)
            elif name not in sessions:
                router.remove_session(name)
        while router.sweep():  # noqa: ASYNC110 - a part at a time
            await asyncio.sleep(0)

    async def _freeze_offline(self) -> None:
        """Freeze the sessions without a connection if there are many sessions in memory."""
        await self._index_changes()
        for number, state in enumerate(self._reader.freeze_offline(), 1):
            self._index_frozen(state)
            if number % _FROZEN_AT_ONCE == 0:
                await asyncio.sleep(0)
