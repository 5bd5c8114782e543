"""Publisher and time of a retained message of which only a checkpoint's copy is left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any, cast

from harness.logs import LogBuilder

from cli.commands.retained import _set
from cli.web.pages.session_at import describe_setters
from eventstore.format.events import MessagePublished
from eventstore.format.node_events import RetainedSnapshot
from eventstore.format.positions import position
from eventstore.format.records import Record, decode_record


class _Held:
    """A log in memory, and the page's connection to it."""

    first, index = 1, None
    names: tuple[str, ...] = ()

    def __init__(self, log: LogBuilder) -> None:
        self._log = log
        self.last = log.last

    @contextlib.asynccontextmanager
    async def log(self, _name: str) -> AsyncIterator[_Held]:
        yield self

    async def some(self, sequences: Iterable[int]) -> list[Record]:
        return [decode_record(one, self._log.records[one - 1]) for one in sequences]


def test_the_copy_of_a_checkpoint_is_younger_than_the_message() -> None:
    log = LogBuilder("n")
    log.record(
        RetainedSnapshot(["a"], [1], [position(0, 7)], 1, 0, 1, publishers=["ann"]),
        payloads=[b"x"],
    )
    log.record(MessagePublished("bob", 1, True, ["b"], [], [1], 1, 0, 1), payloads=[b"x"])
    link = _Held(log)
    copy, own = (decode_record(number, data).time_ms for number, data in enumerate(log.records, 1))
    rows: list[dict[str, Any]] = [
        {"log": "", "position": position(1, 0), "set_by": "ann"},
        {"log": "", "position": position(2, 0), "set_by": "bob"},
    ]
    asyncio.run(describe_setters(cast("Any", link), rows))
    assert [row["set_by"] for row in rows] == ["ann", "bob"]
    assert [row["set_ms"] for row in rows] == [None, own]
    assert [row["set_before_ms"] for row in rows] == [copy, None]
    assert _set(rows[0], copy + 60_000) == "over 1 min ago"
    assert _set(rows[1], own + 60_000) == "1 min ago"
    assert _set({}, own) is None
