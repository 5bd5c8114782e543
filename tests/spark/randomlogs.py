"""Random logs, and the rows that Spark must read from them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from asrows import entry_rows

from eventstore.format.events import (
    Acked,
    Delivered,
    MessagePublished,
    Queued,
    ReplayOpened,
    ReplayReached,
    SessionClosed,
    WillFired,
)
from eventstore.format.records import decode_record
from eventstore.format.turn_parts import TurnAssembler

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.logs import LogBuilder

    NewLog = Callable[..., LogBuilder]

Rows = list[dict[str, Any]]


def expected(log: LogBuilder) -> Rows:
    """The rows of the whole turns of a log, by eventstore's own reading."""
    turns = TurnAssembler()
    records = [decode_record(sequence, data) for sequence, data in enumerate(log.records, 1)]
    whole = [one for record in records for one in turns.take(record)[1]]
    return entry_rows(whole)


def without(found: Rows, *names: str) -> Rows:
    return [{key: value for key, value in row.items() if key not in names} for row in found]


def random_log(log: LogBuilder, seed: int, records: int) -> LogBuilder:
    """A log of turns in one or several records, whole and void ones, with events of all kinds."""
    chance = random.Random(seed)
    events = [
        SessionClosed("a", "disconnect"),
        Acked("b", [[1, 7, 1]]),
        Delivered("b", "x/#", 1, [[5, 3, 1]], [[1 << 20, 3, 1]]),
        Queued("c", "x/#", 1, [1 << 20, 3 << 20], 9),
        WillFired("a"),
        ReplayOpened("b", "$replay/all/x", {}),
        ReplayReached("b", "$replay/all/x", {"": 1 << 20}, sent=1, left_out={"expired": 2}),
    ]
    while log.last < records:
        parts = [
            chance.choices(events, k=chance.randrange(4))
            for _ in range(chance.choice([1, 1, 2, 4]))
        ]
        log.turn(*parts, whole=len(parts) == 1 or chance.random() < 0.6)
        if chance.random() < 0.3:
            payload = bytes(chance.randrange(50))
            log.record(
                MessagePublished("a", 1, True, ["x/y"], [], [3], len(payload), 0, 1),
                payloads=[payload],
            )
    return log
