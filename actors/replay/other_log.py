"""Reads the log of another broker of the node for its replays.

A replay reads of it what the exchange has taken: complete turns, which are on disk.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from actors.replay.log_reader import LogReader
from eventstore.format.node_events import MessagesCarried
from eventstore.format.positions import INDEX_BITS, Position, from_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.exchange.exchange import LogExchange
    from actors.session.node_context import NodeContext
    from eventstore.log.jetstream_log import EventLog
    from eventstore.log.message_store import Message
    from projections.log_proof import Doubt
    from protocol.errors import FoldmqError

_OPEN_MS: Final = 10_000
"""Age at which no record of another broker that could still get events is open, or on its way."""


class OtherLogReader(LogReader):
    """Reads the log of another broker; ``name`` is the name of the log."""

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

    async def _carriers(self, gone: set[int]) -> set[int]:
        # They are before the end of a log that was cut; the exchange may not have taken them yet.
        last = (await self._log.tail()).sequence
        first = self.first
        if self._carried_from != first:
            carried: dict[int, set[int]] = {}
            async for record in self._log.read(first, last):
                await asyncio.sleep(0)
                if not any(raw["e"] == "MessagesCarried" for raw in record.raw_events):
                    continue
                for _, event in record.events():
                    if isinstance(event, MessagesCarried):
                        for ref in from_runs(event.refs):
                            carried.setdefault(ref >> INDEX_BITS, set()).add(record.sequence)
            self._carried, self._carried_from = carried, first
        return {carrier for sequence in gone for carrier in self._carried.get(sequence, ())}
