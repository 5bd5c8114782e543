"""The state of a node, read from its projections and its log.

The projections are read first, if they are intact; then the log is folded from their mark on.
Without them it is folded from its beginning: record 1, or the checkpoint before which it was cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from actors.routing.router import Router
from eventstore.errors import CorruptLog, LogUnavailable
from eventstore.format.event_parsing import upcast
from eventstore.format.node_events import MessagesCarried
from eventstore.format.positions import INDEX_BITS, Position, from_runs, position
from eventstore.format.records import ChainChecker, Record
from eventstore.format.turn_expansion import expanded
from eventstore.log.log_start import LostBeginning
from eventstore.log.message_store import retained_when_released
from projections.state.client_history import ClientHistories
from projections.state.format import BadProjection
from projections.state.loading import LoadedProjections, ProjectionLoader
from projections.state.node_state import NodeState
from projections.state.retained import RetainedMessage
from projections.state.session import SessionState

if TYPE_CHECKING:
    from eventstore.log.jetstream_log import EventLog
    from eventstore.log.record_reader import LogTail

_log = structlog.get_logger("foldmq")

_RELEASES = ("Released", "TurnReleased")
_YIELD_EVERY = 64
"""Records folded between two returns to the event loop."""
_FREEZE_FROM = 50_000
"""Offline sessions are frozen while the log is folded if more sessions than this are in memory."""


@dataclass(frozen=True, slots=True)
class ReadState:
    """The state of a node as of the end of its log."""

    state: NodeState
    tail: LogTail
    loaded: LoadedProjections | None
    """The projections, if they were used: the log up to their mark was not read."""


@dataclass(frozen=True, slots=True)
class FollowedState:
    """The state of a node that follows the log of another one."""

    state: NodeState
    tail: LogTail
    router: Router
    """The subscription index of the state."""


@dataclass(eq=False, repr=False)
class StateReader:
    """Reads the state of a log; :meth:`take` folds records appended later.

    ``on_frozen`` is called with each frozen session of the projections, ``on_loaded`` with the
    projections, after the state has them and before the log is folded.
    """

    _log: EventLog
    _on_frozen: Callable[[SessionState], None]
    _on_loaded: Callable[[LoadedProjections], None]

    def __post_init__(self) -> None:
        self._state: NodeState
        self._before: Position | None = None
        """Position before which messages may be unknown, because projections were loaded."""

    async def read(
        self,
        state: NodeState,
        reset: Callable[[], NodeState],
        progress: Callable[[int, int], None],
    ) -> ReadState:
        """Return the state; ``progress(done, total)`` counts the records that are folded.

        ``state`` is empty; ``reset`` returns another empty one if the projections are unusable.

        Raises CorruptLog when a record is damaged or missing, LogUnavailable when JetStream does
        not answer.
        """
        tail = await self._log.tail()
        loaded: LoadedProjections | None = None
        self._state = _with_clients(state)
        try:
            loaded = await self._load(tail)
            await self._fold(tail, loaded, progress)
        except BadProjection as error:
            _log.warning("the log is folded from its beginning", reason=str(error))
            loaded = None
            self._state = _with_clients(reset())
            await self._fold(tail, None, progress)
        self._state.finish_loading()
        self._check_begin(tail)
        self._state.begin = self._log.first
        return ReadState(self._state, tail, loaded)

    async def _load(self, tail: LogTail) -> LoadedProjections | None:
        """Read the projections into the state; None if there are none.

        Raises BadProjection if they are not usable.
        """
        log = self._log
        inbound: dict[str, list[Position]] = {}

        def found(state: SessionState, *, frozen: bool) -> None:
            if frozen:
                self._on_frozen(state)
            if state.inbound:
                inbound[state.session] = list(state.inbound.values())

        end = position(tail.sequence + 1, 0)
        loader = ProjectionLoader(self._state, found, end, log.content_key)
        count = 0
        try:
            async for key, data in log.projections.read():
                loader.take(key, data)
                count += 1
                if count % 1024 == 0:
                    await asyncio.sleep(0)
            if not count:
                return None
            loaded = loader.finish(await log.projections.last())
        except LogUnavailable as error:
            # If the log cannot be read either, reading it reports that.
            raise BadProjection(f"the projections cannot be read: {error}") from None
        await self._check_mark(loaded)
        self._state.begin = log.first
        await self._fill_carried(loaded)
        await self._load_unreleased(inbound)
        self._on_loaded(loaded)
        return loaded

    async def _check_mark(self, loaded: LoadedProjections) -> None:
        """Raise BadProjection unless the log continues at the projections' mark."""
        log, mark = self._log, loaded.mark
        if mark.sequence < log.first:
            if mark.sequence == log.first - 1 and mark.cut and mark.cut.link == mark.link:
                return
            raise BadProjection("the projections end before the log begins")
        try:
            records = await log.read_some([mark.sequence])
        except CorruptLog:
            records = []
        if not any(
            record.sequence == mark.sequence and record.link.hex() == mark.link
            for record in records
        ):
            raise BadProjection("the projections belong to another log")

    async def _fill_carried(self, loaded: LoadedProjections) -> None:
        """Read which messages are repeated in which records, and where the log was cut."""
        node_state, mark = self._state, loaded.mark
        node_state.take_mark(mark)
        carriers = [sequence for sequence in mark.carriers if sequence >= self._log.first]
        for start in range(0, len(carriers), _YIELD_EVERY):
            for record in await self._read(carriers[start : start + _YIELD_EVERY]):
                for index, event in record.events():
                    if isinstance(event, MessagesCarried):
                        node_state.apply(event, position(record.sequence, index), record.steady_ms)

    async def _load_unreleased(self, refs_of: dict[str, list[Position]]) -> None:
        """Find retained messages that sessions sent at QoS 2 and have not released.

        The projections contain their identifiers; the messages are in the log.
        """
        if not refs_of:
            return
        node_state = self._state
        sequences = {
            at
            for refs in refs_of.values()
            for ref in refs
            for at in node_state.carriers_of(ref >> INDEX_BITS)
        }
        unreleased: dict[Position, RetainedMessage] = {}
        for record in await self._read(sequences):
            for ref, message in retained_when_released(record):
                topic = message.topic.decode()
                unreleased[ref] = RetainedMessage(
                    topic, message.payload, 2, ref, message.block, message.expires
                )
        for session, refs in refs_of.items():
            messages = [
                unreleased[ref]._replace(publisher=session) for ref in refs if ref in unreleased
            ]
            if messages:
                node_state.retained.load_unreleased(session, messages)

    async def _read(self, sequences: Iterable[int]) -> list[Record]:
        """Return records that the projections refer to; raise BadProjection if one is missing.

        Projections that lost their end may refer to records that were deleted later.
        """
        try:
            return await self._log.read_some(sequences)
        except CorruptLog as error:
            raise BadProjection(
                f"a record that the projections refer to is missing: {error.what}"
            ) from None

    async def _fold(
        self,
        tail: LogTail,
        loaded: LoadedProjections | None,
        progress: Callable[[int, int], None],
    ) -> None:
        """Fold the records that the projections do not reflect."""
        log, node_state = self._log, self._state
        noted = log.watermark.read() if log.watermark is not None else None
        end = tail.sequence
        first = log.first
        checker = ChainChecker() if first == 1 else None
        if loaded is not None:
            first = loaded.mark.sequence + 1
            checker = ChainChecker(loaded.mark.sequence, bytes.fromhex(loaded.mark.link))
            self._before = position(first, 0)
        else:
            node_state.starts_at(first)
            self._before = None
        if end and first <= end:
            async for record in log.read(first, end, whole_turns=True):
                if checker is None:
                    checker = ChainChecker(first - 1, record.previous)
                checker.check(record)
                if noted is not None and noted[0] == record.sequence and noted[1] != record.link:
                    raise CorruptLog(record.sequence, "is not the one that was acknowledged")
                await self.take(record)
                if record.sequence % _YIELD_EVERY == 0:
                    if loaded is None:
                        for _ in self.freeze_offline():
                            pass
                    progress(record.sequence - first + 1, end - first + 1)
                    await asyncio.sleep(0)
            if checker is None or checker.sequence != end:
                raise CorruptLog(first if checker is None else checker.sequence + 1, "is missing")
        node_state.applied = end
        progress(1, 1)

    async def take(self, record: Record) -> None:
        """Fold the next record."""
        if self._before is not None:
            await self._load_unreleased(_unknown_releases(self._state, record, self._before))
        self._state.apply_record(record)

    def freeze_offline(self) -> Iterator[SessionState]:
        """Freeze the sessions without a connection if there are many sessions in memory.

        Yields their states. Nothing may be folded meanwhile.
        """
        table = self._state.sessions
        if len(table.live) > _FREEZE_FROM:
            bound = position(self._state.applied + 1, 0)
            for name in [name for name, state in table.live.items() if not state.connected]:
                state = table.freeze(name, bound)
                if state is not None:
                    yield state

    def _check_begin(self, tail: LogTail) -> None:
        """Raise CorruptLog unless the log begins where it was cut, with a complete checkpoint."""
        log, node_state = self._log, self._state
        if log.first == 1 or not tail.sequence:
            return
        if not any(cut.first >= log.first for cut in node_state.cuts):
            raise LostBeginning(log.first, node_state.cuts[-1] if node_state.cuts else None)
        if node_state.partial:
            raise CorruptLog(log.first - 1, "is missing, and no complete checkpoint follows it")


def _with_clients(state: NodeState) -> NodeState:
    """Add the histories of clients to a state; return it."""
    state.clients = ClientHistories()
    return state


def _unknown_releases(
    node_state: NodeState, record: Record, before: Position
) -> dict[str, list[Position]]:
    """Return unknown messages from before a position that a record releases."""
    unknown: dict[str, list[Position]] = {}
    for raw in record.raw_events:
        if raw.get("e") not in _RELEASES:
            continue
        for part in expanded(raw):
            event = upcast(part)
            for ref in from_runs(event["refs"]):
                if ref < before and not node_state.retained.known(event["session"], ref):
                    unknown.setdefault(event["session"], []).append(ref)
    return unknown
